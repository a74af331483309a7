//! What commands write, and for whom.

use anyhow::Context;
use clap::ValueEnum;
use std::io::{IsTerminal, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    Table,
    /// One object, or one a line.
    Json,
}

/// Writes to standard output, without what would steer a terminal; a reader that has left is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write(crate::plain::lines(text).as_bytes())
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

pub(super) fn terminal_width() -> Option<u16> {
    if std::io::stdout().is_terminal() {
        let said = std::env::var("COLUMNS").ok();
        said.and_then(|columns| columns.parse().ok())
            .or_else(crate::sys::terminal_columns)
    } else {
        None
    }
}

/// Whether to paint: on a terminal whose user did not ask for plain text.
pub(super) fn colours() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
