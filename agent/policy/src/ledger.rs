//! Who holds each byte of one GPU's pool.
//!
//! ```text
//!                 promise            arrive
//!        Free --------------> InFlight -----> Headroom <---> Online
//!         ^  ^                  |   |  use        |
//!         |  +--- withdraw -----+   |             |
//!         |                         | arrive      |
//!         +------- give back -------|-------------+
//!         |                         v
//!         +---- released ---- Quarantined <---- Offline
//!                                        take
//! ```
//!
//! *Free*: nobody's. *In flight*: promised to a process that has not mapped it yet. *Headroom*:
//! mapped by an online process ahead of need; *online*: used by it. *Offline*: backs an offline
//! process. *Quarantined*: taken from it, and not yet known to be released.
//!
//! Bytes are counted, not handles: a handle dies when its owner releases it, and the next owner
//! makes another of the same size. No byte has two owners, because none is promised before it is
//! free. Invariant: free and all accounts always add up to the pool, whatever processes report. A
//! move therefore takes what is there, at most what was asked, and says how much that was; a move
//! that no arrow shows takes nothing.
//!
//! What a process says it holds when the pool has no such bytes left is kept beside the accounts, as
//! *excess* of a place. It moves along the arrows as bytes do, goes first when its process gives
//! something back, and is filled from whatever becomes free before anybody is promised that. So no
//! byte is free while somebody holds more than the pool knew of.

use crate::ids::{Bytes, SessionId};
pub use crate::words::account::{Account, Place};

/// The books of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pool: Bytes,
    free: Bytes,
    /// By process. An account without a byte may stay until its process is gone.
    accounts: Vec<(SessionId, Account)>,
    /// In the order it came.
    excess: Vec<Excess>,
}

/// Held, and not in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    owner: SessionId,
    place: Place,
    bytes: Bytes,
}

impl Ledger {
    /// A pool of which everything is free.
    #[must_use]
    pub const fn new(pool: Bytes) -> Self {
        Self {
            pool,
            free: pool,
            accounts: Vec::new(),
            excess: Vec::new(),
        }
    }

    /// Every byte there is.
    #[must_use]
    pub const fn pool(&self) -> Bytes {
        self.pool
    }

    /// Bytes nobody holds.
    #[must_use]
    pub const fn free(&self) -> Bytes {
        self.free
    }

    /// What one process holds.
    #[must_use]
    pub fn account(&self, owner: SessionId) -> Account {
        match self.find(owner) {
            Ok(place) => self.accounts[place].1,
            Err(_) => Account::default(),
        }
    }

    /// What processes hold beyond what the pool has.
    #[must_use]
    pub fn excess(&self) -> Bytes {
        self.excess.iter().map(|excess| excess.bytes).sum()
    }

    /// What one process holds beyond what the pool has.
    #[must_use]
    pub fn excess_of(&self, owner: SessionId) -> Bytes {
        let own = self.excess.iter().filter(|excess| excess.owner == owner);
        own.map(|excess| excess.bytes).sum()
    }

