//! An allocation that waits for room.

use crate::effect::{Effect, Granted};
use crate::ids::{AskId, Bytes, GpuId, JobId, SessionId};
use crate::time::Instant;

/// An allocation of an offline process that waits for room, or was promised it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub session: SessionId,
    pub job: JobId,
    pub id: AskId,
    pub gpu: GpuId,
    pub bytes: Bytes,
    /// When it is denied, or what was promised is taken back.
    pub until: Instant,
    pub promised: bool,
}

impl Room {
    pub fn is(&self, session: SessionId, id: AskId) -> bool {
        (self.session, self.id) == (session, id)
    }

    pub const fn answer(&self, granted: Granted) -> Effect {
        Effect::AnswerAsk {
            session: self.session,
            ask: self.id,
            granted,
        }
    }
}
