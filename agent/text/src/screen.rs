//! What fits a terminal: tables and folded lines.

mod grid;
mod terminal;

pub use grid::{Column, Grid, Shown, long, number, word};

use std::io::IsTerminal;
use unicode_width::UnicodeWidthChar;

/// Cells by which what follows of a line is set in.
const INDENT: usize = 4;

/// How many of these characters stand in `room` cells.
fn fitting(text: &[char], room: usize) -> usize {
    let mut cells = 0;
    let over = text.iter().position(|c| {
        cells += c.width().unwrap_or(0);
        cells > room
    });
    over.unwrap_or(text.len())
}

/// Lines that are wider than `width` cells go on in the next, at a blank where there is one.
#[must_use]
pub fn fold(text: &str, width: usize) -> String {
    let width = width.max(2 * INDENT);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest: Vec<char> = line.trim_end_matches('\n').chars().collect();
        let own = rest.iter().take_while(|c| **c == ' ').count();
        let indent = (own + INDENT).min(width / 2);
        let mut room = width;
        loop {
            let fits = fitting(&rest, room);
            if fits == rest.len() {
                break;
            }
            // Blanks at the beginning of a line are no place to go on.
            let begins = rest.iter().take_while(|c| **c == ' ').count();
            let blank = (begins + 1..=fits).rev().find(|&at| rest[at] == ' ');
            let next = rest.split_off(blank.unwrap_or(fits));
            out.push_str(rest.iter().collect::<String>().trim_end());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            rest = next.into_iter().skip_while(|c| *c == ' ').collect();
            room = width - indent;
        }
        out.extend(rest);
        if line.ends_with('\n') {
            out.push('\n');
        }
    }
    out
}

/// Cells of a line of the terminal that standard output is; None: it is none.
#[must_use]
pub fn terminal_width() -> Option<u16> {
    if std::io::stdout().is_terminal() {
        let said = std::env::var("COLUMNS").ok();
        said.and_then(|columns| columns.parse().ok())
            .or_else(terminal::columns)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_line_goes_on_at_a_blank() {
        assert_eq!(fold("short\n\nlines\n", 20), "short\n\nlines\n");
        assert_eq!(
            fold("note: one two three four five\n", 14),
            "note: one two\n    three four\n    five\n"
        );
        assert_eq!(fold("0123456789abcdef", 10), "0123456789\n    abcdef");
    }

    proptest! {
        /// P-OPERATE-16: no line is wider than the terminal, and no word is lost.
        #[test]
        fn no_line_is_wider_and_nothing_is_lost(text in "[a-z \n]{0,200}", width in 8usize..60) {
            let folded = fold(&text, width);
            prop_assert!(folded.lines().all(|line| line.chars().count() <= width), "{folded:?}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&folded), letters(&text));
        }
    }
}
