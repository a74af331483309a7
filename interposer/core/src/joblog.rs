//! The log of a job's lost blocks, in memory that its processes share.
//!
//! Every rank appends what it loses and gets back; whoever schedules reads, once per step. A block is
//! *lost* when its first part goes in any rank and *back* when its last is there again, which a count
//! for each block says ([`Shared::missing`]). All ranks that schedule must see the same news at the
//! same step, so the first to ask for a step's news publishes where the log ends for it (its *cut*).
//!
//! ```text
//! lost, appended before the mapping changes
//!        |      read at a step          told by the engine         restored in every rank
//!   lost ------------------> reported -----------------> withheld ----------------------> back
//! ```
//!
//! Invariants: an entry is readable before the agent is told that the memory is gone; nothing is
//! overwritten that the engine has not withheld; a block comes back only after that. No process that
//! dies in the middle keeps another from going on: an entry is one store, and whoever comes next
//! moves the head over it. Room is *promised* before anything is counted, so that ranks that lose
//! blocks at once cannot both be told that the last slot is theirs; of a process that dies in between
//! the promise stays, and makes the log shorter by what one call can need.
//!
//! The memory is generic over its words and sizes, so that the same code runs under loom.

use crate::word::{Tally, Word};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// `TIDEJOB1`, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEJOB1");
/// Entries kept.
pub const ENTRIES: usize = 1 << 16;
/// Steps whose cuts are kept.
pub const CUTS: usize = 1 << 10;
/// Blocks of a job.
pub const BLOCKS: usize = 1 << 20;

const COUNT_BITS: u32 = 20;
const FIRST_BITS: u32 = 20;
const LAP_BITS: u32 = 23;
const CUT_BITS: u32 = 40;

/// The memory, valid when zeroed: `E` entries, the cuts of `C` steps and `N` blocks.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Shared<
    W = AtomicU64,
    B = AtomicU8,
    const E: usize = ENTRIES,
    const C: usize = CUTS,
    const N: usize = BLOCKS,
> {
    /// [`MAGIC`] once it is in use.
    magic: W,
    /// Ranks of the job.
    world: AtomicU32,
    _pad: [u32; 13],
    /// Entries appended.
    head: W,
    /// Entries up to here are withheld by the engine.
    withheld: W,
    /// Entries that calls under way may still append.
    promised: W,
    _pad2: [u64; 5],
    cuts: [W; C],
    entries: [W; E],
    /// Parts that a block misses, over all stripes and ranks.
    missing: [B; N],
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Shared, head) == 64);
    assert!(offset_of!(Shared, cuts) == 128);
    assert!(size_of::<Shared>() == 128 + 8 * (CUTS + ENTRIES) + BLOCKS);
};

/// Why the log refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The engine has not withheld what was lost long ago.
    #[error("the engine has left {ENTRIES} entries of lost blocks unread")]
    Unread,
    /// A block id beyond [`BLOCKS`].
    #[error("a block id beyond {BLOCKS}")]
    Block,
    /// A step much older than the newest.
    #[error("step {0} was asked for long after later ones")]
    Step(u64),
}

/// What happened to `[first, first + count)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Lost; else back.
    pub lost: bool,
    /// First block.
    pub first: u32,
    /// Blocks.
    pub count: u32,
}

impl News {
    fn encode(self, lap: u64) -> u64 {
        (lap & ((1 << LAP_BITS) - 1)) << (COUNT_BITS + FIRST_BITS + 1)
            | u64::from(self.lost) << (COUNT_BITS + FIRST_BITS)
            | u64::from(self.first) << COUNT_BITS
            | u64::from(self.count)
    }

    const fn decode(word: u64) -> Self {
        Self {
            lost: word >> (COUNT_BITS + FIRST_BITS) & 1 != 0,
            first: (word >> COUNT_BITS & ((1 << FIRST_BITS) - 1)) as u32,
            count: (word & ((1 << COUNT_BITS) - 1)) as u32,
        }
    }
}

const fn lap_of(word: u64) -> u64 {
    word >> (COUNT_BITS + FIRST_BITS + 1)
}

impl<W: Word + Default, B: Tally + Default, const E: usize, const C: usize, const N: usize> Default
    for Shared<W, B, E, C, N>
{
    /// On the stack, so only for sizes that fit there.
    fn default() -> Self {
        Self {
            magic: W::default(),
            world: AtomicU32::new(0),
            _pad: [0; 13],
            head: W::default(),
            withheld: W::default(),
            promised: W::default(),
            _pad2: [0; 5],
            cuts: core::array::from_fn(|_| W::default()),
            entries: core::array::from_fn(|_| W::default()),
            missing: core::array::from_fn(|_| B::default()),
        }
    }
}

