//! One iteration of an online engine, as its process writes it into the page of iterations.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use tidegate_abi::beats::{BATCH_KNOWN, BeatWords};

/// An iteration that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// Before its first launch, ns.
    pub begin_ns: u64,
    /// Its outputs were there, ns.
    pub end_ns: u64,
    /// Of its shape; 0: it is named by what it did.
    pub fingerprint: u64,
    /// Requests that decoded in it, where the engine says so.
    pub batch: Option<u32>,
    /// Cached tokens of those.
    pub cached: u64,
    /// Prompt tokens that it read.
    pub prompt: u64,
    /// Prompt tokens that wait to be read.
    pub waiting_tokens: u64,
    /// Requests that wait.
    pub waiting: u32,
    /// Blocks of the KV cache that hold nothing.
    pub free_blocks: u64,
    /// Blocks of the KV cache in all.
    pub blocks: u64,
}

/// What a name of a shape begins with that read a prompt.
const READS: u64 = 1 << 32;
/// Batches up to so many have a name each as far as they are powers of two, as engines record their graphs.
const FEW: u64 = 4;
/// Batches above have one name for so many.
const STEP: u64 = 8;

/// A name of the shape of an iteration: batches of one bucket have the same, and so have prompts up to one power of two.
#[must_use]
pub fn shape(batch: u32, prompt: u64) -> u64 {
    let batch = u64::from(batch);
    let bucket = if batch <= FEW {
        batch.next_power_of_two() * u64::from(batch != 0)
    } else {
        batch.next_multiple_of(STEP)
    };
    let reads = u64::from(u64::BITS - prompt.leading_zeros()) * READS;
    // 0 is the name of none.
    (reads | bucket) + 1
}

impl Iteration {
    /// Writes it as the last one that ended on a device. Nobody else may write there meanwhile. An iteration that was
    /// launched while the one before it ran begins with the end of that one.
    pub fn write(&self, words: &BeatWords) {
        let before_ns = words.end_ns.load(Acquire);
        let fingerprint = match self.fingerprint {
            0 => shape(self.batch.unwrap_or(0), self.prompt),
            own => own,
        };
        words.version.fetch_add(1, AcqRel);
        let batch = self.batch.map_or(0, |batch| BATCH_KNOWN | u64::from(batch));
        for (word, value) in [
            (
                &words.begin_ns,
                self.begin_ns.max(before_ns).min(self.end_ns),
            ),
            (&words.end_ns, self.end_ns),
            (&words.fingerprint, fingerprint),
            (&words.batch, batch),
            (&words.cached, self.cached),
            (&words.prompt, self.prompt),
            (&words.waiting_tokens, self.waiting_tokens),
            (&words.waiting, u64::from(self.waiting)),
            (&words.free_blocks, self.free_blocks),
            (&words.blocks, self.blocks),
        ] {
            word.store(value, Release);
        }
        words.count.fetch_add(1, Release);
        words.version.fetch_add(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(words: &BeatWords) -> [u64; 5] {
        [
            &words.version,
            &words.count,
            &words.begin_ns,
            &words.end_ns,
            &words.batch,
        ]
        .map(|word| word.load(Acquire))
    }

    #[test]
    fn an_iteration_launched_ahead_begins_where_the_one_before_it_ended() {
        let page = BeatWords::default();
        let said = |begin_ns, end_ns, batch| Iteration {
            begin_ns,
            end_ns,
            batch,
            ..Iteration::default()
        };
        said(10, 20, Some(3)).write(&page);
        assert_eq!(words(&page), [2, 1, 10, 20, BATCH_KNOWN | 3]);
        said(15, 30, None).write(&page);
        assert_eq!(words(&page), [4, 2, 20, 30, 0]);
        said(40, 50, Some(0)).write(&page);
        assert_eq!(words(&page), [6, 3, 40, 50, BATCH_KNOWN]);
        // Said in another order than they ended in.
        said(41, 45, None).write(&page);
        assert_eq!(words(&page), [8, 4, 45, 45, 0]);
    }

    proptest! {
        /// P-LEASE-4: no name joins two batches that an engine records graphs of, or a prompt and none.
        #[test]
        fn a_name_joins_no_two_shapes(
            one in (0_u32..600, 0_u64..20_000),
            other in (0_u32..600, 0_u64..20_000),
        ) {
            let graphs = (0..=2).map(|power| 1 << power).chain((1..100).map(|step| 8 * step));
            let graph = |batch| graphs.clone().find(|&graph: &u32| batch <= graph);
            let kind = |(batch, prompt): (u32, u64)| {
                (batch == 0, graph(batch), prompt.checked_ilog2())
            };
            let name = |(batch, prompt)| shape(batch, prompt);
            prop_assert_eq!(name(one) == name(other), kind(one) == kind(other));
            prop_assert_ne!(name(one), 0);
        }
    }
}
