//! Text for people, parts of which tenants wrote: names of processes, jobs, cgroups, and what they say.
//!
//! A terminal obeys control characters, also those of Latin-1, and marks that turn the direction of writing make
//! one name look like another. None of them reaches a terminal: `?` stands for each. Names are cleaned when the
//! agent hears them ([`name`]); all that the command line prints is cleaned once more ([`lines`]), whoever sent it.

/// Longest name that is kept, in characters.
const LONGEST: usize = 64;

/// `c`, or what is shown for it.
fn shown(c: char) -> char {
    match c {
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
        c if c.is_control() => '?',
        c => c,
    }
}

/// `text` on one line.
#[must_use]
pub fn line(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// `text` on one line, and not longer than a name should be.
#[must_use]
pub fn name(text: &str) -> String {
    text.chars().map(shown).take(LONGEST).collect()
}

/// `text` with the line breaks that it has.
#[must_use]
pub fn lines(text: &str) -> String {
    let kept = |c| if c == '\n' { c } else { shown(c) };
    text.chars().map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_shown() {
        let evil = "a\u{1b}[2Jb\u{9b}31mc\u{7}\r\u{8}\u{7f}d\u{202e}e\u{2066}f";
        assert_eq!(line(evil), "a?[2Jb?31mc????d?e?f");
        assert_eq!(line("a\nb"), "a?b");
        assert_eq!(lines("a\nb\u{1b}c\n"), "a\nb?c\n");
        assert_eq!(line("größer 漢字 █▂"), "größer 漢字 █▂");
    }

    #[test]
    fn a_name_is_no_longer_than_a_name() {
        assert_eq!(name(&"x".repeat(1_000)).len(), LONGEST);
    }
}
