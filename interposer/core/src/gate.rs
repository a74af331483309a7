//! Whether a launch passes, and whether a new channel may be scheduled.
//!
//! Online launches never wait. Offline launches wait at the launch gate, except while their stream captures: a captured
//! launch runs nothing, and the agent may be waiting for something that the capture delays.

use crate::activity::{Counts, Sums};
use crate::word::{Fences, Word};
use tidegate_abi::gate::waits;

/// What the process is, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Not told yet: counts activity, never waits.
    #[default]
    Unknown,
    /// Latency-critical: counts activity, never waits.
    Online,
    /// Harvesting: waits on the gate.
    Offline,
    /// Neither counted nor gated.
    Ignore,
}

impl Role {
    /// Whether its launches are reported as activity.
    #[must_use]
    pub const fn counts(self) -> bool {
        matches!(self, Self::Unknown | Self::Online)
    }

    /// As one word.
    #[must_use]
    pub const fn to_word(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Online => 1,
            Self::Offline => 2,
            Self::Ignore => 3,
        }
    }

    /// The role of [`Self::to_word`]; what is not one is [`Self::Unknown`].
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Online,
            2 => Self::Offline,
            3 => Self::Ignore,
            _ => Self::Unknown,
        }
    }
}

/// Whether a stream captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// It records a graph.
    Active,
    /// It runs what it is given.
    None,
}

/// What a launch does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Calls the driver.
    Pass,
    /// Waits on the gate word, then asks again.
    Wait,
    /// Fails without the driver having been called.
    Fail,
}

/// What an offline process does when its first agent has not come in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// Its launches pass, ungated.
    #[default]
    Run,
    /// Its launches fail.
    Fail,
}

/// What a launch behind a closed gate does in a process that no agent has welcomed yet, after
/// `waited_ns` and with the `limit_ns` it was given; none: it waits for ever.
#[must_use]
pub fn without_agent(waited_ns: u64, limit_ns: Option<u64>, on_timeout: OnTimeout) -> Admission {
    match limit_ns {
        Some(limit) if waited_ns >= limit => match on_timeout {
            OnTimeout::Run => Admission::Pass,
            OnTimeout::Fail => Admission::Fail,
        },
        _ => Admission::Wait,
    }
}

/// Longest wait of a launch before it asks the gate again, nanoseconds: also how long it sleeps past a page
/// that was swapped under it.
pub const RECHECK_NS: u64 = 50_000_000;

/// What a launch does next, by the gate word.
#[must_use]
pub fn admission(role: Role, gate: u64, capture: Capture) -> Admission {
    match (role, capture) {
        (Role::Offline, Capture::None) if waits(gate) => Admission::Wait,
        _ => Admission::Pass,
    }
}

/// One try of a launch: raises `entered` and then reads the gate, as [`obeyed`] relies on. `false`:
/// nothing was begun. `shared`: other threads raise the same pair.
pub fn enter<W: Word, F: Fences>(
    counts: &Counts<W>,
    shared: bool,
    passes: impl FnOnce() -> bool,
) -> bool {
    if shared {
        counts.add_entered();
    } else {
        counts.raise_entered();
        F::light();
    }
    if passes() {
        return true;
    }
    if shared {
        counts.subtract_entered();
    } else {
        counts.lower_entered();
    }
    false
}

/// Whether the gate word `seen`, read before, is obeyed: every launch that begins from here on sees it,
/// and none that did not is inside the driver. With the sums that say so.
pub fn obeyed<'a, W: Word + 'a, I: Iterator<Item = &'a Counts<W>>>(
    fences: &impl Fences,
    seen: u64,
    pairs: impl Fn() -> I,
) -> (bool, Sums) {
    fences.heavy();
    let sums = Sums::of(pairs);
    (!waits(seen) || sums.entered == sums.returned, sums)
}

/// What is done to channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// They run nothing any more.
    Disable,
    /// They run.
    Enable,
}

/// A launch gate between agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchGate {
    /// Launches pass.
    Open,
    /// Launches wait.
    Closed,
}

/// Who would answer a request to schedule a new channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// The stream stands.
    Attached,
    /// There is no stream; the closed gate itself keeps launches from the new channel.
    Absent,
}

/// Longest hold of a schedule call, nanoseconds, unless the agent says another.
pub const SCHEDULE_HOLD_NS: u64 = 2_000_000_000;

/// Whether a `GPFIFO_SCHEDULE` waits until the agent has the pair in its lists. A channel that
/// comes up while its job is gated would run, because it is in no list yet. The gate word cannot
/// say whether it is: where channels do the work, the launch gate stays open. So the agent is
/// always asked, which costs a context one round trip for each of its TSGs.
#[must_use]
pub fn holds_schedule(role: Role, agent: Agent, schedule: Switch) -> bool {
    schedule == Switch::Enable && role == Role::Offline && agent == Agent::Attached
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_abi::page::{GATE_CLOSED, GATE_OPEN};

    #[test]
    fn only_an_offline_launch_outside_a_capture_waits_and_only_on_a_closed_gate() {
        for role in [Role::Unknown, Role::Online, Role::Offline, Role::Ignore] {
            for gate in [GATE_OPEN, GATE_CLOSED, 4 | GATE_CLOSED, 8] {
                for capture in [Capture::Active, Capture::None] {
                    let waits = role == Role::Offline && gate != 8 && capture == Capture::None;
                    assert_eq!(admission(role, gate, capture) == Admission::Wait, waits);
                }
            }
            assert_eq!(Role::from_word(role.to_word()), role);
        }
    }

    #[test]
    fn a_launch_without_an_agent_waits_its_whole_time_and_then_does_as_it_was_told() {
        for (on_timeout, then) in [
            (OnTimeout::Run, Admission::Pass),
            (OnTimeout::Fail, Admission::Fail),
        ] {
            assert_eq!(without_agent(u64::MAX, None, on_timeout), Admission::Wait);
            assert_eq!(without_agent(99, Some(100), on_timeout), Admission::Wait);
            assert_eq!(without_agent(100, Some(100), on_timeout), then);
        }
    }

    #[test]
    fn only_an_offline_process_with_an_agent_holds_a_schedule_call() {
        assert!(holds_schedule(
            Role::Offline,
            Agent::Attached,
            Switch::Enable
        ));
        assert!(!holds_schedule(
            Role::Offline,
            Agent::Attached,
            Switch::Disable
        ));
        assert!(!holds_schedule(
            Role::Offline,
            Agent::Absent,
            Switch::Enable
        ));
        for role in [Role::Unknown, Role::Online, Role::Ignore] {
            assert!(!holds_schedule(role, Agent::Attached, Switch::Enable));
        }
    }
}
