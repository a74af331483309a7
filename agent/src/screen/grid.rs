//! How tables are laid out and figures written.
//!
//! A table that is wider than the terminal first breaks its heads and long cells between words. Where that is not
//! enough it leaves out columns, the least important first, and says which. It cuts nothing.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::fmt::Write;
use tidegate_proto::v1;
use unicode_width::UnicodeWidthStr;

/// Cells between two columns; the tables' own padding.
const APART: usize = 2;

/// A column: its head, and what becomes of it where there is little room.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    is_number: bool,
    /// Cells to which what stands in it may be broken; None: it stays on one line.
    broken_to: Option<usize>,
    /// 0: it is always there. Of the others the greatest leaves first.
    spare: u8,
}

/// A column of words that stay on one line.
pub const fn word(head: &'static str) -> Column {
    Column {
        head,
        is_number: false,
        broken_to: None,
        spare: 0,
    }
}

/// A column of figures, on the right.
pub const fn number(head: &'static str) -> Column {
    Column {
        is_number: true,
        ..word(head)
    }
}

/// A column of names or sentences, which may be broken into lines of `broken_to` cells.
pub const fn long(head: &'static str, broken_to: usize) -> Column {
    Column {
        broken_to: Some(broken_to),
        ..word(head)
    }
}

impl Column {
    /// The same, left out where there is no room for it, after those of a greater `rank`.
    pub const fn spare(self, rank: u8) -> Self {
        Self {
            spare: rank,
            ..self
        }
    }
}

fn widest_word(text: &str) -> usize {
    text.split_whitespace()
        .map(UnicodeWidthStr::width)
        .max()
        .unwrap_or(0)
}

