//! What goes wrong in a schedule, and on what it may wait.

use crate::dice::MS;

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
