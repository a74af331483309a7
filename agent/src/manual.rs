//! Manual pages and shell completions, made from what the programs themselves parse, so that they cannot tell
//! anything else.

use anyhow::Context as _;
use clap_complete::Shell;
use std::path::Path;

/// The manual page of one program that has no subcommands.
///
/// # Errors
/// When it cannot be written.
pub fn page(command: clap::Command, section: &str) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(command).section(section);
    manual.render(&mut page).context("cannot write the page")?;
    Ok(page)
}

/// Writes the manual pages of a program and its subcommands into `dir`.
///
/// # Errors
/// When one cannot be written.
pub fn pages(command: clap::Command, dir: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("cannot write manual pages into {}", dir.display()))
}

/// What a shell reads to complete the arguments of a program.
#[must_use]
pub fn completions(mut command: clap::Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    text
}
