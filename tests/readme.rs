//! `docs/promises.md` names each promise with an id and where it is kept; the tests and scripts there carry the id. Both
//! are compared here, so that no promise is without a test and no test keeps a promise that nobody finds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where tests and scripts are, from the root.
const PLACES: [&str; 6] = [
    "agent",
    "driver-patch",
    "interposer",
    "proto",
    "scripts",
    "tests",
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

/// The ids in `text`: `P`, an area in capitals and a number, joined by dashes.
fn ids(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let is_id = |word: &&str| {
        let parts: Vec<_> = word.split('-').collect();
        let [first, area, number] = parts[..] else {
            return false;
        };
        let all =
            |text: &str, fits: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|b| fits(&b));
        first == "P" && all(area, u8::is_ascii_uppercase) && all(number, u8::is_ascii_digit)
    };
    words.filter(is_id).map(str::to_owned).collect()
}

/// `text` without what stands in brackets, which explains and names no keeper.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_usize;
    text.chars()
        .filter(|&c| {
            depth += usize::from(c == '(');
            let outside = depth == 0;
            depth -= usize::from(c == ')' && depth > 0);
            outside
        })
        .collect()
}

/// `a/{b,c}.rs` as its two paths.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let (names, after) = rest.split_once('}').expect("a closing brace");
    let names = names.split(',');
    names.map(|name| format!("{before}{name}{after}")).collect()
}

/// The files and directories that a cell of a table names, from the root.
fn named(cell: &str) -> Vec<PathBuf> {
    let cell = without_brackets(cell);
    let quoted = cell.split('`').skip(1).step_by(2);
    let first = quoted.filter_map(|text| text.split_whitespace().next());
    let is_path =
        |text: &&str| text.contains('/') || text.ends_with(".rs") || text.ends_with(".py");
    let paths = first.filter(is_path).flat_map(expanded);
    let from_root = |path: String| match path.strip_prefix("../") {
        Some(path) => PathBuf::from(path),
        None if path.starts_with("scripts/") => PathBuf::from(path),
        None => Path::new("tests").join(path),
    };
    paths.map(from_root).collect()
}

/// One row of a table of promises.
struct Row {
    id: String,
    keepers: Vec<PathBuf>,
    /// Whether the row itself says that no test keeps it.
    untested: bool,
}

/// The cells of the tables' rows.
fn cells() -> Vec<Vec<String>> {
    let readme = fs::read_to_string(root().join("docs/promises.md")).expect("it is committed");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = |row: &str| {
        row.trim_end_matches('|')
            .split(" | ")
            .map(str::to_owned)
            .collect()
    };
    rows.map(cells).collect()
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for cells in cells() {
        let id = cells.first().map(String::as_str).unwrap_or_default();
        if ids(id) == [id] {
            let keeper = cells.last().expect("a cell");
            rows.push(Row {
                id: id.to_owned(),
                keepers: named(keeper),
                untested: keeper.starts_with("no test"),
            });
        }
    }
    rows
}

/// Files below `path`, from the root.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    let at = root().join(path);
    if at.is_file() {
        found.push(path.to_owned());
        return;
    }
    let entries = fs::read_dir(&at).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for entry in entries {
        let name = entry.expect("readable").file_name();
        let name = name.to_string_lossy();
        if name != "target" && name != "corpus" && !name.starts_with('.') && !name.ends_with(".md")
        {
            files(&path.join(&*name), found);
        }
    }
}

/// The ids in the documentation of the tests of a Rust file, and in the comments of any other.
fn carried(path: &Path) -> BTreeSet<String> {
    let Ok(text) = fs::read_to_string(root().join(path)) else {
        return BTreeSet::new();
    };
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let mut found = BTreeSet::new();
    for (at, line) in lines.iter().enumerate() {
        let comment = if path.extension().is_some_and(|name| name == "rs") {
            line.strip_prefix("/// ")
        } else {
            line.strip_prefix('#')
        };
        let ids = ids(comment.unwrap_or_default());
        if ids.is_empty() {
            continue;
        }
        if line.starts_with("///") {
            let mut item = lines[at..]
                .iter()
                .skip_while(|line| line.starts_with("///"));
            let attributes: Vec<_> = item
                .by_ref()
                .take_while(|line| line.starts_with("#["))
                .collect();
            assert!(
                attributes.iter().any(|line| line.contains("test")),
                "{}:{}: {ids:?} belongs to the documentation of a test",
                path.display(),
                at + 1
            );
        }
        found.extend(ids);
    }
    found
}

