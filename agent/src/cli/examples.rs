//! An example for every command, at the end of its help and of its manual page.
//!
//! They are a table beside the commands and not text within them, so that a test can have each of them
//! parsed.

use clap::Command;

/// The words of a command behind `tidegate`, and an example of it.
const EXAMPLES: [(&str, &str); 38] = [
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
    use crate::cli::{Cli, command};
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
}
