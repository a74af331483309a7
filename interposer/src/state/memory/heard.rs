//! Whether an attached agent still lives, by the clock of this process.

/// How long the heartbeat of an agent that is attached may stand still while the engine waits for memory.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// The agent's heartbeat as it was seen when the engine last waited for memory, and when it was first seen so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    heartbeat: u64,
    since_ns: u64,
}

impl Heard {
    /// Whether the heartbeat has stood still for [`PATIENCE_NS`] by this process' own clock. Without a page there is
    /// none: the keep-alive of the stream ends the session then.
    pub fn is_silent(&mut self, heartbeat: u64, now: u64) -> bool {
        if heartbeat != self.heartbeat || self.since_ns == 0 {
            *self = Self {
                heartbeat,
                since_ns: now,
            };
        }
        heartbeat != 0 && now.saturating_sub(self.since_ns) > PATIENCE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_silent_when_its_heartbeat_stands_still() {
        let mut heard = Heard::default();
        let at = |tenths: u64| 1 + tenths * PATIENCE_NS / 10;
        assert!(!heard.is_silent(7, at(0)));
        assert!(!heard.is_silent(7, at(10)));
        assert!(heard.is_silent(7, at(11)));
        assert!(!heard.is_silent(6, at(12)), "any change is a sign of life");
        assert!(!heard.is_silent(0, at(90)), "there is no page");
    }
}
