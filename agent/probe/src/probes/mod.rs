//! The probes, one row each.

mod blocked;
mod control;
mod cost;
mod death;
mod edges;
mod lasting;
mod memory;
mod schedule;
mod shape;
mod sharing;

use crate::bench::{Bench, Ending};
use std::time::Duration;

/// Who may run a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Anywhere.
    A,
    /// Only where the kernel is ours alone, on request.
    B,
}

/// One probe.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its name in results and on the command line.
    pub id: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// Who may run it.
    pub class: Class,
    /// Beyond this it is killed and cleaned up after, in seconds.
    pub limit_s: u64,
    /// Runs it.
    pub run: fn(&Bench) -> anyhow::Result<Ending>,
}

impl Probe {
    /// Its limit in a run with these options.
    #[must_use]
    pub fn limit(&self, long: Duration) -> Duration {
        let limit = Duration::from_secs(self.limit_s);
        if self.id.starts_with("P4") {
            limit + long
        } else {
            limit
        }
    }
}

macro_rules! probes {
    ($($id:literal $class:ident $limit:literal $run:path, $question:literal;)*) => {
        /// All of them, class A first, in the order in which they run.
        pub const ALL: &[Probe] = &[
            $(Probe { id: $id, question: $question, class: Class::$class, limit_s: $limit, run: $run },)*
        ];
    };
}

probes! {
    "P1" A 60 shape::context, "of which objects does a CUDA context consist?";
    "P2" A 90 control::foreign, "does an RM client of its own disable foreign channels, how fast?";
    "P3" A 60 control::owners_file, "does the owner's control file do, held by another process?";
    "P3b" A 60 control::inside, "does a thread of the owner do?";
    "P5" A 60 lasting::successor, "do channels stay disabled when who disabled them dies, and can its successor enable them?";
    "P6" A 60 memory::ioctls, "which driver calls is a memory operation?";
    "P6b" A 90 memory::zero, "is memory zero that another handle held before?";
    "P7" A 120 memory::while_disabled, "does a memory operation block while the process' channels are disabled, what does it cost?";
    "P7b" A 240 blocked::beside, "do they block beside a thread that hangs in a driver call?";
    "P9" A 90 edges::odd_lists, "refcount, stale handles, 0 and 65 channels, one bad pair among good ones?";
    "P10" A 60 schedule::preempt, "what do PREEMPT and SET_TIMESLICE do?";
    "P11" A 60 edges::unprivileged, "may a user without rights disable foreign channels?";
    "P12" A 90 cost::hook, "what do the hooks cost on a launch, and events?";
    "P4" A 60 lasting::long, "do long-disabled channels stay healthy?";
    "P8" B 300 death::killed_while_disabled, "what does killing a process cost the node while its channels are disabled?";
    "P10b" B 60 schedule::unschedule, "what does GPFIFO_SCHEDULE(0) do?";
    "P15" B 60 sharing::green, "does the gate hold a green context, and where do graphs recorded outside it run?";
    "P15m" B 90 sharing::mps, "has an MPS client channels of its own, and whose work stops when they are disabled?";
}

/// The probe with this id, whatever its case.
#[must_use]
pub fn find(id: &str) -> Option<&'static Probe> {
    ALL.iter().find(|probe| probe.id.eq_ignore_ascii_case(id))
}