/// P-EQUIPMENT-7: tables and tests name the same promises.
#[test]
fn every_promise_is_in_the_tests_that_its_row_names() {
    let mut missing = Vec::new();
    for row in rows() {
        let Row {
            id,
            keepers,
            untested,
        } = row;
        assert!(
            !keepers.is_empty() || untested,
            "{id} names no file that keeps it"
        );
        for keeper in keepers {
            let mut below = Vec::new();
            files(&keeper, &mut below);
            let kept = below.iter().any(|file| carried(file).contains(&id));
            if !kept {
                missing.push(format!("{id} is not in {}", keeper.display()));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "not as docs/promises.md says: {missing:#?}"
    );
}

/// P-EQUIPMENT-7: tables and tests name the same promises.
#[test]
fn every_id_in_a_test_is_in_a_row_that_names_its_file() {
    let mut keepers: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for row in rows() {
        keepers.entry(row.id).or_default().extend(row.keepers);
    }
    let mut found = Vec::new();
    for place in PLACES {
        files(Path::new(place), &mut found);
    }
    let mut stray = Vec::new();
    for file in found {
        for id in carried(&file) {
            let named = keepers
                .get(&id)
                .is_some_and(|paths| paths.iter().any(|path| file.starts_with(path)));
            if !named {
                stray.push(format!("{id} in {}", file.display()));
            }
        }
    }
    assert!(
        stray.is_empty(),
        "in no row that names the file: {stray:#?}"
    );
}

/// P-EQUIPMENT-7: every file that a table names is there.
#[test]
fn every_file_that_a_table_names_is_there() {
    let mut seen = 0;
    for row in cells() {
        for path in named(row.last().expect("a cell")) {
            assert!(root().join(&path).exists(), "{} of {row:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} files are named");
}

/// The headings of a page as links name them: small letters, dashes for blanks, no punctuation.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Every page of the project, from the root.
fn pages(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(path)).expect("readable") {
        let entry = entry.expect("readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = path.join(&name);
        if entry.file_type().expect("readable").is_dir() {
            if name != "target" && !name.starts_with('.') {
                pages(&below, found);
            }
        } else if name.ends_with(".md") {
            found.push(below);
        }
    }
}

/// P-EQUIPMENT-9: every link of a page leads to a file that is there, and to a heading that it has.
#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut found = Vec::new();
    pages(Path::new(""), &mut found);
    let (mut seen, mut broken) = (0, Vec::new());
    for page in found {
        let text = fs::read_to_string(root().join(&page)).expect("readable");
        let outside_code: String = text.split('`').step_by(2).collect();
        let links = outside_code.split("](").skip(1);
        for link in links.filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = match file {
                "" => page.clone(),
                file => page.parent().unwrap_or(Path::new("")).join(file),
            };
            let known = match fs::read_to_string(root().join(&to)) {
                Ok(text) => heading.is_empty() || anchors(&text).contains(heading),
                Err(_) => heading.is_empty() && root().join(&to).exists(),
            };
            if !known {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 50, "only {seen} links are there");
    assert!(broken.is_empty(), "these lead nowhere: {broken:#?}");
}

/// P-EQUIPMENT-7: an id means one promise.
#[test]
fn no_table_has_an_id_twice() {
    let readme = fs::read_to_string(root().join("docs/promises.md")).expect("it is committed");
    for section in readme.split("\n## ") {
        let mut seen = BTreeSet::new();
        for id in section.lines().filter_map(|line| line.strip_prefix("| P-")) {
            let id = id.split(' ').next().expect("an id");
            assert!(seen.insert(id), "P-{id} stands twice");
        }
    }
}

/// P-EQUIPMENT-20: the picture that README opens with is what the command under it draws.
#[test]
fn the_picture_is_what_its_command_draws() {
    let readme = fs::read_to_string(root().join("README.md")).expect("it is committed");
    let command = readme
        .split('`')
        .find(|code| code.starts_with("tidegate replay") && code.contains("--picture"))
        .expect("README names the command");
    let mut words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let committed = words.pop().expect("a file");
    let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join("picture.svg");
    words.extend(drawn.to_str());
    let replay = Command::new(tidegate_tests::built("tidegate"))
        .args(&words)
        .output()
        .expect("the command is built");
    assert!(replay.status.success(), "{command}: {replay:?}");
    let read = |path: &Path| fs::read_to_string(path).expect("a picture");
    assert!(
        read(&drawn) == read(&root().join(committed)),
        "{committed} is not what `{command}` draws: draw it again, and look at it"
    );
}
