//! A set of small numbers, as bits: which stripes are backed, and which of them nobody holds.
//!
//! A pool has tens of thousands of stripes and a reclaim asks for the first few of a kind, thousands
//! of times in a replay: sixty-four at a look.

const WORD: usize = u64::BITS as usize;

/// Numbers below a bound that are in or out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// The numbers below `bound`, all out.
    pub fn new(bound: usize) -> Self {
        Self(vec![0; bound.div_ceil(WORD)])
    }

    /// Whether it is in; what is beyond the bound is not.
    pub fn has(&self, number: usize) -> bool {
        let word = self.0.get(number / WORD);
        word.is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    /// Puts it in; says whether it was out.
    pub fn insert(&mut self, number: usize) -> bool {
        let out = !self.has(number);
        self.0[number / WORD] |= 1 << (number % WORD);
        out
    }

    /// Takes it out; says whether it was in.
    pub fn remove(&mut self, number: usize) -> bool {
        let had = self.has(number);
        self.0[number / WORD] &= !(1 << (number % WORD));
        had
    }

    /// Those that are in, the lowest first.
    pub fn rising(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(place, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < WORD).then_some(place * WORD + bit)
            })
        })
    }

    /// Those that are in, the highest first.
    pub fn falling(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().rev().flat_map(|(place, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (WORD - 1).checked_sub(left.leading_zeros() as usize)?;
                left &= !(1 << bit);
                Some(place * WORD + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_set_holds_in_the_same_order(
            steps in prop::collection::vec((any::<bool>(), 0usize..300), 0..400),
        ) {
            let (mut bits, mut set) = (Bits::new(300), BTreeSet::new());
            for (inserts, number) in steps {
                if inserts {
                    prop_assert_eq!(bits.insert(number), set.insert(number));
                } else {
                    prop_assert_eq!(bits.remove(number), set.remove(&number));
                }
                prop_assert_eq!(bits.has(number), set.contains(&number));
            }
            prop_assert!(bits.rising().eq(set.iter().copied()));
            prop_assert!(bits.falling().eq(set.iter().rev().copied()));
        }
    }
}
