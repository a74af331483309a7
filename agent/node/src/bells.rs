//! The doorbells of processes: which have rung since they were last looked at.

use crate::page::PageRef;
use std::sync::atomic::Ordering;

/// One doorbell.
#[derive(Clone, Debug)]
pub struct Bell {
    /// Whose.
    pub session: u64,
    /// Where the word is.
    pub page: PageRef,
    /// Its value when it was last looked at: who waits for a ring sleeps while it is this.
    pub seen: u32,
}

/// All doorbells.
#[derive(Debug)]
pub struct Bells {
    bells: Vec<Bell>,
    version: u64,
}

impl Default for Bells {
    fn default() -> Self {
        Self {
            bells: Vec::with_capacity(1_024),
            version: 0,
        }
    }
}

impl Bells {
    /// Listens to a process too. What it has rung so far counts as not yet heard.
    pub fn add(&mut self, session: u64, page: &PageRef) {
        let rung = page.process.doorbell.load(Ordering::Acquire);
        self.version += 1;
        self.bells.push(Bell {
            session,
            page: page.clone(),
            seen: rung.wrapping_sub(1),
        });
    }

    /// Listens to it no longer.
    pub fn remove(&mut self, session: u64) {
        self.version += 1;
        self.bells.retain(|bell| bell.session != session);
    }

    /// The session of bell number `at`, and whether it rang since the last look.
    pub fn look(&mut self, at: usize) -> Option<(u64, bool)> {
        let bell = self.bells.get_mut(at)?;
        let rung = bell.page.process.doorbell.load(Ordering::Acquire);
        let changed = rung != bell.seen;
        bell.seen = rung;
        Some((bell.session, changed))
    }

    /// All of them, to be waited on.
    #[must_use]
    pub fn all(&self) -> &[Bell] {
        &self.bells
    }

    /// Another number whenever [`Self::all`] has other members.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }
}
