//! Which channels are disabled, written so that it survives the agent.
//!
//! The journal is a mapped file of words on tmpfs. A record is marked before its channel is disabled, and cleared after
//! the channel was enabled. After a crash, the marked records therefore include everything that is disabled.
//!
//! * The firmware counts disables: two disables need two enables (P9 on an H200, driver 580.159.04), and one enable too
//!   many is harmless. So a channel that is known to be disabled (SURE) is not disabled again. If that is unknown, the
//!   record says how many disables may lack an enable, and whoever enables (the agent, a successor, `tidegate release`)
//!   does so that often.
//! * The driver refuses a record of a channel that is gone. The record is then cleared.
//! * MOVING: the process is changing the mappings of its memory on the agent's order. Its channels are enabled only
//!   when it has finished or is gone, because the GPU would fault where nothing is mapped.
//! * RESTART: whoever enables the channel then restarts its runlist.
//!
//! The file is never synced: a machine that loses its memory also loses its channels.
//!
//! ```text
//! word 0 magic+version | 1 agent generation | 2 handing over since | 3 records | 4.. records
//! record: (client << 32 | channel) ,
//!         (device instance << 32 | process id << 8 if MOVING | further disables << 5 | DOUBTED | SURE | RESTART |
//!         MOVING | DISABLED)
//! ```

use crate::kinds::Method;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::gate::MOST_DISABLES;

const MAGIC: u64 = u64::from_le_bytes(*b"TIDEJRN1");
const HEADER: usize = 4;
/// Channels the journal has room for: 16 sessions with the most a session may have. Who may have how many of them says
/// [`crate::shares`].
pub const RECORDS: usize = 16_384;
/// Words of the file.
pub const WORDS: usize = HEADER + 2 * RECORDS;
const DISABLED: u64 = 1;
const MOVING: u64 = 2;
const RESTART: u64 = 4;
/// Disables beyond the first that may have had no enable: more than that many are taken for that many.
const FURTHER: u32 = 5;
const FURTHER_MASK: u64 = 0b111 << FURTHER;
/// This agent disabled it, firmware has said so, and nobody is known to have enabled it since.
const SURE: u64 = 8;
/// Somebody may have enabled it since the last call that disables it began.
const DOUBTED: u64 = 16;
const _: () = assert!(MOST_DISABLES as u64 == 1 + (FURTHER_MASK >> FURTHER));
/// Where a process id begins; Linux has none above 22 bits.
const PROCESS: u32 = 8;
const PROCESS_MASK: u64 = 0xff_ffff << PROCESS;

/// How long `handing over` keeps others from enabling.
pub const HANDING_OVER_NS: u64 = 1_000_000_000;

/// Memory that holds a journal: [`WORDS`] words, which outlive the agent.
pub trait JournalMemory: fmt::Debug + Send + Sync {
    /// The words.
    fn words(&self) -> &[AtomicU64];
}

/// A journal made for one run, for who needs none that outlives it.
impl JournalMemory for Box<[AtomicU64]> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// The words. Any thread marks and clears; only the shell takes and gives back places.
#[derive(Debug)]
pub struct Journal {
    memory: Box<dyn JournalMemory>,
    /// See [`Journal::instead_of_lost`].
    lost: bool,
}

/// The memory holds something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAJournal;

/// A place in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub(crate) u32);

impl Place {
    /// Of a pair that no journal knows. It is never marked.
    pub const NONE: Self = Self(u32::MAX);

    /// Which it is.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A channel with a place in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Where it stands.
    pub place: Place,
    /// Its RM client.
    pub client: u32,
    /// The channel.
    pub channel: u32,
    /// The GPU.
    pub device_instance: u32,
    /// The process that was changing its memory's mappings when last heard of.
    pub mover: Option<u32>,
    /// Whether its runlist is to be restarted when it is enabled.
    pub restart: bool,
}

impl Journal {
    /// The journal in `memory`, which is begun if its words are all 0.
    ///
    /// # Errors
    /// When it is not a journal of this version.
    pub fn over(memory: impl JournalMemory + 'static) -> Result<Self, NotAJournal> {
        let words = memory.words();
        if words.len() != WORDS {
            return Err(NotAJournal);
        }
        match words[0].load(Ordering::Acquire) {
            MAGIC => {}
            0 => {
                words[3].store(RECORDS as u64, Ordering::Relaxed);
                words[0].store(MAGIC, Ordering::Release);
            }
            _ => return Err(NotAJournal),
        }
        Ok(Self {
            memory: Box::new(memory),
            lost: false,
        })
    }

