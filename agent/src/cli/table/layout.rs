//! Tables as every command prints them.

use crate::cli::print::terminal_width;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::fmt::Write;
use tidegate_proto::v1;

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

/// Memory with a unit.
pub fn bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    #[expect(clippy::cast_precision_loss, reason = "a size, for people")]
    let gib = bytes as f64 / (1_u64 << 30) as f64;
    match bytes {
        0 => "-".to_owned(),
        1..MIB => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ if gib < 1.0 => format!("{} MiB", bytes / MIB),
        _ if gib < 100.0 => format!("{gib:.1} GiB"),
        _ => format!("{gib:.0} GiB"),
    }
}

/// `used of total`; a dash where the driver does not say.
pub fn in_use(gpu: &v1::GpuStatus) -> String {
    if gpu.memory_total_bytes == 0 {
        return "-".to_owned();
    }
    let used = bytes(gpu.memory_used_bytes.max(1));
    format!("{used} of {}", bytes(gpu.memory_total_bytes))
}

/// What a process holds on all its GPUs, as its library counts.
pub fn held(process: &v1::ProcessStatus) -> u64 {
    let devices = process.devices.iter();
    devices.fold(0, |sum, device| sum.saturating_add(device.memory_bytes))
}

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}
