//! The faults of a schedule, and what each waits for.

use crate::dice::MS;
use std::fmt;

/// Faults and demands end here, ns, and everything is to come to rest.
pub(super) const SCRIPT: u64 = 2_500 * MS;

/// An order that a fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// Whether a thread is inside a call: what follows is between that and the move.
    Check,
    /// A move.
    Move,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The scheduler of an engine starts over.
    SchedulerRestarts,
    /// A request comes.
    Arrives,
    OfflineKilled,
    OnlineKilled,
    /// SIGKILL; another starts after so long.
    AgentKilled(u64),
    /// SIGSTOP for so long.
    AgentStopped(u64),
    OfflineStopped(u64),
    /// A process that lives on loses its stream and attaches again.
    StreamLost,
    /// Issue threads take no orders for so long: each fails at once.
    QueueFull(u64),
    /// The driver refuses to disable and enable for so long.
    DriverRefuses(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: &u64| ns / MS;
        match self {
            Self::SchedulerRestarts => f.write_str("the scheduler of an engine starts over"),
            Self::Arrives => f.write_str("a request arrives"),
            Self::OfflineKilled => f.write_str("an offline process is killed"),
            Self::OnlineKilled => f.write_str("the online process is killed"),
            Self::AgentKilled(ns) => {
                write!(f, "the agent is killed, another starts {} ms later", ms(ns))
            }
            Self::AgentStopped(ns) => write!(f, "the agent is stopped for {} ms", ms(ns)),
            Self::OfflineStopped(ns) => {
                write!(f, "an offline process is stopped for {} ms", ms(ns))
            }
            Self::StreamLost => f.write_str("a process loses its stream and attaches again"),
            Self::QueueFull(ns) => write!(f, "issue threads take no orders for {} ms", ms(ns)),
            Self::DriverRefuses(ns) => {
                write!(
                    f,
                    "the driver refuses to disable and enable for {} ms",
                    ms(ns)
                )
            }
        }
    }
}
