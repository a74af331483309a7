//! What the pages show that users copy from: configurations, and commands of systemd.

use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_tests::{TempDir, built};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the page is committed")
}

/// The blocks of a page that are fenced and named so, set in as far as their fence.
fn blocks(page: &str, name: &str) -> Vec<String> {
    let (mut blocks, mut open) = (Vec::new(), None);
    for line in page.lines() {
        let indent = line.len() - line.trim_start().len();
        match (&mut open, line.trim().strip_prefix("```")) {
            (None, Some(named)) => open = Some((named == name, indent, String::new())),
            (Some(_), Some("")) => {
                let closed = open.take().filter(|(wanted, ..)| *wanted);
                blocks.extend(closed.map(|(_, _, text)| text));
            }
            (Some((_, from, text)), _) => {
                text.push_str(line.get(*from..).unwrap_or_default());
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The configuration in the manifest of the agent.
fn of_the_manifest() -> String {
    let manifest = page("scripts/examples/kubernetes.yaml");
    let (_, rest) = manifest
        .split_once("  agent.toml: |\n")
        .expect("a configuration");
    let lines = rest.lines().map_while(|line| line.strip_prefix("    "));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// P-OPERATE-20: what a page tells to add to a file makes a file that the agent takes.
#[test]
fn the_agent_takes_what_the_pages_show() {
    let installed = page("scripts/packaging/agent.toml");
    let dir = TempDir::new();
    for (name, file) in [
        ("README.md", &installed),
        ("scripts/examples/engines/systemd.md", &installed),
        ("scripts/examples/engines/kubernetes.md", &of_the_manifest()),
    ] {
        let shown = blocks(&page(name), "toml");
        assert!(!shown.is_empty(), "{name} shows no configuration");
        let path = dir.path().join("agent.toml");
        std::fs::write(&path, format!("{file}\n{}", shown.concat()))
            .expect("the directory is ours");
        let output = Command::new(built("tidegate"))
            .args(["config", "check"])
            .arg(&path)
            .output()
            .expect("tidegate starts");
        assert!(output.status.success(), "{name}: {output:?}");
    }
}

/// The commands of a page, each on one line and without its comment.
fn commands(page: &str) -> Vec<Vec<String>> {
    let text = blocks(page, "").concat().replace("\\\n", " ");
    let bare = text
        .lines()
        .map(|line| line.split(" #").next().unwrap_or_default());
    let words = bare.map(|line| line.split_whitespace().map(str::to_owned).collect());
    words.filter(|words: &Vec<_>| !words.is_empty()).collect()
}

fn help(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--help").output();
    if output.is_err() {
        eprintln!("SKIPPED: {program} is not installed (Debian package systemd)");
    }
    output
        .ok()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// P-OPERATE-20: systemd has every option that the page gives it, and takes the services that it starts.
#[test]
fn systemd_takes_the_services_that_the_page_starts() {
    let dir = TempDir::new();
    let mut started = 0;
    for words in commands(&page("scripts/examples/engines/systemd.md")) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = words.strip_prefix(&["sudo"]).unwrap_or(&words);
        let (program, rest) = words.split_first().expect("no empty line");
        if !matches!(*program, "systemd-run" | "systemctl" | "journalctl") {
            continue;
        }
        let Some(help) = help(program) else { return };
        let options = rest
            .iter()
            .take_while(|word| **word != "|" && **word != "tidegate");
        for option in options.filter(|word| word.starts_with('-')) {
            let name = option.split('=').next().unwrap_or_default();
            let is_known = help.split_whitespace().any(|word| {
                let word = word.split(['=', '[']).next().unwrap_or_default();
                word == name
            });
            assert!(is_known, "{program} has no {name}: {words:?}");
        }
        if *program == "systemd-run" {
            verify(dir.path(), rest);
            started += 1;
        }
    }
    assert_eq!(started, 2, "two engines are started");
}

/// Looks at the service that systemd-run makes of these words.
fn verify(dir: &Path, words: &[&str]) {
    let command = words.iter().position(|word| !word.starts_with('-'));
    let (options, command) = words.split_at(command.expect("a command"));
    let mut name = "engine";
    let mut unit = String::from("[Service]\n");
    for option in options {
        let (option, value) = option.split_once('=').expect("each has a value");
        match option {
            "--unit" => name = value,
            "--slice" => unit += &format!("Slice={value}\n"),
            "--uid" => unit += &format!("User={value}\n"),
            "--working-directory" => unit += &format!("WorkingDirectory={value}\n"),
            other => panic!("what does systemd-run make of {other}?"),
        }
    }
    assert_eq!(command.first(), Some(&"tidegate"), "{command:?}");
    let (program, words) = (built("tidegate"), command[1..].join(" "));
    unit += &format!("ExecStart={} {words}\n", program.display());
    let file = dir.join(format!("{name}.service"));
    std::fs::write(&file, &unit).expect("the directory is ours");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
        .expect("it is where systemd-run is");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mine: Vec<_> = said.lines().filter(|line| line.contains(name)).collect();
    assert!(
        output.status.success() && mine.is_empty(),
        "{unit}{mine:#?}"
    );
}
