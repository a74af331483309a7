//! A block of time in which gates hold nothing, so that an operator can measure what online pays without them.
//!
//! Gates continue to open, close and learn, and at the end of the block each job is where its gates say. Only
//! [`crate::job`] ignores them meanwhile. A block ends by its time, so a block whose caller is stuck ends too. A new
//! node has no block.

use crate::effect::{Effect, Report};
use crate::time::Instant;

/// The block that stands, if one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ungated(Option<Block>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    since: Instant,
    until: Instant,
    /// Somebody ended it.
    ended: bool,
}

impl Ungated {
    /// Begins a block, or has the one that stands last until then.
    pub(super) fn order(&mut self, until: Instant, now: Instant) {
        let ended = until <= now;
        if self.0.is_none() && ended {
            return;
        }
        let since = self.0.map_or(now, |block| block.since);
        self.0 = Some(Block {
            since,
            until,
            ended,
        });
    }

    /// Ends a block whose time is over; whether one stands.
    pub(super) fn settle(&mut self, now: Instant, out: &mut Vec<Effect>) -> bool {
        if let Some(block) = self.0
            && now >= block.until
        {
            self.0 = None;
            out.push(Effect::Emit(Report::GatedAgain {
                lasted: now.since(block.since),
                expired: !block.ended,
            }));
        }
        self.0.is_some()
    }

    /// When it ends by its time.
    pub(super) fn until(self) -> Option<Instant> {
        self.0.map(|block| block.until)
    }
}