    /// One that nobody else sees.
    #[must_use]
    pub fn private() -> Self {
        let words: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        words[0].store(MAGIC, Ordering::Relaxed);
        words[3].store(RECORDS as u64, Ordering::Relaxed);
        Self {
            memory: Box::new(words),
            lost: false,
        }
    }

    /// The one before it cannot be read. What it said must be a superset of what is disabled, so every channel of a process
    /// that was under an agent before may be.
    #[must_use]
    pub const fn instead_of_lost(mut self) -> Self {
        self.lost = true;
        self
    }

    /// Whether a channel without a record may be disabled.
    #[must_use]
    pub const fn is_instead_of_lost(&self) -> bool {
        self.lost
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    fn record(&self, place: Place) -> [&AtomicU64; 2] {
        let at = HEADER + 2 * place.0 as usize;
        [&self.words()[at], &self.words()[at + 1]]
    }

    /// Writes down which channel `place` is about. It must not be marked.
    pub fn describe(&self, place: Place, client: u32, channel: u32, device_instance: u32) {
        let [pair, state] = self.record(place);
        pair.store(
            u64::from(client) << 32 | u64::from(channel),
            Ordering::Relaxed,
        );
        state.store(u64::from(device_instance) << 32, Ordering::Release);
    }

    /// The (client, channel) that `place` is about.
    #[must_use]
    pub fn pair(&self, place: Place) -> (u32, u32) {
        let [pair, _] = self.record(place);
        let pair = pair.load(Ordering::Relaxed);
        (low(pair >> 32), low(pair))
    }

    /// The channel is about to be disabled, by `method`.
    pub fn mark(&self, place: Place, method: Method) {
        let [_, state] = self.record(place);
        let restart = match method {
            Method::Restart => RESTART,
            Method::Disable | Method::Preempt | Method::PreemptFirst => 0,
        };
        let further = |state: u64| {
            let more = state & DISABLED != 0 && state & FURTHER_MASK != FURTHER_MASK;
            let marked = (state + (u64::from(more) << FURTHER)) | DISABLED | restart;
            Some(marked & !(SURE | DOUBTED))
        };
        let _ = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, further);
    }

    /// The channel may be disabled, nobody knows how often.
    pub fn suspect(&self, place: Place) {
        let [_, state] = self.record(place);
        state.fetch_or(DISABLED | DOUBTED | FURTHER_MASK, Ordering::AcqRel);
    }

    /// The channel was enabled, or is gone.
    pub fn clear(&self, place: Place) {
        let [_, state] = self.record(place);
        let cleared = DISABLED | RESTART | SURE | DOUBTED | FURTHER_MASK;
        state.fetch_and(!cleared, Ordering::AcqRel);
    }