/// Entries that a call may append, given back at its end.
struct Promise<'a, W: Word>(&'a W, u64);

impl<W: Word> Drop for Promise<'_, W> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1.wrapping_neg());
    }
}

impl<W: Word, B: Tally, const E: usize, const C: usize, const N: usize> Shared<W, B, E, C, N> {
    /// The slot of an entry, and what says there that it is written.
    fn slot(&self, number: u64) -> (&W, u64) {
        let at = usize::try_from(number % E as u64).unwrap_or(0);
        (&self.entries[at], number / E as u64 + 1)
    }

    /// Entries appended so far.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.help()
    }

    /// Entries that the engine withholds.
    #[must_use]
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Acquire)
    }

    /// The engine withholds every block lost up to `number`.
    pub fn acknowledge(&self, number: u64) {
        let number = number.min(self.head());
        let mut known = self.withheld();
        while known < number {
            match self.withheld.compare_exchange(known, number) {
                Ok(_) => break,
                Err(found) => known = found,
            }
        }
    }

    /// Moves the head over entries whose writer did not; where it is then.
    fn help(&self) -> u64 {
        loop {
            let head = self.head.load(Acquire);
            let (slot, lap) = self.slot(head);
            if lap_of(slot.load(Acquire)) != lap_of(NOTHING.encode(lap)) {
                return head;
            }
            let _ = self.head.compare_exchange(head, head + 1);
        }
    }

    /// Promises room for as many entries as a call about `count` blocks can need: every second block
    /// at worst makes one of its own.
    ///
    /// Of two that promise at once the later sees both. What is read before the head is never ahead of
    /// it, and an entry appended meanwhile counts as promised too: too little room is seen at worst.
    fn promise(&self, count: u32) -> Result<Promise<'_, W>, Refused> {
        let most = u64::from(count / 2 + 1);
        self.promised.fetch_add(most);
        let promise = Promise(&self.promised, most);
        let withheld = self.withheld();
        let promised = self.promised.load(Acquire);
        if self.head() - withheld + promised > E as u64 {
            return Err(Refused::Unread);
        }
        Ok(promise)
    }

    /// Appends an entry for which there is room.
    fn append(&self, news: News) {
        loop {
            let (slot, lap) = self.slot(self.help());
            let (old, new) = (slot.load(Acquire), news.encode(lap));
            if lap_of(old) != lap_of(new) && slot.compare_exchange(old, new).is_ok() {
                self.help();
                return;
            }
        }
    }

    /// Appends the blocks of a range for which `changed` is true, run by run.
    fn append_runs(
        &self,
        first: u32,
        count: u32,
        lost: bool,
        changed: impl Fn(&B) -> bool,
    ) -> Result<u64, Refused> {
        let blocks = (first as usize)
            .checked_add(count as usize)
            .and_then(|end| self.missing.get(first as usize..end))
            .ok_or(Refused::Block)?;
        let _promise = self.promise(count)?;
        let mut run: Option<(u32, u32)> = None;
        for (id, block) in (first..).zip(blocks) {
            if changed(block) {
                run = Some(run.map_or((id, 1), |(start, length)| (start, length + 1)));
            } else if let Some((first, count)) = run.take() {
                self.append(News { lost, first, count });
            }
        }
        if let Some((first, count)) = run {
            self.append(News { lost, first, count });
        }
        Ok(self.head())
    }

    /// A part of each block of a range goes; the entry after which all of them are named.
    ///
    /// # Errors
    /// When there is no room; then nothing was counted.
    pub fn lose(&self, first: u32, count: u32) -> Result<u64, Refused> {
        self.append_runs(first, count, true, |block| block.raise() == 0)
    }

    /// A part of each block of a range is there again.
    ///
    /// # Errors
    /// When there is no room; then nothing was counted.
    pub fn regain(&self, first: u32, count: u32) -> Result<u64, Refused> {
        self.append_runs(first, count, false, |block| block.lower() == 1)
    }

    /// Whether a block misses a part.
    #[must_use]
    pub fn is_missing(&self, block: u32) -> bool {
        let block = self.missing.get(block as usize);
        block.is_some_and(|block| block.load() != 0)
    }

    /// Where the log ends for `step`: the same for everyone who asks.
    ///
    /// # Errors
    /// When so many later steps were asked for that it is not known any more.
    pub fn cut(&self, step: u64) -> Result<u64, Refused> {
        const MASK: u64 = (1 << CUT_BITS) - 1;
        let tag = (step / C as u64 + 1) & (u64::MAX >> CUT_BITS);
        let slot = &self.cuts[usize::try_from(step % C as u64).unwrap_or(0)];
        loop {
            let known = slot.load(Acquire);
            if known >> CUT_BITS == tag {
                return Ok(known & MASK);
            }
            if known >> CUT_BITS > tag {
                return Err(Refused::Step(step));
            }
            let cut = self.head() & MASK;
            let fresh = tag << CUT_BITS | cut;
            if slot.compare_exchange(known, fresh).is_ok() {
                return Ok(cut);
            }
        }
    }

    /// The entry of this number, which is below the head.
    fn entry(&self, number: u64) -> News {
        News::decode(self.slot(number).0.load(Acquire))
    }

    /// Takes zeroed memory into use for a job of `world` ranks.
    pub fn begin(&self, world: u32) {
        self.world.store(world, Release);
        self.magic.store(MAGIC, Release);
    }

    /// Ranks of the job, if this is the memory of one.
    #[must_use]
    pub fn ranks(&self) -> Option<u32> {
        (self.magic.load(Acquire) == MAGIC).then(|| self.world.load(Acquire))
    }
}

