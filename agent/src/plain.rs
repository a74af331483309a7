//! Text for people, parts of which tenants wrote.
//!
//! What is read of a tenant is [`Foreign`]: it can be compared, and become a [`Text`], and nothing else. All that the
//! command line prints is cleaned once more ([`lines`]), whoever sent it.

use std::fmt;
use tidegate_node::text::{Text, show};

/// Text that a tenant may have written, as it was read. It cannot be printed, logged or sent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Foreign(String);

impl Foreign {
    /// As it was read.
    #[must_use]
    pub const fn new(raw: String) -> Self {
        Self(raw)
    }

    /// As it was read, to be compared or taken apart.
    #[must_use]
    pub fn to_compare(&self) -> &str {
        &self.0
    }

    /// As a name, by its end.
    #[must_use]
    pub fn name(&self) -> Text {
        Text::end_of(&self.0)
    }

    /// On one line.
    #[must_use]
    pub fn line(&self) -> Text {
        Text::line(&self.0)
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.line(), f)
    }
}

/// `text` on one line.
#[must_use]
pub fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    text.chars().for_each(|c| show(c, &mut line));
    line
}

/// `text` with the line breaks that it has.
#[must_use]
pub fn lines(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => lines.push(c),
            c => show(c, &mut lines),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_is_shown() {
        assert_eq!(line("a\n\u{9b}31m"), "a??31m");
        assert_eq!(lines("a\nb\u{1b}c\n"), "a\nb?c\n");
        let foreign = Foreign::new("a\u{1b}\n".to_owned());
        assert_eq!(format!("{foreign:?}"), "\"a??\"");
        assert_eq!(foreign.to_compare(), "a\u{1b}\n");
    }
}
