//! What a compute policy hears, what it says, and the trait of all of them.

use std::fmt::Debug;

pub(super) use crate::costs::ns;
use crate::record::CooldownRecord;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// What a policy hears. Times are those of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The replay begins; online is idle.
    Start,
    /// A request arrived; `in_flight` counts it.
    Arrived {
        /// Its place in the trace.
        request: u64,
        /// Requests in flight.
        in_flight: u32,
    },
    /// Online submits an iteration.
    Launch {
        /// It reads prompts, which is not one graph.
        prompt: bool,
        /// Requests it decodes.
        decodes: u32,
    },
    /// That iteration is done, and nothing else of online is submitted.
    Done,
    /// A request got its last token; `in_flight` does not count it.
    Ended {
        /// Its place in the trace.
        request: u64,
        /// Requests in flight.
        in_flight: u32,
    },
    /// Offline finished an iteration.
    OfflineDone,
    /// Offline is off the GPU after a `Stop`.
    Stopped,
    /// Offline may run after a `Run`.
    Running,
    /// The time the policy asked for has come.
    Due,
}

/// Where a policy can stop offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// Anywhere, so long from now; what runs is saved.
    After(u64),
    /// At the end of the kernels that are in flight: of the graph, for a decode.
    Kernels(u32),
    /// At the end of the layer; the iteration is done again from its start.
    LayerAndAgain,
    /// At the end of the iteration.
    Iteration,
}

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Offline may run, `takes` ns from now.
    Run {
        /// Restoring it.
        takes: u64,
    },
    /// Offline must stop.
    Stop {
        /// Where.
        at: Boundary,
        /// Saving it, from there.
        takes: u64,
    },
    /// Offline must stop so that memory can move: online does not ask for the GPU, so that it is no
    /// preemption.
    Hold {
        /// Saving it.
        takes: u64,
    },
    /// Online may try again to begin an iteration for which it had no memory.
    Retry,
    /// Both may run; they take turns of so many ns, with `switch` ns between.
    Share {
        /// A turn.
        slice: u64,
        /// Changing turns.
        switch: u64,
    },
}

/// A compute policy.
pub trait Policy: Debug {
    /// Takes one event and says what to do.
    fn step(&mut self, event: Event, now: u64, out: &mut Vec<Command>);

    /// When it wants [`Event::Due`]; [`NEVER`] if it does not.
    fn next(&self) -> u64 {
        NEVER
    }

    /// What it learnt of decode gaps, if it learns.
    fn learnt(&self, _now: u64, _record: &mut CooldownRecord) {}
}

/// When a prober that looks every `probe` ns notices that the GPU fell idle at `now`.
pub(crate) fn noticed(now: u64, probe: u64) -> u64 {
    let probe = probe.max(1);
    (now / probe + 1) * probe
}
