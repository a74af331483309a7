//! What pages say of the tree and of each other holds: guides name each place and only places that exist, no page
//! contradicts what ran on a GPU, and each alert has its section in the runbook.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file below `path` for which `wanted` holds, from the root.
fn files(path: &Path, wanted: &dyn Fn(&str) -> bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(path)).expect("readable") {
        let entry = entry.expect("readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = path.join(&name);
        if entry.file_type().expect("readable").is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&below, wanted, found);
            }
        } else if wanted(&name) {
            found.push(below);
        }
    }
}

/// The part of `page` below the heading `heading`, to the next of its kind.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading:?}"));
    let level = heading.split(' ').next().expect("a heading");
    rest.split(&format!("\n{level} ")).next().expect("a part")
}

/// The cells of the tables' rows in `text`, without the heads.
fn table(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.map(|row| row.trim_end_matches('|').split(" | ").map(str::trim));
    rows.map(Iterator::collect).skip(1).collect()
}

/// `GetStatus` as `get_status`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// P-EQUIPMENT-10: a gRPC method is at every place that the guide names.
#[test]
fn every_method_is_at_each_place_that_the_guide_names() {
    let guide = read("CONTRIBUTING.md");
    let places = table(section(&guide, "## A gRPC method"));
    let places: Vec<_> = places.iter().filter(|row| row.len() == 2).collect();
    assert!(places.len() >= 5, "{places:?}");
    let contract = read("proto/tidegate/v1/tidegate.proto");
    let (_, services) = contract.split_once("service Node").expect("a service");
    let methods = services.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
        Some(name)
    });
    let methods: Vec<_> = methods.collect();
    assert!(methods.len() > 10, "{methods:?}");
    let mut missing = Vec::new();
    for row in places {
        let path = row[0].trim_matches('`');
        let mut found = Vec::new();
        if root().join(path).is_dir() {
            files(
                Path::new(path),
                &|name| name.ends_with(".rs") && name != "service.rs",
                &mut found,
            );
        } else {
            found.push(PathBuf::from(path));
        }
        let texts = found.iter().map(|file| read(&file.to_string_lossy()));
        let text: String = texts.collect();
        let pattern = row[1].split('`').nth(1).expect("what stands there");
        for method in &methods {
            let wanted = pattern
                .replace("{Method}", method)
                .replace("{method}", &snake(method));
            if !text.contains(&wanted) {
                missing.push(format!("{method}: {path} has no {wanted:?}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Whether `sentence` says that something has not run on a GPU.
fn denies(sentence: &str) -> bool {
    let said = |words: &[&str]| words.iter().any(|word| sentence.contains(word));
    let on_gpu = said(&[
        " on a GPU",
        " on a card",
        " on a real GPU",
        " on the H200",
        " on an H200",
    ]);
    let not = said(&[
        "not run",
        "not yet",
        "not been run",
        "not measured",
        "Nothing of this",
        "None of this",
        "No engine",
    ]);
    let only_virtual = said(&["on the virtual GPU only", "on the virtual GPU alone"]);
    (on_gpu && not) || only_virtual
}

/// `text` as sentences, each on one line, without the marks of pages and comments.
fn sentences(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        line.trim_start_matches([' ', '*', '#', '/', '!', '-', '>'])
            .trim_end()
    });
    let mut joined = String::new();
    for line in lines {
        let breaks = line.is_empty() || line.starts_with('|') || line.starts_with(".SS");
        joined.push_str(if breaks { ". " } else { " " });
        joined.push_str(line);
    }
    joined.split(". ").map(str::to_owned).collect()
}

/// Whether `sentence` has `word`, in small letters or capitals.
fn names(sentence: &str, word: &str) -> bool {
    sentence.to_lowercase().contains(&word.to_lowercase())
}

/// What `path` says to its readers: a page as a whole, of a program's source its documentation.
fn said(path: &Path) -> String {
    let text = read(&path.to_string_lossy());
    if path.extension().is_none_or(|name| name != "rs") {
        return text;
    }
    let lines = text.lines().map(str::trim_start);
    let documents = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    lines.filter(documents).collect::<Vec<_>>().join("\n")
}

/// P-EQUIPMENT-11: what a page says has not run is in the list of what has not.
#[test]
fn no_page_denies_what_ran_on_a_gpu() {
    let page = read("tests/hardware/README.md");
    let rows = table(section(&page, "## What has not run on a GPU"));
    let words: Vec<_> = rows.iter().filter_map(|row| row.get(1)).collect();
    assert!(words.iter().any(|word| **word == "SGLang"), "{words:?}");
    let mut found = Vec::new();
    for place in ["README.md", "SECURITY.md"] {
        found.push(PathBuf::from(place));
    }
    let is_page = |name: &str| {
        [".md", ".5", ".7", ".py", ".rs"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    for place in [
        "agent/man",
        "agent/src",
        "docs",
        "interposer/engines",
        "scripts/examples",
    ] {
        files(Path::new(place), &is_page, &mut found);
    }
    let dated = |path: &PathBuf| path.starts_with("docs/results") || path.starts_with("docs/adr");
    found.retain(|path| !dated(path));
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in &found {
        for sentence in sentences(&said(path)) {
            if denies(&sentence) {
                seen += 1;
                if !words.iter().any(|word| names(&sentence, word)) {
                    wrong.push(format!("{}: {sentence}", path.display()));
                }
            }
        }
    }
    assert!(seen > 0, "no page says what has not run");
    assert!(
        wrong.is_empty(),
        "these deny what ran, or name nothing: {wrong:#?}"
    );
    assert!(denies("None of this has run on a card yet"));
    assert!(denies(
        "Engines that share memory have run on the virtual GPU only; a LoRA also elsewhere"
    ));
    assert!(!denies("A LoRA was trained on an H200"));
}

/// P-EQUIPMENT-12: each alert points to its section of the runbook, which says what it means, how to look and what to do.
#[test]
fn every_alert_has_a_section_of_the_runbook() {
    let (alerts, runbook) = (
        read("scripts/monitoring/alerts.yml"),
        read("docs/runbook.md"),
    );
    let names: Vec<_> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in &names {
        let part = section(&runbook, &format!("## {name}"));
        for word in ["**Means.**", "**Look.**", "**Do.**"] {
            assert!(part.contains(word), "{name} has no {word}");
        }
        let (_, rule) = alerts
            .split_once(&format!("- alert: {name}\n"))
            .expect("the alert");
        let rule = rule.split("- alert:").next().expect("a rule");
        let url = format!("runbook.md#{}\"", name.to_lowercase());
        assert!(rule.contains(&url), "{name} has no runbook_url to {url}");
    }
    for heading in runbook.lines().filter_map(|line| line.strip_prefix("## ")) {
        assert!(names.contains(&heading), "{heading} is no alert");
    }
}

/// What stands between backticks in `page`, outside of its blocks of code.
fn quoted(page: &str) -> Vec<&str> {
    let blocks = page.split("```").step_by(2);
    let spans = blocks.flat_map(|text| text.split('`').skip(1).step_by(2));
    spans.collect()
}

/// P-EQUIPMENT-22: each path that a guide names is there.
#[test]
fn every_path_that_the_guides_name_is_there() {
    const TOPS: [&str; 7] = [
        "agent/",
        "docs/",
        "driver-patch/",
        "interposer/",
        "proto/",
        "scripts/",
        "tests/",
    ];
    let (mut seen, mut missing) = (0, Vec::new());
    for page in ["CONTRIBUTING.md", "docs/architecture.md"] {
        let text = read(page);
        for span in quoted(&text) {
            let path = span.split_whitespace().next().unwrap_or_default();
            if TOPS.iter().any(|top| path.starts_with(top)) {
                seen += 1;
                if !root().join(path).exists() {
                    missing.push(format!("{page}: {path}"));
                }
            }
        }
    }
    assert!(seen > 50, "the pages name {seen} paths");
    assert!(missing.is_empty(), "not there: {missing:#?}");
}

/// P-EQUIPMENT-22: the table of the policy's files has each of them.
#[test]
fn every_file_of_policy_is_in_its_table() {
    let head = read("agent/policy/src/lib.rs");
    let rows: Vec<_> = head
        .lines()
        .filter(|line| line.starts_with("//! |"))
        .collect();
    let mut missing = Vec::new();
    for entry in fs::read_dir(root().join("agent/policy/src")).expect("readable") {
        let name = entry.expect("readable").file_name();
        let name = name.to_string_lossy();
        let Some(module) = name.strip_suffix(".rs") else {
            continue;
        };
        if module != "lib" && !rows.iter().any(|row| row.contains(&format!("`{module}`"))) {
            missing.push(module.to_owned());
        }
    }
    assert!(rows.len() > 10, "no table");
    assert!(
        missing.is_empty(),
        "no row says what these decide: {missing:?}"
    );
}
