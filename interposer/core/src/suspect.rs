//! Why a device counts as busy although nothing is launched.
//!
//! A device stops offline if it is busy for `busy_suspect` without a launch, or if its launches never pause long enough
//! for an idle edge. The operator learns which of these it is; the configuration decides what follows.

/// The reason, with the numbers of the protocol's `BusyReason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reason {
    /// A stream waits for something the GPU cannot do by itself.
    ParkedStream = 1,
    /// A kernel has run since the last launch.
    PersistentKernel = 2,
    /// Launches never pause long enough for an idle edge.
    SteadyLaunches = 4,
    /// No hook sees the process' launches.
    UnseenLaunches = 5,
}

/// What the prober knows of a busy device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// When the busy period began.
    pub busy_since_ns: u64,
    /// When `entered` last moved, as the prober saw it.
    pub last_launch_ns: u64,
    /// A stream that is not done has been made to wait (a wait value, a host function, an event
    /// of another stream) since it was last seen done.
    pub waits_on_host: bool,
}

/// Idle spells shorter than this do not end a run of busy periods: no gate opens in them.
pub const BREAK_NS: u64 = 200_000_000;
/// Busy periods with more launches than this on average do something. On average, because on a
/// crowded machine the prober is late and finds two or three of them in one.
const DUMMY_LAUNCHES: u64 = 2;

/// Busy periods that follow one another without a break, each of hardly a launch: a loop that keeps
/// its device warm and every gate closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    since_ns: u64,
    idle_ns: u64,
    periods: u64,
    launches: u64,
}

impl Run {
    /// A busy period ended with `launches`, or with any number if one was a graph.
    pub fn period(&mut self, busy_ns: u64, idle_ns: u64, launches: u64, graph: bool) {
        if self.since_ns == 0 || busy_ns.saturating_sub(self.idle_ns) >= BREAK_NS {
            *self = Self {
                since_ns: busy_ns,
                ..Self::default()
            };
        }
        self.idle_ns = idle_ns;
        self.periods = self.periods.saturating_add(1);
        let launches = if graph { u64::MAX } else { launches };
        self.launches = self.launches.saturating_add(launches);
    }

    /// Whether it has gone on for `busy_suspect_ns`.
    #[must_use]
    pub fn is_dummy(&self, busy_suspect_ns: u64, now_ns: u64) -> bool {
        self.since_ns != 0
            && self.launches <= self.periods.saturating_mul(DUMMY_LAUNCHES)
            && now_ns.saturating_sub(self.idle_ns) < BREAK_NS
            && now_ns.saturating_sub(self.since_ns) >= busy_suspect_ns
    }
}

/// The reason, or none yet.
///
/// Launches are steady only after twice the time: within the first, the last of a few launches is as
/// recent, and what it left behind would get two names.
#[must_use]
pub fn reason(facts: Facts, busy_suspect_ns: u64, now_ns: u64) -> Option<Reason> {
    let busy_ns = now_ns.saturating_sub(facts.busy_since_ns);
    if busy_ns < busy_suspect_ns {
        return None;
    }
    if now_ns.saturating_sub(facts.last_launch_ns) < busy_suspect_ns {
        let steady = busy_ns >= busy_suspect_ns.saturating_mul(2);
        return steady.then_some(Reason::SteadyLaunches);
    }
    Some(if facts.waits_on_host {
        Reason::ParkedStream
    } else {
        Reason::PersistentKernel
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_single_launches_is_named_until_it_pauses_or_does_something() {
        let ms = 1_000_000;
        let mut run = Run::default();
        for at in (1..2000).step_by(5) {
            run.period(at * ms, (at + 1) * ms, 1, false);
        }
        assert!(run.is_dummy(1_000 * ms, 1_999 * ms));
        assert!(!run.is_dummy(5_000 * ms, 1_999 * ms), "not long enough");
        assert!(!run.is_dummy(1_000 * ms, 2_300 * ms), "it paused");
        let mut works = run;
        works.period(2_000 * ms, 2_001 * ms, 4_000, false);
        assert!(!works.is_dummy(1_000 * ms, 2_002 * ms));
        let mut serves = run;
        serves.period(2_000 * ms, 2_001 * ms, 1, true);
        assert!(!serves.is_dummy(1_000 * ms, 2_002 * ms));
    }

    #[test]
    fn a_device_is_named_only_after_the_whole_time_and_by_what_holds_it() {
        let facts = Facts {
            busy_since_ns: 10,
            last_launch_ns: 10,
            waits_on_host: false,
        };
        assert_eq!(reason(facts, 100, 109), None);
        assert_eq!(reason(facts, 100, 110), Some(Reason::PersistentKernel));
        let parked = Facts {
            waits_on_host: true,
            ..facts
        };
        assert_eq!(reason(parked, 100, 110), Some(Reason::ParkedStream));
        let steady = Facts {
            last_launch_ns: 105,
            ..facts
        };
        assert_eq!(reason(steady, 100, 204), None);
        assert_eq!(reason(steady, 100, 205), Some(Reason::PersistentKernel));
        let steady = Facts {
            last_launch_ns: 150,
            ..steady
        };
        assert_eq!(reason(steady, 100, 209), None);
        assert_eq!(reason(steady, 100, 210), Some(Reason::SteadyLaunches));
    }
}
