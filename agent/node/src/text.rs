//! Text that a tenant wrote: names of processes, jobs and calls, and messages of processes.
//!
//! Such text can do harm. A terminal obeys control characters, also those of Latin-1. A log takes a line break for a
//! new entry. Invisible characters make one name look like another. A [`Text`] contains none of them, and is short.
//! Everything that comes from a tenant enters the shell as a `Text`, which can only be made by cleaning and cutting. A
//! place that forgets this does not compile.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Longest name that is kept, in characters.
pub const NAME: usize = 64;
/// What stands for the beginning of a path that is too long for a name.
const CUT: &str = "...";
/// Longest line that is kept, in characters: a path is no longer (`PATH_MAX`, linux/limits.h).
pub const LINE: usize = 4_096;

/// Adds `c` to `line` as it may be shown: `?` for what steers a terminal, and the number of what cannot be seen or
/// turns the direction of writing, since names that differ by it alone look the same.
pub fn show(c: char, line: &mut String) {
    if is_unseen(c) {
        line.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
    } else {
        line.push(if c.is_control() { '?' } else { c });
    }
}

/// Characters without a width, marks of direction, separators of lines, fillers, selectors of variants, and tags.
const fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
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

    /// A name made of a path, by whose end paths differ: [`NAME`] characters at most.
    #[must_use]
    pub fn end_of(raw: &str) -> Self {
        let shown = Self::line(raw);
        let over = shown.chars().count().saturating_sub(NAME);
        if over == 0 {
            return shown;
        }
        let end: String = shown.chars().skip(over + CUT.len()).collect();
        Self(format!("{CUT}{end}").into())
    }

    /// A line: [`LINE`] characters at most.
    #[must_use]
    pub fn line(raw: &str) -> Self {
        Self::cut(raw, LINE)
    }

    fn cut(raw: &str, longest: usize) -> Self {
        let mut kept = String::new();
        for c in raw.chars().take(longest) {
            let before = kept.len();
            show(c, &mut kept);
            if kept.chars().count() > longest {
                kept.truncate(before);
                break;
            }
        }
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
        assert_eq!(
            Text::line(evil).as_str(),
            "a?[2Jb?31mc????d\\u{202e}e\\u{2066}f?g"
        );
        assert_eq!(
            format!("{}", Text::name(evil)),
            "a?[2Jb?31mc????d\\u{202e}e\\u{2066}f?g"
        );
        assert_eq!(Text::name("größer 漢字 █▂").as_str(), "größer 漢字 █▂");
    }

    /// P-SECURITY-22: no name looks like another.
    #[test]
    fn names_that_differ_by_what_cannot_be_seen_are_shown_to_differ() {
        let unseen = [
            "\u{200b}",
            "\u{feff}",
            "\u{e0041}",
            "\u{ad}",
            "\u{2066}",
            "\u{3164}",
            "\u{fe0f}",
        ];
        for mark in unseen {
            let name = Text::name(&format!("bat{mark}ch"));
            assert!(name.is_ascii() && name.starts_with("bat\\u{"), "{name}");
            assert_eq!(Text::name(&name), name, "what was shown is not shown anew");
        }
        let many = Text::name(&"\u{200b}".repeat(1_000));
        assert!(
            many.chars().count() <= NAME && many.ends_with('}'),
            "{many}"
        );
    }

    #[test]
    fn a_long_path_is_named_by_its_end() {
        let path = |end: &str| format!("/kubepods.slice/{}/{end}.scope", "deep/".repeat(700));
        let [one, other] = ["a", "b"].map(|end| Text::end_of(&path(end)));
        assert_eq!((one.chars().count(), other.chars().count()), (NAME, NAME));
        assert!(
            one != other && one.starts_with("...") && one.ends_with("/a.scope"),
            "{one}"
        );
        assert_eq!(Text::end_of("/a/b").as_str(), "/a/b");
    }

    #[test]
    fn it_is_no_longer_than_it_should_be() {
        let long = "ß".repeat(LINE + 1);
        assert_eq!(Text::name(&long).chars().count(), NAME);
        assert_eq!(Text::line(&long).chars().count(), LINE);
    }
}
