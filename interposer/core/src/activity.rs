//! Busy and idle, per device: the launch's side and the prober's side.
//!
//! A launch must tell the agent that its device is busy before it calls the driver. If that is known already, it must
//! cost almost nothing. A device is idle only when no thread is inside the driver with a launch, and all launched work
//! is done.
//!
//! ```text
//! launch                                   prober
//!   entered += 1        (plain store)        heavy fence
//!   light fence         (no instruction)     sum returned, then entered: equal?
//!   activity busy? ----no--> CAS to busy,    ask the touched streams: all done?
//!   call the driver          ring            CAS busy -> idle
//!   returned += 1       (plain store)        heavy fence
//!                                            sum entered again: moved? take idle back
//!                                            else ring the idle edge
//! ```
//!
//! Terms: a *count pair* belongs to one thread and one device. The *activity word* is `generation << 1 | busy` in the
//! page. An edge is *rung* when the doorbell is raised for it.
//!
//! Invariant: while a rung idle edge is in force, no launch that saw the word busy is inside the driver or has
//! unfinished work. The second heavy fence ensures that. If a thread's increment is still in its store buffer when the
//! prober sums, the thread has read the word before the prober's CAS; the fence makes the increment visible before the
//! second sum.
//!
//! The first heavy fence ensures a narrower invariant: idle is never written over a launch that began before the probe,
//! not even for the length of a probe. The agent looks at all words when any doorbell rings, and would otherwise take
//! such a word for an edge.
//!
//! `returned` is summed before `entered`. Equal sums then mean that each pair is equal, because no `entered` is ever
//! below the `returned` that was read before it. A launch that has to wait, or to take the slow path, lowers `entered`
//! again to its former value, so that each launch counts once. Between the two sums no pair can fall below its former
//! value, so none can compensate for another.

use crate::word::{Fences, Word};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::page::{ACTIVITY_BUSY, GATE_OPEN, GATE_STATE};

/// Launches of one thread on one device: those begun and those that came back from the driver.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counts<W> {
    /// Raised before the activity word is looked at.
    pub entered: W,
    /// Raised after the driver returned.
    pub returned: W,
}

impl<W: Word> Counts<W> {
    /// Raises `entered` by the thread that owns the pair.
    #[inline(always)]
    pub fn raise_entered(&self) {
        self.entered
            .store(self.entered.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Raises `returned` by the thread that owns the pair.
    #[inline(always)]
    pub fn raise_returned(&self) {
        self.returned
            .store(self.returned.load(Relaxed).wrapping_add(1), Release);
    }

    /// Takes a raise of `entered` back: the launch has not begun after all.
    #[inline(always)]
    pub fn lower_entered(&self) {
        self.entered
            .store(self.entered.load(Relaxed).wrapping_sub(1), Release);
    }

    /// Raises `entered` of a pair that threads share, or where no heavy fence is to be had.
    pub fn add_entered(&self) {
        self.entered.fetch_add(1);
    }

    /// As [`Self::lower_entered`] for such a pair.
    pub fn subtract_entered(&self) {
        self.entered.fetch_add(u64::MAX);
    }

    /// As [`Self::add_entered`] for `returned`.
    pub fn add_returned(&self) {
        self.returned.fetch_add(1);
    }
}

/// Begins a launch if the device is known to be busy and its gate is open; `false`: nothing was
/// begun, and the caller takes the slow path.
///
/// The gate is looked at after the raise for the same reason as the activity word: who closes it
/// and then, past a heavy fence, finds the sums equal knows that every later launch sees it closed.
#[inline(always)]
pub fn enter_if_busy<W: Word, F: Fences>(counts: &Counts<W>, activity: &W, gate: &W) -> bool {
    counts.raise_entered();
    F::light();
    if activity.load(Acquire) & ACTIVITY_BUSY != 0 && gate.load(Acquire) & GATE_STATE == GATE_OPEN {
        return true;
    }
    counts.lower_entered();
    false
}

/// Makes the device busy after `entered` was raised; the new word if this call was the edge, which
/// the caller then rings.
pub fn busy_edge<W: Word>(activity: &W) -> Option<u64> {
    let mut seen = activity.load(Acquire);
    loop {
        if seen & ACTIVITY_BUSY != 0 {
            return None;
        }
        let busy = seen.wrapping_add(2) | ACTIVITY_BUSY;
        match activity.compare_exchange(seen, busy) {
            Ok(_) => return Some(busy),
            Err(found) => seen = found,
        }
    }
}

/// The sums over all count pairs of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Launches begun.
    pub entered: u64,
    /// Launches that came back.
    pub returned: u64,
}

impl Sums {
    /// Sums `pairs`, which is walked twice.
    pub fn of<'a, W: Word + 'a, I: Iterator<Item = &'a Counts<W>>>(pairs: impl Fn() -> I) -> Self {
        let returned = pairs().fold(0_u64, |sum, pair| {
            sum.wrapping_add(pair.returned.load(Acquire))
        });
        let entered = pairs().fold(0_u64, |sum, pair| {
            sum.wrapping_add(pair.entered.load(Acquire))
        });
        Self { entered, returned }
    }
}

