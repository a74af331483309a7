//! What a caller submits, and what it hears.

use super::ids::{ChannelId, TsgId};

/// One entry of a channel's queue. `tag` is the caller's and comes back in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Takes `ns` of running; `u64::MAX` never ends, `0` takes no time.
    Run {
        /// Nanoseconds of running.
        ns: u64,
        /// Comes back in events.
        tag: u64,
    },
    /// As `Run`, and the next entry belongs to the same kernel or transfer.
    Part {
        /// Nanoseconds of running.
        ns: u64,
        /// Comes back in events.
        tag: u64,
    },
    /// Blocks the channel (it then has no work) until [`Gpu::signal`](crate::Gpu::signal).
    Wait {
        /// Comes back in events.
        tag: u64,
    },
}

/// Something that happened, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The instant.
    pub at: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An entry began. It may be paused and resumed before it finishes.
    Started {
        /// Its channel.
        channel: ChannelId,
        /// Its tag.
        tag: u64,
    },
    /// An entry ended.
    Finished {
        /// Its channel.
        channel: ChannelId,
        /// Its tag.
        tag: u64,
    },
    /// A TSG got on its engine.
    TsgRun {
        /// The TSG.
        tsg: TsgId,
        /// The engine's number.
        engine: u32,
    },
    /// A TSG got off its engine.
    TsgStop {
        /// The TSG.
        tsg: TsgId,
        /// The engine's number.
        engine: u32,
    },
    /// From here nothing of the channel runs.
    Disabled {
        /// The channel.
        channel: ChannelId,
        /// What the caller gave with the disable.
        ticket: u64,
    },
    /// The channel may run again.
    Enabled {
        /// The channel.
        channel: ChannelId,
        /// What the caller gave with the enable.
        ticket: u64,
    },
    /// A disable that had not taken effect yet is void: a later call for the channel overtook it.
    Overtaken {
        /// What the caller gave with that disable.
        ticket: u64,
    },
}
