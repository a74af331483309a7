//! Names that people type, and what to say when there is no such name.

use std::fmt;

/// There is nothing of this name. Says what there is, and what was probably meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct UnknownName {
    /// Of what kind, for people: "model", "GPU".
    pub what: &'static str,
    /// What was asked for.
    pub given: String,
    /// What there is.
    pub known: Vec<String>,
}

/// The one of `known`, each with its name, that is called `given`; letter case does not matter.
///
/// # Errors
/// When there is none.
pub fn find<N: AsRef<str>, T>(
    what: &'static str,
    given: &str,
    known: impl IntoIterator<Item = (N, T)>,
) -> Result<T, UnknownName> {
    let mut names = Vec::new();
    for (name, value) in known {
        if name.as_ref().eq_ignore_ascii_case(given) {
            return Ok(value);
        }
        names.push(name.as_ref().to_owned());
    }
    let given = given.chars().take(80).collect();
    Err(UnknownName {
        what,
        given,
        known: names,
    })
}

impl UnknownName {
    /// The known name that is nearest to the given one, if one is near.
    #[must_use]
    pub fn nearest(&self) -> Option<&str> {
        let given = self.given.to_lowercase();
        let begins = |name: &&String| given.len() > 2 && name.to_lowercase().starts_with(&given);
        let distance = |name: &&String| edits(&given, &name.to_lowercase());
        let near = |name: &&String| 2 * distance(name) <= name.len();
        let begun = self.known.iter().find(begins);
        let nearest = || self.known.iter().min_by_key(distance).filter(near);
        begun.or_else(nearest).map(String::as_str)
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "there is no {} {:?}", self.what, self.given)?;
        if let Some(nearest) = self.nearest() {
            write!(out, "; did you mean {nearest}?")?;
        }
        write!(out, " (known: {})", self.known.join(", "))
    }
}

/// Insertions, deletions and replacements from one to the other (Levenshtein).
pub(crate) fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [(&str, u8); 3] = [("llama-3.1-8b", 1), ("qwen2.5-7b", 2), ("h200", 3)];

    fn told(given: &str) -> String {
        let unknown = find("model", given, KNOWN).expect_err("unknown");
        unknown.to_string()
    }

    #[test]
    fn a_name_is_found_in_any_letter_case() {
        assert_eq!(find("model", "Qwen2.5-7B", KNOWN), Ok(2));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_and_with_all() {
        for (given, nearest) in [
            ("lama3.1-8b", "llama-3.1-8b"),
            ("qwen", "qwen2.5-7b"),
            ("H20", "h200"),
        ] {
            let told = told(given);
            assert!(told.contains(&format!("did you mean {nearest}?")), "{told}");
            assert!(
                told.contains("(known: llama-3.1-8b, qwen2.5-7b, h200)"),
                "{told}"
            );
        }
        assert!(!told("gpt").contains("did you mean"), "{}", told("gpt"));
        assert!(told("").contains("there is no model \"\""));
    }
}
