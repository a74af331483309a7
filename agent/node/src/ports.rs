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

/// Where the time comes from: `CLOCK_MONOTONIC`, the clock of the pages.
pub trait Clock: fmt::Debug + Send {
    /// Now, ns.
    fn now_ns(&self) -> u64;
}

/// A GPU's issue thread, which does its tasks in order and answers each by an input.
pub trait Issuer: fmt::Debug + Send {
    /// Hands it a task.
    ///
    /// # Errors
    /// The task, when its queue is full or it has ended.
    fn put(&self, task: Task) -> Result<(), Task>;

    /// Whether it keeps armed orders ([`crate::task::Arms`]) and waits on their doorbells. An order to one that does
    /// not is never armed.
    fn keeps_armed(&self) -> bool {
        false
    }
}

/// Who asks the driver whose RM clients are, and answers by inputs.
pub trait Prover: fmt::Debug + Send {
    /// Has a claim looked at.
    fn claim(&self, claim: Claim);
    /// Has a proof made again; false: not now.
    fn again(&self, again: Again) -> bool;
}

/// What the shell needs of the machine besides.
pub trait Machine: fmt::Debug + Send {
    /// Enables channels that nobody claimed, and answers by [`crate::Input::Released`]. It may take long.
    fn release_late(&self, marked: Vec<Marked>);
    /// Whether the process that was changing mappings has not ended.
    fn is_running(&self, pid: u32) -> bool;
}

/// Where events for people go.
pub trait EventSink: fmt::Debug + Send {
    /// Takes one.
    fn event(&self, event: NodeEvent);
    /// A tenant is refused something.
    fn refused(&self, _tenant: &Tenant, _what: &'static str) {}
}

/// Where decisions are recorded.
pub trait Recorder: fmt::Debug + Send {
    /// A node with these settings begins.
    fn begin(&mut self, config: &Config, gpus: u8, now: Instant);
    /// Policy goes on with these settings and answered with `effects`.
    fn configured(&mut self, config: &Config, now: Instant, effects: &[Effect]);
    /// Policy took `event` and answered with `effects`.
    fn stepped(&mut self, event: &Event<'_>, now: Instant, effects: &[Effect]);
}

/// Something that happened, for people. Making one allocates nothing unless it carries a text.
#[derive(Clone, Debug, Default)]
pub struct NodeEvent {
    /// When.
    pub at_ns: u64,
    /// Stable name in `snake_case`.
    pub kind: &'static str,
    /// None: not about one GPU.
    pub gpu: Option<u32>,
    /// 0: not about one session.
    pub session: u64,
    /// The session's process; 0: unknown, or not about one.
    pub pid: i32,
    /// Whose process it is; None: not about one.
    pub tenant: Option<Tenant>,
    /// None: not about one job.
    pub job: Option<Text>,
    /// For people; empty: the kind says it all.
    pub text: String,
    /// Where there is one: of "preempted" the latency; of "woken" and "`wake_overtaken`" (an enable that took effect
    /// after online had begun, with its disable behind it) the time since online was last looked at.
    pub value_ns: u64,
}

/// All ports of a shell but those that belong to a GPU or a process.
#[derive(Debug)]
pub struct Ports {
    /// The time.
    pub clock: Box<dyn Clock>,
    /// Whose clients are whose.
    pub prover: Box<dyn Prover>,
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// Events.
    pub events: Box<dyn EventSink>,
    /// Where decisions are recorded, if they are.
    pub recorder: Option<Box<dyn Recorder>>,
}