    /// The call that disables a marked channel has succeeded.
    pub fn confirm(&self, place: Place) {
        let [_, state] = self.record(place);
        let sure = |state: u64| {
            let stands = state & DISABLED != 0 && state & DOUBTED == 0;
            stands.then_some(state | SURE)
        };
        let _ = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, sure);
    }

    /// Somebody is about to enable the channel, or may have done it: what is under way confirms nothing any more.
    pub fn doubt(&self, place: Place) {
        let [_, state] = self.record(place);
        let doubted = |state: u64| Some((state & !SURE) | DOUBTED);
        let _ = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, doubted);
    }

    /// Whether the channel is known to be disabled.
    #[must_use]
    pub fn is_sure(&self, place: Place) -> bool {
        place != Place::NONE && self.record(place)[1].load(Ordering::Acquire) & SURE != 0
    }

    /// How many enables it takes until the channels at `places` run, whichever of them was disabled most often; 1 of
    /// what is not marked.
    pub fn enables(&self, places: &[Place]) -> u32 {
        let known = places.iter().filter(|&&place| place != Place::NONE);
        let of = known.map(|&place| {
            let state = self.record(place)[1].load(Ordering::Acquire);
            1 + u32::try_from((state & FURTHER_MASK) >> FURTHER).unwrap_or(0)
        });
        of.max().unwrap_or(1)
    }

    /// Process `pid` is about to be told to change mappings that the channel may use.
    pub fn begin_move(&self, place: Place, pid: u32) {
        let [_, state] = self.record(place);
        let by = (u64::from(pid) << PROCESS) & PROCESS_MASK;
        state.fetch_or(by | MOVING, Ordering::AcqRel);
    }

    /// It has ended that.
    pub fn end_move(&self, place: Place) {
        let [_, state] = self.record(place);
        state.fetch_and(!(PROCESS_MASK | MOVING), Ordering::AcqRel);
    }

    /// Everything marked.
    #[must_use]
    pub fn marked(&self) -> Vec<Marked> {
        let is_marked = |place: &Place| {
            let [_, state] = self.record(*place);
            state.load(Ordering::Acquire) & DISABLED != 0
        };
        (0..u32::try_from(RECORDS).unwrap_or(0))
            .map(Place)
            .filter(is_marked)
            .map(|place| self.described(place))
            .collect()
    }

    /// What `place` is about, marked or not.
    #[must_use]
    pub fn described(&self, place: Place) -> Marked {
        let state = self.record(place)[1].load(Ordering::Acquire);
        let (client, channel) = self.pair(place);
        Marked {
            place,
            client,
            channel,
            device_instance: low(state >> 32),
            restart: state & RESTART != 0,
            mover: (state & MOVING != 0).then(|| low((state & PROCESS_MASK) >> PROCESS)),
        }
    }

    /// Generation of the last agent.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.words()[1].load(Ordering::Relaxed)
    }

    /// Takes the next generation. None is 0: that is who was under no agent.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        let before = self.words()[1].fetch_add(1, Ordering::Relaxed);
        match before.wrapping_add(1) {
            0 => self.next_generation(),
            next => next,
        }
    }

    /// Says since when an agent is handing over to a successor; 0: none is.
    pub fn set_handing_over(&self, at_ns: u64) {
        self.words()[2].store(at_ns, Ordering::Release);
    }

    /// Whether a successor was promised the channels as they are and may still come. A stamp that lies far ahead is of
    /// another clock: of an agent in another time namespace, which did not promise it within the last second.
    #[must_use]
    pub fn is_handing_over(&self, now_ns: u64) -> bool {
        let since = self.words()[2].load(Ordering::Acquire);
        since != 0 && now_ns.abs_diff(since) < HANDING_OVER_NS
    }
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

/// Places nobody has.
#[derive(Debug)]
pub struct Places(Vec<Place>);

impl Places {
    /// All but those `taken` by channels that an earlier agent left.
    #[must_use]
    pub fn without(taken: &[Marked]) -> Self {
        let records = u32::try_from(RECORDS).unwrap_or(0);
        let free = |place: &Place| !taken.iter().any(|marked| marked.place == *place);
        Self((0..records).rev().map(Place).filter(free).collect())
    }

    /// Takes one; None: the journal is full, and the channel cannot be managed.
    pub fn take(&mut self) -> Option<Place> {
        self.0.pop()
    }