    /// Every process that holds a byte, some more than once.
    pub fn holders(&self) -> impl Iterator<Item = SessionId> + '_ {
        let accounts = self.accounts.iter();
        let accounts = accounts.filter(|account| !account.1.sum().is_zero());
        let excess = self.excess.iter().map(|excess| excess.owner);
        accounts.map(|account| account.0).chain(excess)
    }

    /// Every process with its account, by id.
    pub fn accounts(&self) -> impl Iterator<Item = (SessionId, Account)> + '_ {
        self.accounts.iter().copied()
    }

    /// The whole pool by place.
    #[must_use]
    pub fn totals(&self) -> Account {
        let mut totals = Account {
            free: self.free,
            ..Account::default()
        };
        for (_, account) in &self.accounts {
            for place in Place::ALL {
                let sum = totals.at_mut(place);
                *sum = sum.plus(account.at(place));
            }
        }
        totals
    }

    /// Moves `bytes` of one process along an arrow. Says how many moved.
    pub fn shift(&mut self, owner: SessionId, from: Place, to: Place, bytes: Bytes) -> Bytes {
        if !from.leads_to(to) {
            return Bytes::ZERO;
        }
        if to == Place::Free {
            let beyond = self.drop_excess(owner, from, bytes);
            let moved = self.put(owner, from, to, bytes.minus(beyond));
            self.fill();
            return beyond.plus(moved);
        }
        let moved = self.put(owner, from, to, bytes);
        let beyond = self.drop_excess(owner, from, bytes.minus(moved));
        self.add_excess(owner, to, beyond);
        moved.plus(beyond)
    }

    /// What a process turns out to hold, found in its own report: an earlier agent, or the driver,
    /// gave it. Says how many of the bytes the pool had; the rest is its excess.
    pub fn adopt(&mut self, owner: SessionId, place: Place, bytes: Bytes) -> Bytes {
        if place == Place::Free {
            return Bytes::ZERO;
        }
        let moved = self.put(owner, Place::Free, place, bytes);
        self.add_excess(owner, place, bytes.minus(moved));
        moved
    }

    fn add_excess(&mut self, owner: SessionId, place: Place, bytes: Bytes) {
        let same = |known: &&mut Excess| (known.owner, known.place) == (owner, place);
        if bytes.is_zero() {
        } else if let Some(known) = self.excess.iter_mut().find(same) {
            known.bytes = known.bytes.plus(bytes);
        } else {
            self.excess.push(Excess {
                owner,
                place,
                bytes,
            });
        }
    }

    fn drop_excess(&mut self, owner: SessionId, place: Place, bytes: Bytes) -> Bytes {
        let same = |known: &Excess| (known.owner, known.place) == (owner, place);
        let Some(at) = self.excess.iter().position(same) else {
            return Bytes::ZERO;
        };
        let dropped = bytes.min(self.excess[at].bytes);
        self.excess[at].bytes = self.excess[at].bytes.minus(dropped);
        if self.excess[at].bytes.is_zero() {
            self.excess.remove(at);
        }
        dropped
    }

    /// Who holds more than the pool knew of gets what is free.
    fn fill(&mut self) {
        let mut left = core::mem::take(&mut self.excess);
        left.retain_mut(|excess| {
            let moved = self.put(excess.owner, Place::Free, excess.place, excess.bytes);
            excess.bytes = excess.bytes.minus(moved);
            !excess.bytes.is_zero()
        });
        self.excess = left;
    }

    /// What a process uses, out of what it has mapped. Says what it is taken to use.
    pub fn set_used(&mut self, owner: SessionId, used: Bytes) -> Bytes {
        let account = self.account(owner);
        let (more, less) = (used.minus(account.online), account.online.minus(used));
        self.shift(owner, Place::Headroom, Place::Online, more);
        self.shift(owner, Place::Online, Place::Headroom, less);
        self.account(owner).online
    }

    /// A process is gone, and with it all it held. Says how much that was.
    pub fn close(&mut self, owner: SessionId) -> Bytes {
        self.excess.retain(|excess| excess.owner != owner);
        let Ok(place) = self.find(owner) else {
            return Bytes::ZERO;
        };
        let (_, account) = self.accounts.remove(place);
        self.free = self.free.plus(account.sum());
        self.fill();
        account.sum()
    }

    fn find(&self, owner: SessionId) -> Result<usize, usize> {
        self.accounts.binary_search_by_key(&owner, |known| known.0)
    }

    fn put(&mut self, owner: SessionId, from: Place, to: Place, bytes: Bytes) -> Bytes {
        let place = match self.find(owner) {
            Ok(place) => place,
            Err(place) => {
                if from != Place::Free || bytes.min(self.free).is_zero() {
                    return Bytes::ZERO;
                }
                self.accounts.insert(place, (owner, Account::default()));
                place
            }
        };
        let (free, account) = (&mut self.free, &mut self.accounts[place].1);
        let source = match from {
            Place::Free => &mut *free,
            from => account.at_mut(from),
        };
        let moved = bytes.min(*source);
        *source = source.minus(moved);
        let target = match to {
            Place::Free => free,
            to => account.at_mut(to),
        };
        *target = target.plus(moved);
        moved
    }
}
