//! What commands write, and for whom.

use anyhow::Context;
use clap::ValueEnum;
use std::io::{IsTerminal, Write};
use tidegate_text::screen::{fold, terminal_width};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A human-readable table.
    Table,
    /// One object, or one a line.
    Json,
}

/// Writes to standard output, without what would steer a terminal; a reader that has left is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write(tidegate_agent::plain::lines(text).as_bytes())
}

/// As [`print`], with no line wider than the terminal: what is for people, and no program reads.
pub(super) fn print_folded(text: &str) -> anyhow::Result<()> {
    match terminal_width() {
        Some(width) => print(&fold(text, usize::from(width))),
        None => print(text),
    }
}

pub(super) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(()),
    }
}

/// Whether to paint: on a terminal whose user did not ask for plain text.
pub(super) fn colours() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