    /// How many there are.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// Gives one back.
    pub fn give_back(&mut self, place: Place) {
        self.0.push(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    impl JournalMemory for Arc<Box<[AtomicU64]>> {
        fn words(&self) -> &[AtomicU64] {
            self
        }
    }

    fn zeroes() -> Arc<Box<[AtomicU64]>> {
        Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn what_was_marked_is_found_by_whoever_comes_next() {
        let memory = zeroes();
        let journal = Journal::over(Arc::clone(&memory)).expect("empty");
        assert_eq!(journal.next_generation(), 1);
        let mut places = Places::without(&[]);
        let (a, b) = (places.take().expect("room"), places.take().expect("room"));
        journal.describe(a, 0xc1d0_0001, 0x5c00_0010, 3);
        journal.describe(b, 0xc1d0_0001, 0x5c00_0011, 3);
        journal.mark(a, Method::Restart);
        journal.mark(b, Method::Disable);
        journal.begin_move(a, 77);
        journal.begin_move(b, 78);
        journal.end_move(b);
        journal.clear(b);
        drop(journal);
        let journal = Journal::over(memory).expect("a journal");
        let marked = journal.marked();
        let expected = Marked {
            place: a,
            client: 0xc1d0_0001,
            channel: 0x5c00_0010,
            device_instance: 3,
            mover: Some(77),
            restart: true,
        };
        assert_eq!(marked, [expected]);
        journal.end_move(a);
        assert_eq!(journal.described(a).mover, None);
        assert_eq!(journal.next_generation(), 2);
        let mut left = Places::without(&marked);
        assert!((1..RECORDS).all(|_| left.take().is_some_and(|place| place != a)));
        assert_eq!(left.take(), None);
    }

    #[test]
    fn each_disable_takes_an_enable() {
        let journal = Journal::private();
        let mut places = Places::without(&[]);
        let (a, b) = (places.take().expect("room"), places.take().expect("room"));
        for place in [a, b] {
            journal.describe(place, 0xc1d0_0001, 0x5c00_0010, 3);
        }
        assert_eq!(journal.enables(&[a, b, Place::NONE]), 1);
        journal.mark(a, Method::Disable);
        journal.begin_move(a, 77);
        assert_eq!(journal.enables(&[a, b]), 1);
        journal.mark(a, Method::Restart);
        journal.mark(b, Method::Disable);
        assert_eq!((journal.enables(&[a, b]), journal.enables(&[b])), (2, 1));
        for _ in 0..2 * MOST_DISABLES {
            journal.mark(a, Method::Disable);
        }
        assert_eq!(journal.enables(&[b, a]), MOST_DISABLES);
        let marked = journal.described(a);
        assert_eq!(
            (marked.device_instance, marked.mover, marked.restart),
            (3, Some(77), true)
        );
        journal.clear(a);
        assert_eq!(journal.enables(&[a]), 1);
        assert_eq!(journal.described(a).mover, Some(77));
    }

    #[test]
    fn what_is_disabled_is_known_unless_somebody_may_have_enabled_it_since() {
        let journal = Journal::private();
        let place = Places::without(&[]).take().expect("room");
        journal.describe(place, 0xc1d0_0001, 0x5c00_0010, 3);
        journal.confirm(place);
        assert!(!journal.is_sure(place), "nobody disabled it");
        journal.mark(place, Method::Disable);
        assert!(!journal.is_sure(place), "no answer yet");
        journal.confirm(place);
        assert!(journal.is_sure(place));
        journal.doubt(place);
        journal.confirm(place);
        assert!(!journal.is_sure(place), "the call began before the doubt");
        journal.mark(place, Method::Disable);
        journal.confirm(place);
        assert!(journal.is_sure(place));
        assert_eq!(journal.enables(&[place]), 2);
        journal.clear(place);
        assert!(!journal.is_sure(place));
        assert!(!journal.is_sure(Place::NONE));
    }

    /// P-LIFECYCLE-4: a journal that cannot be read is taken for one that has every channel in it.
    #[test]
    fn a_channel_of_a_lost_journal_is_enabled_as_often_as_any_can_be_disabled() {
        let journal = Journal::private();
        let place = Places::without(&[]).take().expect("room");
        journal.describe(place, 0xc1d0_0001, 0x5c00_0010, 3);
        journal.suspect(place);
        assert_eq!(journal.enables(&[place]), MOST_DISABLES);
        assert!(!journal.is_sure(place));
        assert_eq!(journal.marked().len(), 1);
        journal.clear(place);
        assert_eq!(journal.enables(&[place]), 1);
    }

    #[test]
    fn handing_over_lapses_after_a_second() {
        let journal = Journal::private();
        assert!(!journal.is_handing_over(5));
        journal.set_handing_over(1_000);
        assert!(journal.is_handing_over(1_000 + HANDING_OVER_NS - 1));
        assert!(!journal.is_handing_over(1_000 + HANDING_OVER_NS));
        journal.set_handing_over(300 * HANDING_OVER_NS);
        assert!(
            !journal.is_handing_over(1_000),
            "for as long as another clock is ahead"
        );
    }

    #[test]
    fn other_memory_is_not_taken_for_a_journal() {
        let memory = zeroes();
        memory[0].store(7, Ordering::Relaxed);
        assert_eq!(Journal::over(memory).err(), Some(NotAJournal));
        let short: Box<[AtomicU64]> = (0..5).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(Journal::over(short).err(), Some(NotAJournal));
    }
}
