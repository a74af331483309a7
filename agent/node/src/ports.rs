//! The ports through which the shell acts. The host implements them. No call here may wait.

use crate::journal::Marked;
use crate::kinds::Tenant;
pub use crate::message::Outbox;
use crate::message::{Again, Claim};
use crate::task::Task;
use crate::text::Text;
use std::fmt;
use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::time::Instant;

/// The clock: `CLOCK_MONOTONIC`, as in the pages.
pub trait Clock: fmt::Debug + Send {
    /// The current time, ns.
    fn now_ns(&self) -> u64;
}

/// A GPU's issue thread. It does its tasks in order, and answers each by an input.
pub trait Issuer: fmt::Debug + Send {
    /// Gives it a task.
    ///
    /// # Errors
    /// Returns the task if the queue is full or the thread has ended.
    fn put(&self, task: Task) -> Result<(), Task>;

    /// Whether the thread supports armed orders ([`crate::task::Arms`]) and waits on their doorbells. Orders to a
    /// thread that does not are never armed.
    fn keeps_armed(&self) -> bool {
        false
    }
}

/// The prover: asks the driver which process owns an RM client, and answers by inputs.
pub trait Prover: fmt::Debug + Send {
    /// Starts the check of a claim.
    fn claim(&self, claim: Claim);
    /// Starts a repeated ownership check; false: not now.
    fn again(&self, again: Again) -> bool;
}

/// Everything else that the shell needs of the machine.
pub trait Machine: fmt::Debug + Send {
    /// Enables channels that nobody claimed, and answers by [`crate::Input::Released`]. This may take long.
    fn release_late(&self, marked: Vec<Marked>);
    /// Whether the process that was changing mappings is still alive.
    fn is_running(&self, pid: u32) -> bool;
}

/// Receives events for operators.
pub trait EventSink: fmt::Debug + Send {
    /// Takes one event.
    fn event(&self, event: NodeEvent);
    /// The agent refused something to a tenant.
    fn refused(&self, _tenant: &Tenant, _what: &'static str) {}
}

/// Records decisions.
pub trait Recorder: fmt::Debug + Send {
    /// A node with these settings begins.
    fn begin(&mut self, config: &Config, gpus: u8, now: Instant);
    /// Policy got these settings, and answered with `effects`.
    fn configured(&mut self, config: &Config, now: Instant, effects: &[Effect]);
    /// Policy took `event`, and answered with `effects`.
    fn stepped(&mut self, event: &Event<'_>, now: Instant, effects: &[Effect]);
}

/// An event for operators. Making one allocates nothing, unless it carries a text.
#[derive(Clone, Debug, Default)]
pub struct NodeEvent {
    /// When.
    pub at_ns: u64,
    /// Stable name in `snake_case`.
    pub kind: &'static str,
    /// The GPU; None: the event is not about one GPU.
    pub gpu: Option<u32>,
    /// The session; 0: the event is not about one session.
    pub session: u64,
    /// The session's process; 0: unknown, or the event is not about one.
    pub pid: i32,
    /// The user of the process; None: the event is not about one.
    pub tenant: Option<Tenant>,
    /// The job; None: the event is not about one job.
    pub job: Option<Text>,
    /// Human-readable; empty: the kind says everything.
    pub text: String,
    /// A time, for some kinds: for "preempted" the latency; for "woken" and "`wake_overtaken`" (an enable that took
    /// effect after online had begun, followed by its disable) the time since the last look at online.
    pub value_ns: u64,
}

/// All ports of a shell, except those that belong to a GPU or a process.
#[derive(Debug)]
pub struct Ports {
    /// The clock.
    pub clock: Box<dyn Clock>,
    /// The prover.
    pub prover: Box<dyn Prover>,
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// Receives events.
    pub events: Box<dyn EventSink>,
    /// Records decisions, if they are recorded.
    pub recorder: Option<Box<dyn Recorder>>,
}