const NOTHING: News = News {
    lost: false,
    first: 0,
    count: 0,
};

/// Who reads the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader {
    next: u64,
}

/// A step's news: lost first, then back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Ids lost, in order.
    pub lost: Vec<u32>,
    /// Ids back, in order.
    pub back: Vec<u32>,
    /// Entries these are from, all told: what [`Shared::acknowledge`] takes.
    pub upto: u64,
}

impl Reader {
    /// Begins where the log ends.
    #[must_use]
    pub fn at_end<W: Word, B: Tally, const E: usize, const C: usize, const N: usize>(
        shared: &Shared<W, B, E, C, N>,
    ) -> Self {
        Self {
            next: shared.head(),
        }
    }

    /// The news of `step`, not consumed yet.
    ///
    /// Every loss up to the cut is told: outputs that the step has on the host may come from any of
    /// them. A block that came back and was lost again is told as lost only, perhaps to an engine
    /// that still withholds it. Every rank reads the same entries from the same point.
    ///
    /// # Errors
    /// As [`Shared::cut`].
    pub fn read<W: Word, B: Tally, const E: usize, const C: usize, const N: usize>(
        &self,
        shared: &Shared<W, B, E, C, N>,
        step: u64,
    ) -> Result<Step, Refused> {
        let cut = shared.cut(step)?;
        let mut news = Step {
            upto: self.next.max(cut),
            ..Step::default()
        };
        for number in self.next..cut {
            let entry = shared.entry(number);
            let ids = entry.first..entry.first.saturating_add(entry.count);
            if entry.lost {
                news.back.retain(|id| !ids.contains(id));
                news.lost.extend(ids);
            } else {
                news.back.extend(ids);
            }
        }
        Ok(news)
    }

    /// Goes on behind what was told.
    pub const fn consume(&mut self, step: &Step) {
        self.next = step.upto;
    }
}

