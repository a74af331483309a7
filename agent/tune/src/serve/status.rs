//! The states of a job, and who may change them how. Pure.
//!
//! ```text
//!   validating_files ──> queued ──> running ──> succeeded
//!           │              │ ▲         │ ▲ └───> failed
//!           │        pause │ │   pause │ │ resume
//!           └──────────────┤ │ resume  ▼ │
//!                          ▼ │      pausing
//!                        paused <──────┘
//! ```
//! Whatever has not ended can be cancelled. Pausing ends with a checkpoint, after the step under way.

use serde::{Deserialize, Serialize};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its files are read.
    ValidatingFiles,
    /// It waits for a place, for the engine or for tomorrow's quota.
    Queued,
    /// It trains.
    Running,
    /// It ends the step under way.
    Pausing,
    /// It waits to be resumed.
    Paused,
    /// The adapter is there.
    Succeeded,
    /// It cannot go on.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// What a user wants of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// An end.
    Cancel,
    /// A rest.
    Pause,
    /// To go on.
    Resume,
}

impl Status {
    /// Whether nothing comes after it.
    #[must_use]
    pub const fn ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The state after a user's wish. A wish that is fulfilled already changes nothing. None: it cannot be fulfilled.
    #[must_use]
    pub const fn asked(self, ask: Ask) -> Option<Self> {
        Some(match (ask, self) {
            (Ask::Cancel, Self::Cancelled) => self,
            (_, Self::Succeeded | Self::Failed | Self::Cancelled) => return None,
            (Ask::Cancel, _) => Self::Cancelled,
            (Ask::Pause, Self::ValidatingFiles | Self::Queued) => Self::Paused,
            (Ask::Pause, Self::Running) => Self::Pausing,
            (Ask::Resume, Self::Pausing) => Self::Running,
            (Ask::Resume, Self::Paused) => Self::Queued,
            (Ask::Pause, Self::Pausing | Self::Paused)
            | (Ask::Resume, Self::ValidatingFiles | Self::Queued | Self::Running) => self,
        })
    }

    /// The state in which a server finds a job that another server left.
    #[must_use]
    pub const fn found(self) -> Self {
        match self {
            Self::Running => Self::Queued,
            Self::Pausing => Self::Paused,
            other => other,
        }
    }

    /// As the protocol says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ValidatingFiles => "validating_files",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Status; 8] = [
        Status::ValidatingFiles,
        Status::Queued,
        Status::Running,
        Status::Pausing,
        Status::Paused,
        Status::Succeeded,
        Status::Failed,
        Status::Cancelled,
    ];

    /// P-TUNE-4: cancel is possible in every state that has not ended, no wish revives what has, and a wish that is
    /// repeated changes nothing.
    #[test]
    fn wishes_are_fulfilled_once() {
        for status in ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.word());
            for ask in [Ask::Cancel, Ask::Pause, Ask::Resume] {
                match status.asked(ask) {
                    Some(after) => {
                        assert_eq!(after.asked(ask), Some(after), "{status:?} {ask:?}");
                        assert!(!status.ended() || after == status, "{status:?} {ask:?}");
                        assert!(ask != Ask::Cancel || after == Status::Cancelled);
                    }
                    None => assert!(status.ended(), "{status:?} {ask:?}"),
                }
            }
            assert!(!matches!(status.found(), Status::Running | Status::Pausing));
        }
    }
}
