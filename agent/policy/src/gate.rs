//! When may offline run on one GPU?
//!
//! ```text
//!             busy                    busy
//!   Open -------------> Closed <-------------- Cooling
//!     ^                   |      idle            ^ |
//!     |                   +----------------------+ |
//!     +--------------------------------------------+
//!                     cooldown over
//! ```
//!
//! Activity is a level here, the OR over all online processes of the GPU, so a repeated or lost edge cannot leave the
//! gate in the wrong state.
//!
//! The cooldown begins when the gate learns that online is idle, not at the time that the process gave for it. That
//! time may be as old as the last probe that saw work, up to a millisecond before the work ended. It is right for
//! measuring a gap, but too early for a cooldown.
//!
//! Invariant: the gate is open only if online has been idle for a whole cooldown.

use crate::time::Instant;
use core::time::Duration;

/// Where the gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Offline may run.
    Open,
    /// Online is busy.
    Closed,
    /// Online has been idle since then.
    Cooling {
        /// Since then.
        since: Instant,
    },
}

/// Online on this GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Online {
    /// At least one process is busy.
    Busy,
    /// None is.
    Idle,
}

/// How long a gate must cool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooling {
    /// This long.
    For(Duration),
    /// Until somebody says otherwise: a request is in flight.
    Held,
}

impl Gate {
    /// One step.
    #[must_use]
    pub fn step(self, online: Online, cooling: Cooling, now: Instant) -> Self {
        let since = match (self, online) {
            (_, Online::Busy) => return Self::Closed,
            (Self::Open, Online::Idle) => return Self::Open,
            (Self::Closed, Online::Idle) => now,
            (Self::Cooling { since }, Online::Idle) => since,
        };
        match cooling {
            Cooling::For(cooldown) if now >= since.after(cooldown) => Self::Open,
            _ => Self::Cooling { since },
        }
    }

    /// When time alone opens it.
    #[must_use]
    pub fn opens_at(self, cooling: Cooling) -> Option<Instant> {
        match (self, cooling) {
            (Self::Cooling { since }, Cooling::For(cooldown)) => Some(since.after(cooldown)),
            _ => None,
        }
    }

    /// Whether offline may run.
    #[must_use]
    pub fn is_open(self) -> bool {
        self == Self::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COOLDOWN: Duration = Duration::from_millis(10);

    proptest! {
        #[test]
        fn opens_only_after_a_whole_idle_cooldown(
            steps in prop::collection::vec((0u64..20_000_000, 0u8..3), 0..200),
        ) {
            let (mut gate, mut now, mut idle_since) = (Gate::Closed, 0u64, None);
            for (dt, what) in steps {
                now += dt;
                let at = Instant::from_nanos(now);
                let online = match what {
                    0 => { idle_since = None; Online::Busy }
                    _ => { idle_since.get_or_insert(at); Online::Idle }
                };
                let cooling = if what == 2 { Cooling::Held } else { Cooling::For(COOLDOWN) };
                let next = gate.step(online, cooling, at);
                if next.is_open() {
                    prop_assert!(at.since(idle_since.unwrap()) >= COOLDOWN);
                    prop_assert!(gate.is_open() || cooling != Cooling::Held);
                }
                prop_assert_eq!(next == Gate::Closed, online == Online::Busy);
                gate = next;
            }
        }
    }
}