/// A table for people.
#[derive(Debug)]
pub struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// What of a table is on the screen.
#[derive(Debug)]
pub struct Shown(Vec<&'static str>);

impl Shown {
    /// Whether there is a column of this head.
    pub fn has(&self, head: &str) -> bool {
        self.0.contains(&head)
    }
}

impl Grid {
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, a cell for each column.
    pub fn add<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell for each column");
        self.rows.push(cells.into());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Drops the columns of which `keep` says no.
    pub fn retain(&mut self, keep: impl Fn(&str, &[&str]) -> bool) {
        let kept: Vec<bool> = (0..self.columns.len())
            .map(|at| {
                let cells: Vec<&str> = self.rows.iter().map(|row| &*row[at]).collect();
                keep(self.columns[at].head, &cells)
            })
            .collect();
        let mut keeps = kept.iter();
        self.columns.retain(|_| keeps.next() == Some(&true));
        for row in &mut self.rows {
            let mut keeps = kept.iter();
            row.retain(|_| keeps.next() == Some(&true));
        }
    }

    /// Appends the table to `text`, for a terminal of `width` cells if there is one.
    pub fn show(&self, width: Option<u16>, text: &mut String) -> Shown {
        let (kept, widths) = match width {
            Some(width) => self.arrange(usize::from(width)),
            None => ((0..self.columns.len()).collect(), None),
        };
        let heads: Vec<&'static str> = kept.iter().map(|&at| self.columns[at].head).collect();
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(&heads);
        for row in &self.rows {
            table.add_row(kept.iter().map(|&at| &row[at]));
        }
        if let (Some(widths), Some(width)) = (&widths, width) {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width);
            for (place, cells) in widths.iter().enumerate() {
                let cells = u16::try_from(cells + APART).unwrap_or(u16::MAX);
                if let Some(column) = table.column_mut(place) {
                    column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(cells)));
                }
            }
        }
        for (place, &at) in kept.iter().enumerate() {
            if let Some(column) = table
                .column_mut(place)
                .filter(|_| self.columns[at].is_number)
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in table.to_string().lines() {
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let left: Vec<_> = (0..self.columns.len())
            .filter(|at| !kept.contains(at))
            .map(|at| self.columns[at].head)
            .collect();
        if !left.is_empty() {
            let _ = writeln!(
                text,
                "(left out: {}. A wider terminal has them, and --output json.)",
                left.join(", ")
            );
        }
        Shown(heads)
    }

    /// The columns that there is room for, and the cells of each where they have to be narrower than they could be.
    fn arrange(&self, width: usize) -> (Vec<usize>, Option<Vec<usize>>) {
        let cells = |at: usize, of: fn(&str) -> usize| {
            self.rows.iter().map(|row| of(&row[at])).max().unwrap_or(0)
        };
        let natural: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                self.columns[at]
                    .head
                    .width()
                    .max(cells(at, UnicodeWidthStr::width))
            })
            .collect();
        let least: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                let content = match self.columns[at].broken_to {
                    Some(to) => cells(at, UnicodeWidthStr::width).min(to),
                    None => cells(at, UnicodeWidthStr::width),
                };
                content.max(widest_word(self.columns[at].head))
            })
            .collect();
        let sum =
            |kept: &[usize], of: &[usize]| -> usize { kept.iter().map(|&at| of[at] + APART).sum() };
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        if sum(&kept, &natural) <= width {
            return (kept, None);
        }
        while sum(&kept, &least) > width {
            let spared = kept
                .iter()
                .copied()
                .filter(|&at| self.columns[at].spare != 0);
            let Some(next) = spared.max_by_key(|&at| self.columns[at].spare) else {
                break;
            };
            kept.retain(|&at| at != next);
        }
        let mut widths: Vec<usize> = kept.iter().map(|&at| least[at]).collect();
        let mut room = width.saturating_sub(APART * kept.len());
        while widths.iter().sum::<usize>() > room {
            // Nothing is left to spare: the widest is broken in mid-word. A terminal of no width has lines that are
            // too long.
            match widths.iter_mut().max().filter(|widest| **widest > 1) {
                Some(widest) => *widest -= 1,
                None => room = usize::MAX,
            }
        }
        // What is left over goes to the narrowest of those that want it.
        while widths.iter().sum::<usize>() < room {
            let wanting = (0..kept.len()).filter(|&place| widths[place] < natural[kept[place]]);
            match wanting.min_by_key(|&place| widths[place]) {
                Some(place) => widths[place] += 1,
                None => break,
            }
        }
        (kept, Some(widths))
    }
}

