//! `tidegate doctor` for people and for programs.
//!
//! The table is text that wraps by itself: the result and the name of a check in two columns, what was
//! found beside them, and what to do below it behind an arrow.

use crate::agent::{Agent, Unreachable, report, runtime};
use crate::doctor::collect::{self, Options};
use crate::doctor::facts::{self, Facts};
use crate::doctor::{self, CHECKS, Check, Group, Outcome};
use crate::print::{Output, colours, print, write};
use crate::probe;
use crate::values::device_of;
use crate::values::known;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_agent::host::rundir;
use tidegate_agent::plain;
use tidegate_driver::device::Device;
use tidegate_text::screen::terminal_width;

/// A stopped agent accepts and never answers.
const AGENT_PATIENCE: Duration = Duration::from_secs(3);
/// Used where the terminal does not say.
const WIDTH: usize = 100;
/// Narrower than this, the columns have no room.
const NARROWEST: usize = 60;

/// What to look at, and how to print it.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The device: "real" or "virtual=DIR" (default: what the last agent used).
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The shim of the virtual device (default: beside this program).
    #[arg(long, value_name = "PATH")]
    vgpu_shim: Option<PathBuf>,
    /// The agent's configuration. A file that is named here must exist.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The library to check (default: in the usual places).
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Only these checks, comma-separated; with --probe, only these probes.
    #[arg(long, value_name = "ID", value_delimiter = ',', hide_possible_values = true,
        value_parser = known(CHECKS.map(|(id, _)| id), id))]
    only: Vec<String>,
    #[command(flatten)]
    probe: probe::Arguments,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// A check's id, or what may be a probe's.
fn id(text: &str) -> Result<String, String> {
    if CHECKS.iter().any(|(id, _)| *id == text) || probe::is_id(text) {
        return Ok(text.to_owned());
    }
    let known = CHECKS.map(|(id, _)| id).join(", ");
    Err(format!("the checks are {known}; the probes P1, P2 ..."))
}

/// Doctor could not begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot inspect this node")]
pub struct NotStarted(#[source] anyhow::Error);

/// Looks at the node and prints what it finds; the exit code.
pub(crate) fn run(agent: &Agent, arguments: &Arguments) -> anyhow::Result<u8> {
    let last = rundir::holder(&agent.run_dir).map(|holder| holder.device);
    let device = device_of(arguments.device.as_deref(), last).map_err(NotStarted)?;
    if arguments.probe.probe {
        let json = arguments.output == Output::Json;
        return Err(NotStarted(probe::start(
            &arguments.probe,
            &device,
            arguments.vgpu_shim.as_deref(),
            &arguments.only,
            arguments.library.as_deref(),
            json,
        ))
        .into());
    }
    if let Some(id) = arguments.only.iter().find(|id| probe::is_id(id)) {
        return Err(NotStarted(anyhow::anyhow!("{id} is a probe: add --probe")).into());
    }
    let facts = collect(agent, arguments, device).map_err(NotStarted)?;
    let mut checks = doctor::judge(&facts);
    for check in &mut checks {
        check.evidence = plain::lines(&check.evidence);
    }
    if !arguments.only.is_empty() {
        checks.retain(|check| arguments.only.iter().any(|id| id == check.id));
    }
    match arguments.output {
        Output::Table => {
            let width = terminal_width().map_or(WIDTH, usize::from);
            let text = table(&facts, &checks, width.max(NARROWEST), colours());
            // Painted, and what tenants wrote is cleaned above.
            write(text.as_bytes())?;
        }
        Output::Json => print(&format!("{:#}\n", as_json(&facts, &checks)))?,
    }
    Ok(doctor::exit_code(&checks))
}

fn collect(agent: &Agent, arguments: &Arguments, device: Device) -> anyhow::Result<Facts> {
    let wants = |of_library: bool| {
        arguments.only.is_empty()
            || CHECKS.iter().any(|(id, group)| {
                (*group == Group::Library) == of_library
                    && arguments.only.iter().any(|only| only == id)
            })
    };
    let node = if wants(false) {
        // From here on this process speaks to that device.
        device.enter(arguments.vgpu_shim.as_deref())?;
        Some(ask_agent(agent)?)
    } else {
        None
    };
    let options = Options {
        device,
        run_dir: agent.run_dir.clone(),
        config: arguments.config.clone(),
        library: arguments.library.clone(),
    };
    let node = node.map(|agent| collect::node(&options, agent));
    Ok(collect::facts(&options, node, wants(true)))
}

fn ask_agent(agent: &Agent) -> anyhow::Result<facts::Agent> {
    let asked = runtime()?
        .block_on(async { tokio::time::timeout(AGENT_PATIENCE, report(agent, false)).await });
    Ok(match asked {
        Err(_) => facts::Agent::Silent(format!("no answer in {} s", AGENT_PATIENCE.as_secs())),
        Ok(Ok(status)) => facts::Agent::Answers(Box::new(status)),
        Ok(Err(error)) => match error.downcast_ref::<Unreachable>() {
            Some(Unreachable::Absent(_)) => facts::Agent::Absent,
            _ => facts::Agent::Silent(format!("{error:#}")),
        },
    })
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Skip => "skip",
        Outcome::Pass => "pass",
        Outcome::Warn => "warn",
        Outcome::Fail => "fail",
    }
}

fn counted(checks: &[Check], outcome: Outcome) -> usize {
    checks
        .iter()
        .filter(|check| check.outcome == outcome)
        .count()
}

