//! The table of `branches.toml`: which word belongs where, and what its bits mean.

use crate::{State, Variant};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Bits of one era of the driver, by name.
pub type Layout = BTreeMap<String, u32>;

#[derive(Debug, Deserialize)]
struct Table {
    branch: Vec<Branch>,
    layout: BTreeMap<String, Layout>,
}

/// One driver branch.
#[derive(Clone, Debug, Deserialize)]
pub struct Branch {
    /// As the version begins.
    pub number: u32,
    /// First version read.
    pub first: String,
    /// Last version read.
    pub last: String,
    layout: String,
    /// The word as NVIDIA ships it.
    pub old: u32,
    a: u32,
    b: u32,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // The file is part of this program, and a test reads it.
    toml::from_str(include_str!("../branches.toml")).unwrap_or_else(|error| {
        unreachable!("branches.toml: {error}");
    })
});

/// Every branch of the table, oldest first.
#[must_use]
pub fn all() -> &'static [Branch] {
    &TABLE.branch
}

/// The branch of `version`, e.g. "580.95.05".
#[must_use]
pub fn of_version(version: &str) -> Option<&'static Branch> {
    let number = numbers(version).first().copied()?;
    all().iter().find(|branch| branch.number == number)
}

fn numbers(version: &str) -> Vec<u32> {
    let part = |part: &str| part.parse().ok();
    version.split('.').map_while(part).collect()
}

impl Branch {
    /// Whether `version` lies among those that were read.
    #[must_use]
    pub fn was_read(&self, version: &str) -> bool {
        let version = numbers(version);
        numbers(&self.first) <= version && version <= numbers(&self.last)
    }

    /// The word with `variant`.
    #[must_use]
    pub const fn patched(&self, variant: Variant) -> u32 {
        match variant {
            Variant::A => self.a,
            Variant::B => self.b,
        }
    }

    /// What `word` is on this branch.
    #[must_use]
    pub fn state(&self, word: u32) -> State {
        match word {
            word if word == self.old => State::Unpatched,
            word if word == self.a => State::Patched(Variant::A),
            word if word == self.b => State::Patched(Variant::B),
            _ => State::Other,
        }
    }

    /// The bits by name.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        static NONE: Layout = Layout::new();
        TABLE.layout.get(&self.layout).unwrap_or(&NONE)
    }

    /// The flags of `word` by name, lowest bit first.
    #[must_use]
    pub fn decoded(&self, word: u32) -> String {
        let mut flags: Vec<(u32, String)> = self
            .layout()
            .iter()
            .filter(|(_, bit)| word & **bit != 0)
            .map(|(name, bit)| (*bit, name.clone()))
            .collect();
        let known = flags.iter().fold(0, |known, (bit, _)| known | bit);
        if word & !known != 0 {
            flags.push((u32::MAX, format!("{:#x}", word & !known)));
        }
        flags.sort();
        let names: Vec<String> = flags.into_iter().map(|(_, name)| name).collect();
        names.join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_adds_its_flag_and_nothing_else() {
        assert_eq!(all().len(), 6);
        for branch in all() {
            for variant in [Variant::A, Variant::B] {
                let bit = branch.layout()[variant.flag()];
                assert_eq!(branch.old & bit, 0, "{branch:?}");
                assert_eq!(branch.patched(variant), branch.old | bit, "{branch:?}");
            }
            assert_eq!(branch.state(branch.old), State::Unpatched);
            assert_eq!(branch.state(branch.a | branch.b), State::Other);
            let old = branch.decoded(branch.old);
            assert!(
                old.starts_with("NON_PRIVILEGED | API_LOCK_READONLY"),
                "{old}"
            );
            assert!(!old.contains("0x"), "every bit of {old} has a name");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        let branch = of_version("580.95.05").expect("known");
        for version in ["580.65.06", "580.95.05", "580.105.08", "580.142"] {
            assert!(branch.was_read(version), "{version}");
        }
        assert!(!branch.was_read("580.142.01"));
        assert!(!branch.was_read("580.54.03"));
        for version in ["610.01", "58.0", "", "x.580"] {
            assert!(of_version(version).is_none(), "{version}");
        }
    }
}