/// Numbers of GPUs: `0-7,9`.
pub fn gpu_ranges(gpus: &[u32]) -> String {
    let mut ranges = Vec::<(u32, u32)>::new();
    for &gpu in gpus {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(gpu) => *last = gpu,
            _ => ranges.push((gpu, gpu)),
        }
    }
    let named = ranges.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    or_dash(&named.collect::<Vec<_>>().join(",")).to_owned()
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
        _ if gib < 10_000.0 => format!("{gib:.0} GiB"),
        _ if gib < 102_400.0 => format!("{:.1} TiB", gib / 1_024.0),
        _ => format!("{:.0} TiB", gib / 1_024.0),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADS: [&str; 6] = [
        "ID",
        "LONGEST GAP",
        "NAME",
        "PREEMPTIONS",
        "WHY IT WAITS",
        "MAX",
    ];

    fn grid(spare: &[u8], words: &[Vec<usize>]) -> Grid {
        let columns: Vec<Column> = (0..HEADS.len())
            .map(|at| match at % 3 {
                0 => word(HEADS[at]),
                1 => number(HEADS[at]),
                _ => long(HEADS[at], 12),
            })
            .zip(spare)
            .map(|(column, &spare)| column.spare(spare))
            .collect();
        let mut grid = Grid::new(&columns);
        for (row, counts) in words.iter().enumerate() {
            let cell = |at: usize| {
                // Figures are one word; each word is told from every other.
                let count = if at % 3 == 2 {
                    counts[at]
                } else {
                    counts[at].min(1)
                };
                let words = (0..count).map(|nth| format!("<{row}.{at}.{nth}>"));
                words.collect::<Vec<_>>().join(" ")
            };
            grid.add([0, 1, 2, 3, 4, 5].map(cell));
        }
        grid
    }

    proptest! {
        /// P-OPERATE-16: a table is as wide as the terminal at most. Each word of it is there whole, in a head or a
        /// cell, or its column is named as left out; those go by their rank.
        #[test]
        fn a_table_fits_and_cuts_nothing(
            spare in prop::collection::vec(0_u8..9, 6),
            words in prop::collection::vec(prop::collection::vec(0_usize..6, 6), 0..5),
            width in 48_u16..130,
        ) {
            let grid = grid(&spare, &words);
            let mut text = String::new();
            let shown = grid.show(Some(width), &mut text);
            let (table, note) = text.split_once("(left out: ").unwrap_or((&text, ""));
            prop_assert!(table.lines().all(|line| line.width() <= usize::from(width)), "{text}");
            let tokens: Vec<&str> = table.split_whitespace().collect();
            let mut wholes = 0;
            for (at, head) in HEADS.iter().enumerate() {
                let cells = grid.rows.iter().flat_map(|row| row[at].split_whitespace());
                if shown.has(head) {
                    prop_assert!(!note.contains(head), "{text}");
                    for word in head.split(' ').chain(cells) {
                        prop_assert!(tokens.contains(&word), "{word}:\n{text}");
                        wholes += 1;
                    }
                } else {
                    prop_assert!(note.contains(head), "{head}:\n{text}");
                    prop_assert!(spare[at] != 0, "{head} may not leave:\n{text}");
                    for (other, kept) in HEADS.iter().enumerate() {
                        prop_assert!(!shown.has(kept) || spare[other] <= spare[at], "{kept}:\n{text}");
                    }
                }
            }
            prop_assert_eq!(wholes, tokens.len(), "{}", text);
            // Nothing leaves a terminal that has room for all of it, as it is where there is no terminal.
            let mut whole = String::new();
            grid.show(None, &mut whole);
            let widest = whole.lines().map(UnicodeWidthStr::width).max().unwrap_or(0);
            if widest + APART <= usize::from(width) {
                prop_assert_eq!(text, whole);
            }
        }
    }

    /// P-OPERATE-16: where no column may leave, a name is broken, and no letter of it is lost.
    #[test]
    fn what_no_width_holds_is_broken_and_not_cut() {
        let mut grid = Grid::new(&[word("NAME"), number("FIGURE")]);
        grid.add(["abcdefghij".repeat(6), "1234567".to_owned()]);
        let mut text = String::new();
        grid.show(Some(30), &mut text);
        assert!(text.lines().all(|line| line.width() <= 30), "{text}");
        let letters: String = text.chars().filter(char::is_ascii_lowercase).collect();
        assert_eq!(letters, "abcdefghij".repeat(6));
        assert!(text.contains("1234567"), "{text}");
    }

    #[test]
    fn runs_of_gpus_are_ranges() {
        assert_eq!(gpu_ranges(&[]), "-");
        assert_eq!(gpu_ranges(&[3]), "3");
        assert_eq!(gpu_ranges(&[0, 1, 3]), "0,1,3");
        assert_eq!(gpu_ranges(&[0, 1, 2, 3, 7, 8, 9]), "0-3,7-9");
    }

    #[test]
    fn memory_has_the_unit_that_keeps_it_short() {
        let read = [
            (0, "-"),
            (1, "1 KiB"),
            (5 << 20, "5 MiB"),
            (80 << 30, "80.0 GiB"),
            (2 << 40, "2048 GiB"),
            (16 << 40, "16.0 TiB"),
            (256 << 40, "256 TiB"),
        ];
        for (size, text) in read {
            assert_eq!(bytes(size), text);
        }
    }
}
