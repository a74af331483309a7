//! The probes of a node, what they found, and what they left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::{Node, Running, built};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind};

/// The probes on this node, not started.
pub fn probes(node: &Node, arguments: &[&str]) -> Command {
    let _ = (built("libtidegate.so"), built("libvgpu_rm.so"));
    let mut command = Command::new(built("tidegate-probe"));
    command
        .args(["run", "--quick", "--long", "1", "--output", "json"])
        .arg("--device")
        .arg(format!("virtual={}", node.vgpu_dir().display()))
        .args(arguments)
        .env("TMPDIR", node.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

/// What a run found.
pub struct Found {
    pub lines: Vec<Value>,
}

impl Found {
    pub fn by(node: &Node, arguments: &[&str]) -> Self {
        Self::from_command(&mut probes(node, arguments))
    }

    pub fn from_command(command: &mut Command) -> Self {
        let output = Running::start("tidegate-probe", command).finish();
        let text = String::from_utf8(output.stdout).expect("JSON is text");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")));
        Self {
            lines: lines.collect(),
        }
    }

    /// Verdict and reason of a probe.
    #[track_caller]
    pub fn verdict(&self, probe: &str) -> (&str, &str) {
        let line = self
            .lines
            .iter()
            .find(|line| line["kind"] == "verdict" && line["probe"] == probe);
        let line = line.unwrap_or_else(|| panic!("{probe} has no verdict"));
        let text = |key: &str| line[key].as_str().expect("a text");
        (text("verdict"), text("reason"))
    }

    #[track_caller]
    pub fn expect(&self, probe: &str, verdict: &str, reason: &str) {
        let found = self.verdict(probe);
        assert!(
            found.0 == verdict && found.1.contains(reason),
            "{probe} is {found:?}, not {verdict} with {reason:?}\n{:#?}",
            self.of(probe)
        );
    }

    pub fn of(&self, probe: &str) -> Vec<&Value> {
        let of = |line: &&Value| line["probe"] == probe;
        self.lines.iter().filter(of).collect()
    }

    #[track_caller]
    pub fn figure(&self, probe: &str, name: &str) -> f64 {
        let line = self.of(probe).into_iter().find(|line| line["name"] == name);
        let line = line.unwrap_or_else(|| panic!("{probe} has no {name}: {:#?}", self.of(probe)));
        line["value"].as_f64().expect("a number")
    }

    /// What the probe's verdict says of a guess of which `part` is a part.
    #[track_caller]
    pub fn judged(&self, probe: &str, part: &str, found: &str) {
        let lines = self.of(probe);
        let guesses = lines.iter().filter_map(|line| line["guesses"].as_array());
        let there = guesses.flatten().any(|one| {
            let words = one["guess"].as_str().expect("a guess in words");
            words.contains(part) && one["found"] == found
        });
        assert!(there, "{probe}: {part:?} is not {found}: {lines:#?}");
    }

    #[track_caller]
    pub fn note(&self, probe: &str, part: &str) {
        let notes = self.of(probe);
        let there = notes.iter().any(|line| {
            line["text"]
                .as_str()
                .is_some_and(|text| text.contains(part))
        });
        assert!(there, "{probe} does not note {part:?}: {notes:#?}");
    }
}

/// Channels that were disabled last, by the device's history and its state: to the end of the history, or to
/// their own. A channel that is freed while it is disabled can stall a real driver, so it counts.
pub fn left_disabled(node: &Node) -> Vec<(u32, u32)> {
    let records = history::read(&node.vgpu_dir()).expect("the history is readable");
    let mut disabled = BTreeSet::new();
    for record in records {
        let pair = (record.client, record.object);
        match record.kind {
            Kind::DisableEnd => {
                disabled.insert(pair);
            }
            Kind::EnableEnd => {
                disabled.remove(&pair);
            }
            _ => {}
        }
    }
    let control = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let now = control.channels().expect("the device answers");
    disabled.extend(
        now.iter()
            .filter(|channel| channel.disabled)
            .map(|channel| (channel.client, channel.handle)),
    );
    disabled.into_iter().collect()
}

/// Channels of a context of the virtual GPU.
pub const CHANNELS: usize = 40;

pub fn disables(node: &Node) -> usize {
    let records = history::read(&node.vgpu_dir()).expect("the history is readable");
    let ends = records.iter().filter(|r| r.kind == Kind::DisableEnd);
    ends.count()
}

/// Processes of the probes on this node, by the directory they work in; a dead one that nobody has waited
/// for yet is none.
pub fn processes(node: &Node) -> BTreeMap<u32, String> {
    let mark = node.dir().display().to_string();
    let entries = std::fs::read_dir("/proc")
        .expect("there is /proc")
        .flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let text = |name: &str| {
                let bytes = std::fs::read(entry.path().join(name)).ok()?;
                Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
            };
            let line = text("cmdline")?;
            let ours = line.contains("tidegate-probe")
                && (line.contains(&mark) || text("environ")?.contains(&mark));
            ours.then_some((pid, line))
        })
        .collect()
}
