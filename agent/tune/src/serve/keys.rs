//! Who may use the service: the keys file.
//!
//! ```toml
//! [[keys]]
//! key = "tml-0d5e..."          # what a client sends as its API key; 16 characters or more
//! owner = "support"            # whose it is; keys of one owner see the same things
//! weight = 3.0                 # share of training beside other owners (default 1)
//! tokens_per_day = 5_000_000   # tokens learnt a day, in UTC (default: no limit)
//! adapters = 2                 # adapters at a time (default: as many as the engine has slots)
//! ```

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// Shortest key: one that is shorter can be guessed.
const SHORTEST: usize = 16;

/// What an owner may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    /// The name.
    pub name: String,
    /// Share of training beside other owners.
    pub weight: f64,
    /// Tokens learnt a day.
    pub tokens_per_day: Option<u64>,
    /// Adapters at a time.
    pub adapters: Option<u32>,
}

/// The keys, and whose they are.
#[derive(Clone)]
pub struct Keys {
    owners: BTreeMap<String, Owner>,
}

impl fmt::Debug for Keys {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("owners", &self.owners.values())
            .finish()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    keys: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    key: String,
    owner: String,
    weight: Option<f64>,
    tokens_per_day: Option<u64>,
    adapters: Option<u32>,
}

impl Keys {
    /// Reads a keys file.
    ///
    /// # Errors
    /// In words for an operator, with the row and field. A key is never part of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        // The parser's own text would quote the line, which may have a key.
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error
                .span()
                .map_or("", |span| text.get(..span.start).unwrap_or_default());
            format!(
                "line {}: {}",
                before.matches('\n').count() + 1,
                error.message()
            )
        })?;
        let mut keys = Self {
            owners: BTreeMap::new(),
        };
        for (index, row) in file.keys.into_iter().enumerate() {
            let wrong = |field: &str, what: &str| Err(format!("keys[{index}].{field}: {what}"));
            if row.key.len() < SHORTEST || !row.key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return wrong(
                    "key",
                    "expected 16 or more characters of ASCII without spaces",
                );
            }
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if row.owner.is_empty()
                || row.owner.len() > 64
                || row.owner.starts_with('.')
                || !row.owner.bytes().all(plain)
            {
                return wrong(
                    "owner",
                    "expected up to 64 letters, digits, '-', '_' and '.', and no '.' at the front",
                );
            }
            let weight = row.weight.unwrap_or(1.0);
            if !((0.1..=100.0).contains(&weight)) {
                return wrong("weight", "expected a number from 0.1 to 100");
            }
            if row.adapters == Some(0) {
                return wrong("adapters", "expected a number above 0");
            }
            let owner = Owner {
                name: row.owner,
                weight,
                tokens_per_day: row.tokens_per_day,
                adapters: row.adapters,
            };
            if keys
                .owners
                .values()
                .any(|other| other.name == owner.name && *other != owner)
            {
                return wrong("owner", "another row gives the same owner other limits");
            }
            if keys.owners.insert(row.key, owner).is_some() {
                return wrong("key", "another row has the same key");
            }
        }
        if keys.owners.is_empty() {
            return Err("there is no key; write a row [[keys]] with key and owner".to_owned());
        }
        Ok(keys)
    }

    /// Whose key this is.
    #[must_use]
    pub fn owner(&self, key: &str) -> Option<&Owner> {
        // Each key is compared to its end, so that the time tells nothing of how much was right.
        let same = |known: &str| {
            let differs = known
                .bytes()
                .zip(key.bytes())
                .fold(0, |differs, (a, b)| differs | (a ^ b));
            known.len() == key.len() && differs == 0
        };
        let mut found = None;
        for (known, owner) in &self.owners {
            if same(known) {
                found = Some(owner);
            }
        }
        found
    }

    /// An owner by name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Owner> {
        self.owners.values().find(|owner| owner.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "tml-0123456789abcdef";

    #[test]
    fn a_key_has_its_owner_and_another_has_none() {
        let row = format!(
            "[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\nweight = 3.0\ntokens_per_day = 1_000\n"
        );
        let keys = Keys::parse(&row).unwrap();
        let owner = Owner {
            name: "a".into(),
            weight: 3.0,
            tokens_per_day: Some(1000),
            adapters: None,
        };
        assert_eq!(keys.owner(KEY), Some(&owner));
        for other in ["", "tml", "tml-0123456789abcdeg", "tml-0123456789abcdef0"] {
            assert_eq!(keys.owner(other), None, "{other}");
        }
        assert!(!format!("{keys:?}").contains(KEY));
    }

    /// P-TUNE-3: a wrong keys file is refused with its row and field, and no key is printed.
    #[test]
    fn a_wrong_file_is_refused_without_printing_a_key() {
        let cases = [
            (
                String::new(),
                "there is no key; write a row [[keys]] with key and owner",
            ),
            (
                "[[keys]]\nkey = \"secret\"\nowner = \"a\"".into(),
                "keys[0].key: expected 16 or more",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\"\nowner = \"a/b\""),
                "keys[0].owner: expected up to 64",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\"\nowner = \"..\""),
                "keys[0].owner: expected up to 64",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\nweight = nan"),
                "keys[0].weight: expected",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\nadapters = 0"),
                "keys[0].adapters: expected",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\nwait = 1"),
                "line 4: unknown field",
            ),
            (
                format!("[[keys]]\nkey = \"{KEY}\" \"\nowner = \"a\""),
                "line 2: ",
            ),
            (
                format!(
                    "[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\n[[keys]]\nkey = \"{KEY}\"\nowner = \"b\""
                ),
                "keys[1].key",
            ),
            (
                format!(
                    "[[keys]]\nkey = \"{KEY}\"\nowner = \"a\"\n[[keys]]\nkey = \"{KEY}1\"\nowner = \"a\"\nweight = 2.0"
                ),
                "keys[1].owner: another row",
            ),
        ];
        for (text, told) in cases {
            let error = Keys::parse(&text).unwrap_err();
            assert!(error.starts_with(told), "{error}, and not {told}");
            assert!(!error.contains(KEY) && !error.contains("secret"), "{error}");
        }
    }
}