/// How a probe of one device begins.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin {
    /// The device is idle already.
    Idle,
    /// A thread is inside the driver.
    Inside(Sums),
    /// Nobody is: now ask the streams, then [`Quiet::publish`].
    Quiet(Quiet),
}

/// A busy device with no launch inside the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Quiet {
    word: u64,
    /// The sums that were equal.
    pub sums: Sums,
}

/// What became of an idle edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It stands; ring it.
    Idle {
        /// The activity word.
        word: u64,
    },
    /// A launch began meanwhile; the device is busy as before and nobody is told anything.
    TakenBack,
}

/// Begins a probe.
pub fn begin<'a, W: Word + 'a, I: Iterator<Item = &'a Counts<W>>>(
    fences: &impl Fences,
    activity: &W,
    pairs: impl Fn() -> I,
) -> Begin {
    fences.heavy();
    let word = activity.load(Acquire);
    if word & ACTIVITY_BUSY == 0 {
        return Begin::Idle;
    }
    let sums = Sums::of(pairs);
    if sums.entered == sums.returned {
        Begin::Quiet(Quiet { word, sums })
    } else {
        Begin::Inside(sums)
    }
}

impl Quiet {
    /// Publishes idle. The caller has asked every touched stream after [`begin`], and all were done.
    pub fn publish<'a, W: Word + 'a, I: Iterator<Item = &'a Counts<W>>>(
        self,
        fences: &impl Fences,
        activity: &W,
        pairs: impl Fn() -> I,
    ) -> Published {
        let idle = (self.word & !ACTIVITY_BUSY).wrapping_add(2);
        if activity.compare_exchange(self.word, idle).is_err() {
            return Published::TakenBack;
        }
        fences.heavy();
        let entered = pairs().fold(0_u64, |sum, pair| {
            sum.wrapping_add(pair.entered.load(Acquire))
        });
        if entered == self.sums.entered {
            return Published::Idle { word: idle };
        }
        // A launch that saw idle has made the word busy and rung; then there is nothing to take back.
        let _ = activity.compare_exchange(idle, self.word);
        Published::TakenBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    struct Strong;
    impl Fences for Strong {
        fn light() {}
        fn heavy(&self) {}
    }

    fn word(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    #[test]
    fn only_the_first_launch_of_a_busy_period_is_an_edge() {
        let activity = word(0);
        assert_eq!(busy_edge(&activity), Some(3));
        assert_eq!(busy_edge(&activity), None);
    }

    #[test]
    fn a_launch_on_an_idle_device_or_behind_a_closed_gate_begins_nothing() {
        let counts = Counts::<AtomicU64>::default();
        for (activity, gate) in [(2, 0), (3, 1)] {
            assert!(!enter_if_busy::<_, Strong>(
                &counts,
                &word(activity),
                &word(gate)
            ));
        }
        let sums = Sums::of(|| core::iter::once(&counts));
        assert_eq!(sums, Sums::default(), "it does not count");
        assert!(enter_if_busy::<_, Strong>(&counts, &word(3), &word(0)));
    }

    #[test]
    fn every_edge_has_a_generation_of_its_own_and_a_take_back_has_none() {
        let (activity, counts) = (word(3), Counts::<AtomicU64>::default());
        let pairs = || core::iter::once(&counts);
        let Begin::Quiet(quiet) = begin(&Strong, &activity, pairs) else {
            panic!("nobody is inside");
        };
        counts.raise_entered();
        assert_eq!(
            quiet.publish(&Strong, &activity, pairs),
            Published::TakenBack
        );
        assert_eq!(activity.load(Relaxed), 3);
        assert_eq!(
            begin(&Strong, &activity, pairs),
            Begin::Inside(Sums {
                entered: 1,
                returned: 0
            })
        );
        counts.raise_returned();
        let Begin::Quiet(quiet) = begin(&Strong, &activity, pairs) else {
            panic!("nobody is inside");
        };
        assert_eq!(
            quiet.publish(&Strong, &activity, pairs),
            Published::Idle { word: 4 }
        );
        assert_eq!(begin(&Strong, &activity, pairs), Begin::Idle);
        assert_eq!(busy_edge(&activity), Some(7));
    }
}
