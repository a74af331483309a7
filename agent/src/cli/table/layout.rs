//! Tables as every command prints them.

use crate::cli::print::terminal_width;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::fmt::Write;

/// A table as every command prints them, no wider than the terminal, if there is one.
pub fn new(header: &[&str]) -> Table {
    table(header, terminal_width())
}

pub(super) fn table(header: &[&str], width: Option<u16>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table
}

/// Columns of numbers.
pub fn right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Appends a table without the blanks that fill its lines.
pub fn append(text: &mut String, table: &Table) {
    for line in table.to_string().lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}
