//! The log of a job's lost blocks, in memory that its processes share.
//!
//! Every rank appends what it loses and gets back; the scheduler reads, once per step. A block is *lost* when its first
//! part is lost in any rank, and *back* when its last part has memory again; a count for each block decides that
//! ([`Shared::missing`]). All ranks that schedule must read the same losses at the same step. So the first rank that
//! asks at a step publishes where the log ends for that step (its *cut*).
//!
//! ```text
//! lost, appended before the mapping changes
//!        |      read at a step          reported by the engine     restored in every rank
//!   lost ------------------> reported -----------------> withheld ----------------------> back
//! ```
//!
//! Every scheduler counts its steps from 0. So the readers of a rank are numbered, and cuts are kept by the reader's
//! number (its *generation*) and the step: the nth readers of all ranks read the same cuts, and no reader sees the cuts
//! of an earlier one. A generation begins with what the one before has not acknowledged. Blocks that have been missing
//! for longer are appended as lost again.
//!
//! Invariants:
//!
//! * An entry is readable before the agent learns that the memory is gone.
//! * Nothing is overwritten before the engine has withheld it, and a block comes back only after that.
//! * No process that dies in the middle stops another: an entry is one store, and the next process moves the head over
//!   it.
//! * Room is *promised* before anything is counted, so that two ranks that lose blocks at once cannot both get the last
//!   slot. A process counts its promises in its table too ([`Member`]), so that they end with it.
//!
//! The log also knows which process misses a part of a block ([`Member`]), so that what a process missed ends with it.
//!
//! The memory is generic over its words and sizes, so that the same code runs under loom.

use crate::word::{Tally, Word};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// `TIDEJOB2`, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEJOB2");
/// Entries kept.
pub const ENTRIES: usize = 1 << 16;
/// Steps whose cuts are kept.
pub const CUTS: usize = 1 << 10;
/// Generations of readers that are told apart.
pub const GENERATIONS: usize = 4;
/// Ranks whose readers are counted apart.
pub const RANKS: usize = 256;
/// Blocks of a job.
pub const BLOCKS: usize = 1 << 20;

const COUNT_BITS: u32 = 20;
const FIRST_BITS: u32 = 20;
const LAP_BITS: u32 = 23;
const CUT_BITS: u32 = 40;
const VALUE_BITS: u32 = 48;
const VALUE: u64 = (1 << VALUE_BITS) - 1;

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
    /// Steps asked for, of all generations in a row.
    steps: W,
    _pad2: [u64; 4],
    /// By generation: its number, and the entry that it begins with.
    starts: [W; GENERATIONS],
    /// By generation: its number, and the step that is its first in the row of all.
    firsts: [W; GENERATIONS],
    /// By rank: readers so far.
    readers: [AtomicU32; RANKS],
    cuts: [W; C],
    entries: [W; E],
    /// Parts that a block misses, over all stripes and ranks.
    missing: [B; N],
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Shared, head) == 64);
    assert!(offset_of!(Shared, starts) == 128);
    assert!(offset_of!(Shared, cuts) == 192 + 4 * RANKS);
    assert!(size_of::<Shared>() == 192 + 4 * RANKS + 8 * (CUTS + ENTRIES) + BLOCKS);
};

/// Why the log refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The engine has not withheld what was lost long ago.
    #[error("the engine has left {ENTRIES} entries of lost blocks unread")]
    Unread,
    /// A block id beyond [`BLOCKS`].
    #[error("block id out of range: {BLOCKS} or more")]
    Block,
    /// What it says of itself cannot be: a process has written where it should not.
    #[error("the log of lost blocks is damaged: another process of the job has overwritten it")]
    Damaged,
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
            steps: W::default(),
            _pad2: [0; 4],
            starts: core::array::from_fn(|_| W::default()),
            firsts: core::array::from_fn(|_| W::default()),
            readers: [const { AtomicU32::new(0) }; RANKS],
            cuts: core::array::from_fn(|_| W::default()),
            entries: core::array::from_fn(|_| W::default()),
            missing: core::array::from_fn(|_| B::default()),
        }
    }
}

/// Entries that a call may append, given back at its end.
struct Promise<'a, W: Word> {
    all: &'a W,
    own: Option<&'a W>,
    entries: u64,
}

impl<'a, W: Word> Promise<'a, W> {
    /// What a process counts as its own is never more than it has in the count of all. One that is killed between the two
    /// leaves its promise there.
    fn new(all: &'a W, own: Option<&'a W>, entries: u64) -> Self {
        all.fetch_add(entries);
        if let Some(own) = own {
            own.fetch_add(entries);
        }
        Self { all, own, entries }
    }
}

