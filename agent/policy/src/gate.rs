//! When is one GPU offline's?
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
//! Activity is a level here, the OR over all online processes of the GPU, so a repeated or lost
//! edge cannot leave the gate in the wrong place. Invariant: the gate is open only if online has
//! been idle for a whole cooldown.

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
    /// None has been since.
    Idle {
        /// When the last work ended.
        since: Instant,
    },
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
    /// One step. A gate that cools goes on cooling from the latest work it is told of.
    #[must_use]
    pub fn step(self, online: Online, cooling: Cooling, now: Instant) -> Self {
        let since = match (self, online) {
            (_, Online::Busy) => return Self::Closed,
            (Self::Open, Online::Idle { .. }) => return Self::Open,
            (Self::Closed, Online::Idle { since }) => since,
            (Self::Cooling { since: before }, Online::Idle { since }) => before.max(since),
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
                    _ => Online::Idle { since: *idle_since.get_or_insert(at) },
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

    #[test]
    fn a_gate_whose_cooldown_passed_unseen_opens_at_once() {
        let idle = Online::Idle {
            since: Instant::from_nanos(5),
        };
        let late = Instant::from_nanos(5).after(COOLDOWN);
        assert_eq!(
            Gate::Closed.step(idle, Cooling::For(COOLDOWN), late),
            Gate::Open
        );
    }
}
