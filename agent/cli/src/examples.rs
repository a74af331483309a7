//! An example for every command, at the end of its help and of its manual page.
//!
//! They are a table beside the commands and not text within them, so that a test can have each of them
//! parsed.

use clap::Command;

/// The words of a command behind `tidegate`, and an example of it.
const EXAMPLES: [(&str, &str); 44] = [
    (
        "",
        "tidegate run --offline --job nightly -- python batch.py",
    ),
    ("status", "tidegate status"),
    ("top", "tidegate top --sort launches"),
    ("events", "tidegate events --follow --kind preempted,woken"),
    ("report", "tidegate report --since 7d"),
    ("log-level", "tidegate log-level debug"),
    ("pause", "tidegate pause nightly"),
    ("resume", "tidegate resume nightly"),
    ("drain", "tidegate drain"),
    ("undrain", "tidegate undrain"),
    ("set", "tidegate set gate.cooldown=20ms"),
    ("reload", "tidegate reload"),
    ("explain", "tidegate explain pid 4711"),
    ("explain pid", "tidegate explain pid 4711 --asking online"),
    ("explain handle", "tidegate explain handle 12 --job nightly"),
    ("explain lease", "tidegate explain lease tune"),
    ("hooks", "tidegate hooks 4711"),
    ("trace", "tidegate trace --seconds 30 --output node.json"),
    (
        "run",
        "tidegate run --online --wait 30s -- vllm serve Qwen/Qwen3-8B",
    ),
    (
        "finetune",
        "tidegate finetune --model models/llama --data train.jsonl --lora r=16,alpha=32 --out adapters/support",
    ),
    (
        "tune",
        "tidegate tune --engine /run/tidegate/tune.sock --data train.jsonl --name support --out adapters/support",
    ),
    (
        "tune serve",
        "tidegate tune serve --engine /run/tidegate/tune.sock --keys keys.toml --state /var/lib/tidegate/tune",
    ),
    ("demo", "tidegate demo --seconds 20 --html demo.html"),
    ("try", "tidegate try --kernel 500us -- ./batch --steps 1000"),
    (
        "replay",
        "tidegate replay --trace requests.csv --html report.html",
    ),
    (
        "bench",
        "tidegate bench --target http://localhost:8000 --rate 4 --html bench.html",
    ),
    ("doctor", "tidegate doctor"),
    ("config", "tidegate config dump --origin"),
    (
        "config check",
        "tidegate config check /etc/tidegate/agent.toml",
    ),
    ("config dump", "tidegate config dump --origin"),
    (
        "cdi",
        "tidegate cdi generate --output /etc/cdi/tidegate.json",
    ),
    (
        "cdi generate",
        "tidegate cdi generate --output /etc/cdi/tidegate.json",
    ),
    ("place", "tidegate place show"),
    ("place show", "tidegate place show --since 1d"),
    ("place publish", "tidegate place publish --engine slurm"),
    ("place profile", "tidegate place profile check"),
    (
        "place profile check",
        "tidegate place profile check /etc/tidegate/profiles.d/summarise.toml",
    ),
    (
        "place profile from-replay",
        "tidegate place profile from-replay summarise --model qwen2.5-7b --gpu h200",
    ),
    ("place profile fit", "tidegate place profile fit nightly"),
    ("place tend", "tidegate place tend --dry-run"),
    ("place claim", "tidegate place claim --release"),
    (
        "place slurm-conf",
        "tidegate place slurm-conf --nodes gpu[01-20] --gpus 8",
    ),
    ("completions", "tidegate completions bash"),
    ("release", "tidegate release"),
];

/// The command line, with an example for every command.
#[must_use]
pub fn with(command: Command) -> Command {
    with_examples(command, "")
}

