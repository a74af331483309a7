//! A call that waits for the instant at which it takes effect.

use super::ids::{ChannelId, TsgId};
use crate::eviction::Pending;

#[derive(Clone, Debug)]
pub(super) enum Control {
    Disable {
        channels: Vec<ChannelId>,
        pending: Pending,
    },
    Enable {
        channels: Vec<ChannelId>,
        ticket: u64,
    },
    Preempt {
        tsg: TsgId,
    },
    Restart {
        engine: usize,
    },
    Schedule {
        tsg: TsgId,
        on: bool,
    },
}
