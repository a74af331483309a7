//! A set of numbers as ranges that do not touch.

use core::ops::Range;
use std::collections::BTreeMap;

/// The ranges, by where each begins: where it ends.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u32, u32>);

impl Ranges {
    /// Adds `ids`. `new` is called for each part of them that was not there, the last first.
    pub(super) fn add(&mut self, ids: Range<u32>, mut new: impl FnMut(Range<u32>)) {
        let Range { mut start, mut end } = ids;
        if start >= end {
            return;
        }
        // From behind, so that what is left to look at is always `start..rest`.
        let mut rest = end;
        while let Some((&first, &last)) = self.0.range(..=rest).next_back() {
            if last < start {
                break;
            }
            if last < rest {
                new(last..rest);
            }
            self.0.remove(&first);
            end = end.max(last);
            rest = first.min(rest);
            if first <= start {
                (start, rest) = (first, first);
                break;
            }
        }
        if start < rest {
            new(start..rest);
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Each number is new once, and no range stays in more pieces than it needs.
        #[test]
        fn what_is_added_is_new_once(added in prop::collection::vec((0u32..40, 0u32..12), 0..30)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (first, count) in added {
                let mut told = Vec::new();
                ranges.add(first..first + count, |new| told.extend(new.rev()));
                let mut expected: Vec<u32> = (first..first + count).filter(|id| model.insert(*id)).collect();
                expected.reverse();
                prop_assert_eq!(told, expected);
                let edges = model.iter().filter(|id| !model.contains(&(*id + 1))).count();
                prop_assert_eq!(ranges.0.len(), edges);
            }
        }
    }
}
