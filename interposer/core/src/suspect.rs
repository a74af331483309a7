//! Why a device counts as busy although nothing is launched.
//!
//! A device that is busy for `busy_suspect` without a launch, or whose launches never pause long
//! enough for an idle edge, holds offline back for as long as it lasts. The operator is told which
//! it is; configuration decides what follows.

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

/// Names the reason, or none yet.
#[must_use]
pub fn name(facts: Facts, busy_suspect_ns: u64, now_ns: u64) -> Option<Reason> {
    if now_ns.saturating_sub(facts.busy_since_ns) < busy_suspect_ns {
        return None;
    }
    if now_ns.saturating_sub(facts.last_launch_ns) < busy_suspect_ns {
        return Some(Reason::SteadyLaunches);
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
    fn a_device_is_named_only_after_the_whole_time_and_by_what_holds_it() {
        let facts = Facts {
            busy_since_ns: 10,
            last_launch_ns: 10,
            waits_on_host: false,
        };
        assert_eq!(name(facts, 100, 109), None);
        assert_eq!(name(facts, 100, 110), Some(Reason::PersistentKernel));
        let parked = Facts {
            waits_on_host: true,
            ..facts
        };
        assert_eq!(name(parked, 100, 110), Some(Reason::ParkedStream));
        let steady = Facts {
            last_launch_ns: 105,
            ..facts
        };
        assert_eq!(name(steady, 100, 110), Some(Reason::SteadyLaunches));
    }
}