fn with_examples(mut command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for name in names {
        let below = format!("{path} {name}").trim_start().to_owned();
        command = command.mut_subcommand(&name, |sub| with_examples(sub, &below));
    }
    let Some((_, example)) = EXAMPLES.iter().find(|(known, _)| *known == path) else {
        return command;
    };
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.map_or_else(String::new, |text| format!("\n\n{text}"));
    command.after_help(format!("Example:\n  {example}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, command};
    use clap::FromArgMatches as _;

    fn visible(command: &Command, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let below = format!("{path} {}", sub.get_name()).trim_start().to_owned();
            visible(sub, &below, found);
        }
    }

    /// P-OPERATE-16: every command's help has an example, and every example is understood.
    #[test]
    fn every_command_has_an_example_that_parses() {
        let mut paths = Vec::new();
        visible(&command(), "", &mut paths);
        for path in &paths {
            let mut words = vec!["tidegate"];
            words.extend(path.split_whitespace());
            words.push("--help");
            let help = command().try_get_matches_from(words).expect_err("help");
            assert!(
                help.to_string().contains("Example:\n  tidegate"),
                "`tidegate {path} --help`"
            );
        }
        for (path, example) in EXAMPLES {
            assert!(
                paths.iter().any(|known| known == path),
                "there is no `{path}`"
            );
            let parsed = command().try_get_matches_from(example.split_whitespace());
            let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
            assert!(parsed.is_ok(), "{example}: {}", parsed.expect_err("why"));
            assert!(
                path.is_empty() || example.starts_with(&format!("tidegate {path}")),
                "{example}"
            );
        }
    }

    /// The calls of `tidegate` in the code of a page: after `sudo`, within `kubectl exec` and `systemd-run`, and in
    /// pipes.
    fn shown(page: &str) -> Vec<Vec<String>> {
        let mut is_code = false;
        let mut code = String::new();
        for line in page.lines() {
            match line.trim() {
                mark if mark.starts_with("```") || matches!(mark, ".EX" | ".EE") => {
                    is_code = !is_code
                }
                _ if is_code => code += &format!("{line}\n"),
                _ => {}
            }
        }
        let code = code.replace("\\\n", " ").replace("\\-", "-");
        let mut calls = Vec::new();
        for line in code.lines() {
            let line = line.split(" #").next().unwrap_or_default();
            for part in line.split("&&").flat_map(|part| part.split('|')) {
                let words: Vec<&str> = part.split_whitespace().collect();
                let at = words.iter().position(|word| *word == "tidegate");
                let before = |at: usize| {
                    words[..at]
                        .iter()
                        .all(|word| word.starts_with('-') || *word == "sudo")
                };
                let is_call = |at: usize| {
                    before(at)
                        || words[at - 1] == "--"
                        || words[0] == "sudo"
                        || words[0] == "systemd-run"
                };
                if let Some(at) = at.filter(|&at| is_call(at)) {
                    calls.push(words[at..].iter().map(|word| (*word).to_owned()).collect());
                }
            }
        }
        calls
    }

    /// P-OPERATE-20: every call of `tidegate` that a page for users shows is one that it understands.
    #[test]
    fn every_command_that_a_page_shows_parses() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (page, least) in [
            ("README.md", 5),
            ("agent/replay/README.md", 1),
            ("docs/results/2026-11-22-gpreempt-uvm.md", 2),
            ("docs/results/2026-11-24-placement.md", 2),
            ("docs/results/2026-11-24-trainers.md", 2),
            ("docs/results/2026-11-26-recompute-tax.md", 1),
            ("docs/results/2026-11-27-drawn-scenarios.md", 2),
            ("agent/man/tidegate.7", 2),
            ("scripts/examples/engines/systemd.md", 5),
            ("scripts/examples/engines/kubernetes.md", 2),
            ("interposer/engines/README.md", 2),
        ] {
            let text = std::fs::read_to_string(root.join(page)).expect("the page is committed");
            let calls = shown(&text);
            assert!(calls.len() >= least, "{page} shows {calls:?}");
            for call in calls {
                // What the shell puts in place of a command is a number here.
                let line = call.join(" ");
                let line = match (line.find("\"$("), line.rfind(")\"")) {
                    (Some(from), Some(to)) => format!("{}4711{}", &line[..from], &line[to + 2..]),
                    _ => line,
                };
                let parsed = command().try_get_matches_from(line.split_whitespace());
                let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
                assert!(
                    parsed.is_ok(),
                    "{page}: {line}: {}",
                    parsed.expect_err("why")
                );
            }
        }
    }
}
