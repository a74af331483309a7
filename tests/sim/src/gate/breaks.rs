//! What is broken on purpose.

use crate::defect::Defect;

/// What is broken on purpose, to see that the judge notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    #[default]
    Nothing,
    /// Offline wakes as soon as online is idle.
    NoCooldown,
    /// Some doorbells are never heard.
    LostEdge,
    /// An agent that follows another acknowledges its first disables without a call.
    NoDisableOnRestart,
    /// An offline process whose agent is gone waits for ever.
    NoLanding,
    /// Whatever the firmware, a disable is believed to be enough.
    DisableOnly,
    /// An issue thread carries out an older order after a newer one.
    StaleOrder,
    /// An issue thread enables without a last look at online.
    NoLook,
    /// An issue thread says that it did what an armed order says, and makes no call.
    FakedFire,
    /// Where jobs are to take turns they run at once.
    NoTurns,
    /// Whoever says that requests are in flight is believed for ever.
    Believed,
    /// Engines say that a request has ended when its prefill has.
    EarlyWord,
}

impl Break {
    /// Each with its name on the command line.
    pub const NAMES: [(&'static str, Self); 12] = [
        ("nothing", Self::Nothing),
        ("no-cooldown", Self::NoCooldown),
        ("lost-edge", Self::LostEdge),
        ("no-disable-on-restart", Self::NoDisableOnRestart),
        ("no-landing", Self::NoLanding),
        ("disable-only", Self::DisableOnly),
        ("stale-order", Self::StaleOrder),
        ("no-look", Self::NoLook),
        ("faked-fire", Self::FakedFire),
        ("no-turns", Self::NoTurns),
        ("believed", Self::Believed),
        ("early-word", Self::EarlyWord),
    ];

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|known| known.0 == name)
            .map(|known| known.1)
    }

    /// What of the world it breaks; the others are settings of the agent.
    pub(super) const fn defect(self) -> Option<Defect> {
        match self {
            Self::Nothing
            | Self::NoCooldown
            | Self::DisableOnly
            | Self::NoTurns
            | Self::Believed
            | Self::EarlyWord => None,
            Self::LostEdge => Some(Defect::LostEdge),
            Self::NoDisableOnRestart => Some(Defect::FakedDisables),
            Self::NoLanding => Some(Defect::NoLanding),
            Self::StaleOrder => Some(Defect::StaleOrder),
            Self::NoLook => Some(Defect::NoLook),
            Self::FakedFire => Some(Defect::FakedFire),
        }
    }
}
