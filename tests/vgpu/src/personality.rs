//! Firmware personalities: what published measurements saw different firmware do with a disable, and
//! what it might do at its worst.
//!
//! | name | stops a channel that runs | else |
//! |---|---|---|
//! | `evicts` | a disable | as documented; an RTX 5090 with 595.99.02 |
//! | `restart` | a disable and then `RESTART_RUNLIST` | an A100-80G with 575.57.08 and 610.43.02: a disable alone changed nothing for a saturating process |
//! | `preempt` | a disable of scheduling only and then the group's `PREEMPT` | what a public prototype does on 575.64.05; `RESTART_RUNLIST` is answered and evicts nothing |
//! | `refuses-foreign` | a disable | pairs of another client are refused: the agent's own client is of no use |
//! | `refuses-restart` | as `preempt` | `RESTART_RUNLIST` is refused, so that who needs the last of the three methods has seen the second refused and not only fail |
//! | `kernel-end` | a disable, when the kernel or transfer that it is inside of has ended | answered before that |
//! | `deaf` | nothing | every call is answered with OK |
//!
//! A channel of which nothing has run is stopped by the disable alone in all of them but `deaf`, as the
//! A100's was. Where a disable takes effect later, the history's `DisableEnd` says when.

use crate::facts::Status;
use tidegate_device::Eviction;

/// One of them; see the table above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Personality {
    /// `evicts`
    #[default]
    Evicts,
    /// `restart`
    Restart,
    /// `preempt`
    Preempt,
    /// `refuses-foreign`
    RefusesForeign,
    /// `refuses-restart`
    RefusesRestart,
    /// `kernel-end`
    KernelEnd,
    /// `deaf`
    Deaf,
}

impl Personality {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Evicts,
        Self::Restart,
        Self::Preempt,
        Self::RefusesForeign,
        Self::RefusesRestart,
        Self::KernelEnd,
        Self::Deaf,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicts => "evicts",
            Self::Restart => "restart",
            Self::Preempt => "preempt",
            Self::RefusesForeign => "refuses-foreign",
            Self::RefusesRestart => "refuses-restart",
            Self::KernelEnd => "kernel-end",
            Self::Deaf => "deaf",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// What takes a disabled channel off its engine.
    #[must_use]
    pub const fn eviction(self) -> Eviction {
        match self {
            Self::Evicts | Self::RefusesForeign => Eviction::OnDisable,
            Self::Restart => Eviction::OnRestart,
            Self::Preempt | Self::RefusesRestart => Eviction::OnPreempt,
            Self::KernelEnd => Eviction::AtKernelEnd,
            Self::Deaf => Eviction::Never,
        }
    }

    /// How pairs of another client are refused.
    #[must_use]
    pub const fn refuses_foreign(self) -> Option<Status> {
        match self {
            Self::RefusesForeign => Some(Status::INSUFFICIENT_PERMISSIONS),
            _ => None,
        }
    }

    /// How `RESTART_RUNLIST` is refused.
    #[must_use]
    pub const fn refuses_restart(self) -> Option<Status> {
        match self {
            Self::RefusesRestart => Some(Status::NOT_SUPPORTED),
            _ => None,
        }
    }
}
