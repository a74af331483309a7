//! Text that a tenant wrote: names of processes, jobs and calls, and what processes say.
//!
//! A terminal obeys control characters, also those of Latin-1, a log takes a line break for a new entry, and marks that
//! turn the direction of writing make one name look like another. [`Text`] has none of them, and it is short. Whatever
//! comes from a tenant enters the shell as a `Text`: there is no other way to make one than by cleaning and cutting, so
//! that a place where it was forgotten does not compile.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Longest name that is kept, in characters.
pub const NAME: usize = 64;
/// Longest line that is kept, in characters: a path is no longer (`PATH_MAX`, linux/limits.h).
pub const LINE: usize = 4_096;

/// `c`, or `?` for what steers a terminal.
#[must_use]
pub fn shown(c: char) -> char {
    match c {
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
        c if c.is_control() => '?',
        c => c,
    }
}

/// One line of text that a tenant wrote, cleaned and cut. Cloning one allocates nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// A name: [`NAME`] characters at most.
    #[must_use]
    pub fn name(raw: &str) -> Self {
        Self::cut(raw, NAME)
    }

    /// A line: [`LINE`] characters at most.
    #[must_use]
    pub fn line(raw: &str) -> Self {
        Self::cut(raw, LINE)
    }

    fn cut(raw: &str, longest: usize) -> Self {
        let kept: String = raw.chars().map(shown).take(longest).collect();
        Self(kept.into())
    }

    /// As it may be shown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::name("")
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        (*text.0).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_kept() {
        let evil = "a\u{1b}[2Jb\u{9b}31mc\u{7}\r\u{8}\u{7f}d\u{202e}e\u{2066}f\ng";
        assert_eq!(Text::line(evil).as_str(), "a?[2Jb?31mc????d?e?f?g");
        assert_eq!(format!("{}", Text::name(evil)), "a?[2Jb?31mc????d?e?f?g");
        assert_eq!(Text::name("größer 漢字 █▂").as_str(), "größer 漢字 █▂");
    }

    #[test]
    fn it_is_no_longer_than_it_should_be() {
        let long = "ß".repeat(LINE + 1);
        assert_eq!(Text::name(&long).chars().count(), NAME);
        assert_eq!(Text::line(&long).chars().count(), LINE);
    }
}
