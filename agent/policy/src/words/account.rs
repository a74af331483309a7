//! Bytes, by the place where they are.

use crate::words::ids::Bytes;

/// Where a byte can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Nobody's.
    Free,
    /// Promised, not mapped yet.
    InFlight,
    /// Mapped by online ahead of need.
    Headroom,
    /// Used by online.
    Online,
    /// Backs an offline process.
    Offline,
    /// Taken from an offline process, not yet released by it.
    Quarantined,
}

impl Place {
    /// Each.
    pub const ALL: [Self; 6] = [
        Self::Free,
        Self::InFlight,
        Self::Headroom,
        Self::Online,
        Self::Offline,
        Self::Quarantined,
    ];

    /// The name every table prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::InFlight => "in_flight",
            Self::Headroom => "headroom",
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Quarantined => "quarantined",
        }
    }

    /// Whether an arrow leads from here to there.
    #[must_use]
    pub const fn leads_to(self, to: Self) -> bool {
        use Place::{Free, Headroom, InFlight, Offline, Online, Quarantined};
        matches!(
            (self, to),
            (Free, InFlight)
                | (InFlight, Free | Headroom | Offline)
                | (Headroom, Online | Free)
                | (Online, Headroom)
                | (Offline, Quarantined | Free)
                | (Quarantined, Free | Offline)
        )
    }
}

/// Bytes by place, of one process or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Nobody's; zero in the account of a process.
    pub free: Bytes,
    /// Promised, not mapped yet.
    pub in_flight: Bytes,
    /// Mapped by online ahead of need.
    pub headroom: Bytes,
    /// Used by online.
    pub online: Bytes,
    /// Backs offline.
    pub offline: Bytes,
    /// Taken from offline, not yet released.
    pub quarantined: Bytes,
}

impl Account {
    /// What is in one place.
    #[must_use]
    pub const fn at(&self, place: Place) -> Bytes {
        match place {
            Place::Free => self.free,
            Place::InFlight => self.in_flight,
            Place::Headroom => self.headroom,
            Place::Online => self.online,
            Place::Offline => self.offline,
            Place::Quarantined => self.quarantined,
        }
    }

    pub(crate) const fn at_mut(&mut self, place: Place) -> &mut Bytes {
        match place {
            Place::Free => &mut self.free,
            Place::InFlight => &mut self.in_flight,
            Place::Headroom => &mut self.headroom,
            Place::Online => &mut self.online,
            Place::Offline => &mut self.offline,
            Place::Quarantined => &mut self.quarantined,
        }
    }

    /// All of it.
    #[must_use]
    pub fn sum(&self) -> Bytes {
        Place::ALL.iter().map(|place| self.at(*place)).sum()
    }

    /// What an online process has mapped.
    #[must_use]
    pub const fn mapped(&self) -> Bytes {
        self.headroom.plus(self.online)
    }
}
