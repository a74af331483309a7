//! Manual pages and shell completions, made from what the programs themselves parse, so that they cannot tell
//! anything else. The pages that no program parses, agent.toml(5) and tidegate(7), are in `agent/man`.

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;
use tidegate_agent::arguments::Arguments;

/// The pages that every other page refers to.
const PAGES: [(&str, &str); 4] = [
    ("tidegate", "1"),
    ("agent.toml", "5"),
    ("tidegate", "7"),
    ("tidegate-agent", "8"),
];

/// The manual page of one program or subcommand.
fn page(command: clap::Command, section: &str) -> anyhow::Result<Vec<u8>> {
    let own = format!("{}({section})", command.get_name());
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(command).section(section);
    manual.render(&mut page).context("cannot write the page")?;
    page.extend_from_slice(see_also(&own).as_bytes());
    Ok(page)
}

/// The last section of the page `own`: the other pages where a reader goes on.
fn see_also(own: &str) -> String {
    let others = PAGES
        .iter()
        .filter(|(name, section)| format!("{name}({section})") != own);
    let others: Vec<_> = others
        .map(|(name, section)| format!(".BR {} ({section})", name.replace('-', "\\-")))
        .collect();
    format!(".SH \"SEE ALSO\"\n{}\n", others.join(",\n"))
}

/// Writes the manual pages of this program and its subcommands, and that of the agent, into `dir`.
///
/// # Errors
/// When one cannot be written.
pub fn pages(command: clap::Command, dir: &Path) -> anyhow::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write(&command, dir)
        .and_then(|()| {
            let agent = page(Arguments::command(), "8")?;
            Ok(std::fs::write(dir.join("tidegate-agent.8"), agent)?)
        })
        .with_context(|| format!("cannot write manual pages into {}", dir.display()))
}

fn write(command: &clap::Command, dir: &Path) -> anyhow::Result<()> {
    for subcommand in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        write(subcommand, dir)?;
    }
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), page(command.clone(), "1")?)?;
    Ok(())
}

/// What a shell reads to complete the arguments of a program.
#[must_use]
pub fn completions(mut command: clap::Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    /// P-OPERATE-16: a shell completes the words that an option or argument takes, where others are taken too.
    #[test]
    fn completions_offer_the_words_that_are_known() {
        let text = String::from_utf8(completions(command(), Shell::Bash)).expect("text");
        for words in [
            "compgen -W \"adapter_saved adapter_served",
            "compgen -W \"h100 h200 a100 l40s",
            "compgen -W \"conversation code caller\"",
            "compgen -W \"Standalone NoControl KernelPreempt",
            "compgen -W \"UVM Prism StaticMem",
            "compgen -W \"kernel cgroup2 membarrier",
            "compgen -W \"role pid launches\"",
            "compgen -W \"online offline\"",
        ] {
            assert!(text.contains(words), "{words}");
        }
        for word in [" gate.cooldown ", " memory.pool ", " debug "] {
            assert!(text.contains(word), "{word}");
        }
    }
}