impl<W: Word> Drop for Promise<'_, W> {
    fn drop(&mut self) {
        let less = self.entries.wrapping_neg();
        if let Some(own) = self.own {
            own.fetch_add(less);
        }
        self.all.fetch_add(less);
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
            let _ = self.head.compare_exchange(head, head.wrapping_add(1));
        }
    }

    /// Promises room for as many entries as a call about `count` blocks can need: every second block
    /// at worst makes one of its own.
    ///
    /// Of two that promise at once the later sees both. What is read before the head is never ahead of
    /// it, and an entry appended meanwhile counts as promised too: too little room is seen at worst.
    /// `own` is where the process counts it.
    fn promise<'a>(&'a self, count: u32, own: Option<&'a W>) -> Result<Promise<'a, W>, Refused> {
        let most = u64::from(count / 2 + 1);
        let promise = Promise::new(&self.promised, own, most);
        let withheld = self.withheld();
        let promised = self.promised.load(Acquire);
        let unread = self.head().saturating_sub(withheld);
        if unread.saturating_add(promised) > E as u64 {
            return Err(Refused::Unread);
        }
        Ok(promise)
    }

    /// Appends an entry for which there is room.
    ///
    /// Of a slot that was looked for long ago, another rank may have written since, laps later. Where the head still stands
    /// at the slot after it was read, what was read there is of no later lap; and what no rank wrote is replaced, too.
    fn append(&self, news: News) {
        loop {
            let number = self.help();
            let (slot, lap) = self.slot(number);
            let (old, new) = (slot.load(Acquire), news.encode(lap));
            let is_free = lap_of(old) != lap_of(new) && self.head.load(Acquire) == number;
            if is_free && slot.compare_exchange(old, new).is_ok() {
                self.help();
                return;
            }
        }
    }

    /// The blocks of a range.
    fn range(&self, first: u32, count: u32) -> Result<&[B], Refused> {
        (first as usize)
            .checked_add(count as usize)
            .and_then(|end| self.missing.get(first as usize..end))
            .ok_or(Refused::Block)
    }

    /// Appends blocks, which are counted from `first` and in order, run by run.
    fn append_runs(&self, first: u32, blocks: &[u32], lost: bool) {
        let in_a_row = |one: &u32, next: &u32| *one + 1 == *next;
        for run in blocks.chunk_by(in_a_row) {
            let count = u32::try_from(run.len()).unwrap_or(0);
            let first = first + run[0];
            self.append(News { lost, first, count });
        }
    }

    /// A part of these blocks is there again. Those whose last part it was are told as back.
    ///
    /// A rank that loses such a block meanwhile may say so first. Then it is told as lost again, while a part of it is
    /// held: whoever comes next sees which of the two was last.
    fn give_back(&self, first: u32, blocks: &[B], own: Option<&W>) {
        let lower = |at: &u32| blocks[*at as usize].lower() == 1;
        let mut back: Vec<u32> = (0..).zip(blocks).map(|(at, _)| at).filter(lower).collect();
        loop {
            self.append_runs(first, &back, false);
            back.retain(|at| blocks[*at as usize].load() != 0);
            let count = u32::try_from(back.len()).unwrap_or(0);
            let Some(_promise) = self.promise(4 * count, own).ok().filter(|_| count > 0) else {
                return;
            };
            for at in &back {
                blocks[*at as usize].raise();
            }
            self.append_runs(first, &back, true);
            back.retain(lower);
        }
    }

    /// Appends every missing block as lost again.
    fn tell_again(&self, own: Option<&W>) -> Result<(), Refused> {
        const AT_ONCE: usize = 1024;
        let mut at = 0;
        while let Some(next) = self.missing[at..]
            .iter()
            .position(|block| block.load() != 0)
        {
            let first = at + next;
            let run = self.missing[first..].iter().take(AT_ONCE);
            let count = run.take_while(|block| block.load() != 0).count().max(1);
            at = first + count;
            self.tell(first, count, own)?;
        }
        Ok(())
    }

    /// Appends blocks as lost that may be missing.
    ///
    /// A part of each is held meanwhile, so that one that is there, or comes back at once, is told as back after that.
    fn tell(&self, first: usize, count: usize, own: Option<&W>) -> Result<(), Refused> {
        let blocks = &self.missing[first..first + count];
        let first = u32::try_from(first).map_err(|_| Refused::Block)?;
        let count = u32::try_from(count).map_err(|_| Refused::Block)?;
        let _promise = self.promise(count + 2, own)?;
        for block in blocks {
            block.raise();
        }
        let lost = true;
        self.append(News { lost, first, count });
        self.give_back(first, blocks, own);
        Ok(())
    }

    /// What a generation's slot says, which whoever comes first writes.
    fn agree(slots: &[W; GENERATIONS], generation: u64, value: impl Fn() -> u64) -> u64 {
        let slot = &slots[usize::try_from(generation % GENERATIONS as u64).unwrap_or(0)];
        let tag = generation & (u64::MAX >> VALUE_BITS);
        loop {
            let known = slot.load(Acquire);
            if known >> VALUE_BITS == tag {
                return known & VALUE;
            }
            let value = value() & VALUE;
            if slot
                .compare_exchange(known, tag << VALUE_BITS | value)
                .is_ok()
            {
                return value;
            }
        }
    }

    /// A part of each block of a range goes; the entry after which all of them are named.
    ///
    /// # Errors
    /// When there is no room; then nothing was counted.
    pub fn lose(&self, first: u32, count: u32) -> Result<u64, Refused> {
        self.lose_as(None, first, count)
    }

    /// By a process that counts its promises in `own`.
    fn lose_as(&self, own: Option<&W>, first: u32, count: u32) -> Result<u64, Refused> {
        let blocks = self.range(first, count)?;
        let _promise = self.promise(count, own)?;
        let raise = |(_, block): &(u32, &B)| block.raise() == 0;
        let lost: Vec<u32> = (0..).zip(blocks).filter(raise).map(|(at, _)| at).collect();
        self.append_runs(first, &lost, true);
        Ok(self.head())
    }

    /// A part of each block of a range is there again.
    ///
    /// # Errors
    /// When there is no room; then nothing was counted.
    pub fn regain(&self, first: u32, count: u32) -> Result<u64, Refused> {
        let blocks = self.range(first, count)?;
        let _promise = self.promise(count, None)?;
        self.give_back(first, blocks, None);
        Ok(self.head())
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
        let mut steps = self.steps.load(Acquire);
        while steps <= step {
            match self.steps.compare_exchange(steps, step.saturating_add(1)) {
                Ok(_) => break,
                Err(found) => steps = found,
            }
        }
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
    /// Its step 0, in the row of all.
    first: u64,
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
    /// The next reader of `rank`, who counts its steps from 0. `own` is where its process counts its promises.
    ///
    /// # Errors
    /// When there is no room to name what is missing again.
    pub fn begin<W: Word, B: Tally, const E: usize, const C: usize, const N: usize>(
        shared: &Shared<W, B, E, C, N>,
        rank: u32,
        own: Option<&W>,
    ) -> Result<Self, Refused> {
        let readers = &shared.readers[rank as usize % RANKS];
        let generation = u64::from(readers.fetch_add(1, AcqRel)) + 1;
        let start =
            Shared::<W, B, E, C, N>::agree(&shared.starts, generation, || shared.withheld());
        // Far from the steps that readers of the generation before may still ask for.
        let first = Shared::<W, B, E, C, N>::agree(&shared.firsts, generation, || {
            match shared.steps.load(Acquire) {
                0 => 0,
                steps => (steps.div_ceil(C as u64) + 4).saturating_mul(C as u64),
            }
        });
        // Of the first readers nothing was acknowledged: every loss is there to read.
        if start > 0 {
            shared.tell_again(own)?;
        }
        let kept = shared.head().saturating_sub(E as u64);
        Ok(Self {
            next: start.max(kept),
            first,
        })
    }

    /// Begins where the log ends.
    #[must_use]
    pub fn at_end<W: Word, B: Tally, const E: usize, const C: usize, const N: usize>(
        shared: &Shared<W, B, E, C, N>,
    ) -> Self {
        Self {
            next: shared.head(),
            first: 0,
        }
    }

    /// The news of `step`, not consumed yet.
    ///
    /// Every loss up to the cut is told: outputs that the step has on the host may come from any of
    /// them. A block that came back and was lost again is told as lost only, perhaps to an engine
    /// that still withholds it. Every rank reads the same entries from the same point.
    ///
    /// # Errors
    /// As [`Shared::cut`], and where the log cannot be one.
    pub fn read<W: Word, B: Tally, const E: usize, const C: usize, const N: usize>(
        &self,
        shared: &Shared<W, B, E, C, N>,
        step: u64,
    ) -> Result<Step, Refused> {
        let cut = shared.cut(self.first.saturating_add(step))?;
        let unread = cut.saturating_sub(self.next);
        if unread > E as u64 {
            return Err(Refused::Damaged);
        }
        let mut news = Step {
            upto: self.next.max(cut),
            ..Step::default()
        };
        let last = u32::try_from(N).unwrap_or(u32::MAX);
        let entries = || {
            (self.next..cut).map(|number| {
                let entry = shared.entry(number);
                let end = entry.first.saturating_add(entry.count).min(last);
                (entry.lost, entry.first..end)
            })
        };
        // Told again, or lost twice.
        let mut told = Ranges::default();
        for (_, ids) in entries().filter(|(lost, _)| *lost) {
            told.add(ids, |new| news.lost.extend(new));
        }
        // The last word about a block is what holds of it.
        let mut decided = Ranges::default();
        for (lost, ids) in entries().rev() {
            decided.add(ids, |new| {
                if !lost {
                    news.back.extend(new.rev());
                }
            });
        }
        news.back.reverse();
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

mod members;
mod ranges;
pub use members::Member;
use ranges::Ranges;

#[cfg(test)]
mod tests;
