//! Tables for people.
//!
//! A table that is wider than the terminal first breaks its heads and long cells between words. Where that is not
//! enough it leaves out columns, the least important first, and says which. It cuts nothing.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::fmt::Write;
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
#[must_use]
pub const fn word(head: &'static str) -> Column {
    Column {
        head,
        is_number: false,
        broken_to: None,
        spare: 0,
    }
}

/// A column of figures, on the right.
#[must_use]
pub const fn number(head: &'static str) -> Column {
    Column {
        is_number: true,
        ..word(head)
    }
}

/// A column of names or sentences, which may be broken into lines of `broken_to` cells.
#[must_use]
pub const fn long(head: &'static str, broken_to: usize) -> Column {
    Column {
        broken_to: Some(broken_to),
        ..word(head)
    }
}

impl Column {
    /// The same, left out where there is no room for it, after those of a greater `rank`.
    #[must_use]
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
    #[must_use]
    pub fn has(&self, head: &str) -> bool {
        self.0.contains(&head)
    }
}

impl Grid {
    /// A table without rows.
    #[must_use]
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

    /// Whether it has no row.
    #[must_use]
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
        let arranged = width.map(|width| (width, self.arrange(usize::from(width))));
        let kept = match &arranged {
            Some((_, (kept, _))) => kept.clone(),
            None => (0..self.columns.len()).collect(),
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
        if let Some((width, (_, widths))) = &arranged {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(*width);
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

    /// The columns that there is room for, and the cells of each.
    fn arrange(&self, width: usize) -> (Vec<usize>, Vec<usize>) {
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
        (kept, widths)
    }
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
            // With the last column that left, the table would have no room, with its long cells broken either.
            let room = |at: usize| {
                let cells = grid.rows.iter().map(|row| row[at].width());
                let cells = cells.map(|cells| if at % 3 == 2 { cells.min(12) } else { cells });
                let head = HEADS[at].split(' ').map(UnicodeWidthStr::width);
                cells.chain(head).max().unwrap_or(0) + APART
            };
            let left = (0..HEADS.len()).filter(|&at| !shown.has(HEADS[at]));
            if let Some(last) = left.min_by_key(|&at| spare[at]) {
                let kept = (0..HEADS.len()).filter(|&at| shown.has(HEADS[at]));
                let needed = kept.map(room).sum::<usize>() + room(last);
                prop_assert!(needed > usize::from(width), "{needed} would do:\n{text}");
            }
            // A terminal that has room for all of it has it as it is where there is no terminal.
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
}