const _: () = {
    assert!(COUNT_BITS + FIRST_BITS + 1 + LAP_BITS == 64);
    assert!(BLOCKS == 1 << FIRST_BITS);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// All-zero memory of that size, as a fresh mapping is.
    fn shared() -> Box<Shared> {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let bytes: Box<[AtomicU8]> = (0..BLOCKS).map(|_| AtomicU8::new(0)).collect();
        let shared = Box::new(Shared {
            magic: AtomicU64::new(0),
            world: AtomicU32::new(0),
            _pad: [0; 13],
            head: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            _pad2: [0; 5],
            cuts: *<Box<[AtomicU64; CUTS]>>::try_from(words(CUTS)).expect("that many"),
            entries: *<Box<[AtomicU64; ENTRIES]>>::try_from(words(ENTRIES)).expect("that many"),
            missing: *<Box<[AtomicU8; BLOCKS]>>::try_from(bytes).expect("that many"),
        });
        shared.begin(1);
        shared
    }

    fn read(shared: &Shared, reader: &mut Reader, step: u64) -> (Vec<u32>, Vec<u32>) {
        let news = reader.read(shared, step).expect("a step that is known");
        reader.consume(&news);
        shared.acknowledge(news.upto);
        (news.lost, news.back)
    }

    #[test]
    fn a_block_is_lost_with_its_first_part_and_back_with_its_last() {
        let shared = shared();
        let mut reader = Reader::at_end(&shared);
        shared.lose(10, 3).expect("room");
        shared.lose(12, 2).expect("room");
        assert_eq!(
            read(&shared, &mut reader, 0),
            (vec![10, 11, 12, 13], vec![])
        );
        shared.regain(10, 3).expect("room");
        assert_eq!(read(&shared, &mut reader, 1), (vec![], vec![10, 11]));
        assert!(shared.is_missing(12));
        shared.regain(12, 2).expect("room");
        assert_eq!(read(&shared, &mut reader, 2), (vec![], vec![12, 13]));
    }

    #[test]
    fn a_block_lost_again_before_it_was_told_back_is_told_as_lost() {
        let shared = shared();
        let mut reader = Reader::at_end(&shared);
        shared.lose(5, 1).expect("room");
        assert_eq!(read(&shared, &mut reader, 0), (vec![5], vec![]));
        shared.regain(5, 1).expect("room");
        shared.lose(5, 1).expect("room");
        shared.lose(9, 1).expect("room");
        assert_eq!(read(&shared, &mut reader, 1), (vec![5, 9], vec![]));
        shared.regain(5, 1).expect("room");
        assert_eq!(read(&shared, &mut reader, 2), (vec![], vec![5]));
    }

    #[test]
    fn every_rank_sees_the_same_cut_at_the_same_step() {
        let shared = shared();
        let (mut one, mut two) = (Reader::at_end(&shared), Reader::at_end(&shared));
        shared.lose(1, 1).expect("room");
        let first = read(&shared, &mut one, 7);
        shared.lose(2, 1).expect("room");
        assert_eq!(read(&shared, &mut two, 7), first);
        assert_eq!(read(&shared, &mut two, 8), (vec![2], vec![]));
        assert_eq!(read(&shared, &mut one, 8), (vec![2], vec![]));
        for step in 9..=9 + CUTS as u64 {
            shared.cut(step).expect("a new step");
        }
        assert_eq!(shared.cut(9), Err(Refused::Step(9)), "long gone");
    }

    #[test]
    fn nothing_unread_is_overwritten() {
        let shared = shared();
        let mut lost = 0;
        while shared.lose(lost, 1).is_ok() {
            lost += 2;
        }
        assert_eq!(lost as usize / 2, ENTRIES);
        assert_eq!(shared.lose(1, 1), Err(Refused::Unread));
        assert!(!shared.is_missing(1));
        let mut reader = Reader { next: 0 };
        assert_eq!(read(&shared, &mut reader, 0).0.len(), ENTRIES);
        shared.lose(1, 1).expect("there is room again");
        assert_eq!(read(&shared, &mut reader, 1), (vec![1], vec![]));
        assert_eq!(
            shared.lose(u32::try_from(BLOCKS).expect("it fits"), 1),
            Err(Refused::Block)
        );
    }

    #[test]
    fn ranks_that_append_at_once_lose_no_entry() {
        let shared: Arc<Shared> = Arc::from(shared());
        let mut reader = Reader::at_end(&shared);
        std::thread::scope(|scope| {
            for rank in 0..4_u32 {
                let shared = Arc::clone(&shared);
                scope.spawn(move || {
                    for at in 0..2_000 {
                        shared.lose(at * 8 + rank * 2, 1).expect("room");
                    }
                });
            }
        });
        let (mut lost, _) = read(&shared, &mut reader, 0);
        lost.sort_unstable();
        assert_eq!(lost, (0..16_000).step_by(2).collect::<Vec<u32>>());
    }

    proptest! {
        /// After a step's news a reader knows exactly which blocks are missing.
        #[test]
        fn the_news_of_a_step_leave_no_loss_untold(
            calls in prop::collection::vec((0_u32..40, 1_u32..9, any::<bool>(), any::<bool>()), 1..80),
        ) {
            let shared = shared();
            let mut reader = Reader::at_end(&shared);
            let mut held = Vec::new();
            let mut told = [false; 64];
            let mut step = 0;
            for (first, count, lose, look) in calls {
                if lose {
                    shared.lose(first, count).expect("room");
                    held.push((first, count));
                } else if let Some((first, count)) = held.pop() {
                    shared.regain(first, count).expect("room");
                }
                let mut missing = [0_i32; 64];
                for (first, count) in &held {
                    (*first..first + count).for_each(|id| missing[id as usize] += 1);
                }
                if look {
                    let (lost, back) = read(&shared, &mut reader, step);
                    step += 1;
                    lost.iter().for_each(|id| told[*id as usize] = true);
                    for id in back {
                        prop_assert!(std::mem::replace(&mut told[id as usize], false));
                    }
                    for (told, missing) in told.iter().zip(missing) {
                        prop_assert_eq!(*told, missing > 0);
                    }
                }
            }
        }
    }
}