fn as_json(facts: &Facts, checks: &[Check]) -> Value {
    let summary: serde_json::Map<String, Value> =
        [Outcome::Pass, Outcome::Warn, Outcome::Fail, Outcome::Skip]
            .map(|outcome| (word(outcome).to_owned(), counted(checks, outcome).into()))
            .into_iter()
            .collect();
    json!({
        "version": facts.version,
        "device": facts.device.to_string(),
        "summary": summary,
        "checks": checks.iter().map(|check| json!({
            "id": check.id,
            "group": check.group().name(),
            "result": word(check.outcome),
            "evidence": check.evidence,
            "remedy": check.remedy,
        })).collect::<Vec<_>>(),
    })
}

fn painted(outcome: Outcome, colours: bool) -> String {
    let text = word(outcome).to_uppercase();
    let colour = match outcome {
        Outcome::Skip => "2",
        Outcome::Pass => "32",
        Outcome::Warn => "33",
        Outcome::Fail => "1;31",
    };
    if colours {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text
    }
}

/// All checks by group, at most `width` columns wide.
fn table(facts: &Facts, checks: &[Check], width: usize, colours: bool) -> String {
    let mut text = String::new();
    let device = match &facts.device {
        Device::Real => "this machine's GPUs".to_owned(),
        Device::Virtual(dir) => format!(
            "the virtual GPU in {}: it keeps the driver's rules, it is not hardware",
            dir.display()
        ),
    };
    let title = format!("tidegate {} looks at {device}", facts.version);
    for line in wrapped(&title, width) {
        let _ = writeln!(text, "{line}");
    }
    let names = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let indent = 2 + 4 + 2 + names + 2;
    let mut group = None;
    for check in checks {
        if group != Some(check.group()) {
            group = Some(check.group());
            let _ = writeln!(text, "\n{}", check.group().name());
        }
        let room = width.saturating_sub(indent);
        let mut lines = wrapped(&check.evidence, room);
        for (at, line) in wrapped(check.remedy.as_deref().unwrap_or_default(), room - 3)
            .into_iter()
            .enumerate()
        {
            lines.push(format!("{} {line}", if at == 0 { "->" } else { "  " }));
        }
        for (at, line) in lines.iter().enumerate() {
            if at == 0 {
                let result = painted(check.outcome, colours);
                let _ = writeln!(text, "  {result}  {:<names$}  {line}", check.id);
            } else {
                let _ = writeln!(text, "{:indent$}{line}", "");
            }
        }
    }
    let _ = writeln!(
        text,
        "\n{} passed, {} warned, {} failed, {} skipped",
        counted(checks, Outcome::Pass),
        counted(checks, Outcome::Warn),
        counted(checks, Outcome::Fail),
        counted(checks, Outcome::Skip)
    );
    text
}

/// `text` in lines of at most `width` characters, broken between words; a longer word, such as a path, stands alone and
/// goes on in the next line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => {
                let letters: Vec<char> = word.chars().collect();
                let pieces = letters.chunks(width.max(1)).map(String::from_iter);
                lines.extend(pieces);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/opt/a/place/that/is/as/long/as/those/of/build/directories/may/well/be/and/longer/than/a/line/lib.so";

    fn checks() -> Vec<Check> {
        let check = |id, outcome, evidence: &str, remedy: Option<&str>| Check {
            id,
            outcome,
            evidence: evidence.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let long = "one two three four five six seven eight nine ten eleven twelve thirteen";
        vec![
            check("kernel", Outcome::Pass, "6.18", None),
            check("driver-version", Outcome::Warn, long, Some(long)),
            check("library", Outcome::Fail, PATH, Some("build it")),
        ]
    }

    fn facts() -> Facts {
        Facts {
            device: Device::Virtual("/tmp/gpu".into()),
            version: "0.1.0",
            node: None,
            library: None,
        }
    }

    /// P-OPERATE-16: no line is wider than the terminal, and nothing is cut.
    #[test]
    fn no_line_is_wider_than_the_terminal_and_nothing_is_cut() {
        for width in [60, 80, 120] {
            let text = table(&facts(), &checks(), width, false);
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
            assert_eq!(text.matches("thirteen").count(), 2, "{text}");
            let joined: String = text.split_whitespace().collect();
            assert!(joined.contains(PATH), "{text}");
        }
        let text = table(&facts(), &checks(), 80, false);
        assert!(text.contains("virtual GPU in /tmp/gpu"), "{text}");
        assert!(
            text.contains("\ndriver\n  WARN  driver-version  one two"),
            "{text}"
        );
        assert!(
            text.contains("\n                        -> one two"),
            "{text}"
        );
        assert!(
            text.ends_with("1 passed, 1 warned, 1 failed, 0 skipped\n"),
            "{text}"
        );
        assert!(!text.contains('\x1b'));
        assert!(table(&facts(), &checks(), 80, true).contains("\x1b[1;31mFAIL\x1b[0m  library"));
    }

    #[test]
    fn programs_read_every_check_with_its_group() {
        let json = as_json(&facts(), &checks());
        assert_eq!(json["device"], "virtual=/tmp/gpu");
        assert_eq!(json["summary"]["warn"], 1);
        assert_eq!(json["checks"][1]["group"], "driver");
        assert_eq!(json["checks"][1]["result"], "warn");
        assert_eq!(json["checks"][0]["remedy"], Value::Null);
    }
}
