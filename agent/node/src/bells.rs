//! The doorbells of processes: which of them have rung since the last look.

use crate::page::PageRef;
use std::sync::atomic::{AtomicU32, Ordering};

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

impl Bell {
    /// The word that is waited on, and its value meanwhile.
    #[must_use]
    pub fn word(&self) -> (&AtomicU32, u32) {
        (&self.page.process.doorbell, self.seen)
    }
}

/// All doorbells.
#[derive(Debug)]
pub struct Bells {
    bells: Vec<Bell>,
    /// So many are of online processes; they come first, because who waits has room for a few only.
    online: usize,
    version: u64,
}

impl Default for Bells {
    fn default() -> Self {
        Self {
            bells: Vec::with_capacity(1_024),
            online: 0,
            version: 0,
        }
    }
}

impl Bells {
    /// Listens to an online process too. What it has rung so far counts as not yet heard.
    pub fn add(&mut self, session: u64, page: &PageRef) {
        self.insert(self.online, session, page);
        self.online += 1;
    }

    /// The same of an offline process.
    pub fn add_offline(&mut self, session: u64, page: &PageRef) {
        self.insert(self.bells.len(), session, page);
    }

    fn insert(&mut self, at: usize, session: u64, page: &PageRef) {
        let rung = page.process.doorbell.load(Ordering::Acquire);
        self.version += 1;
        let bell = Bell {
            session,
            page: page.clone(),
            seen: rung.wrapping_sub(1),
        };
        self.bells.insert(at, bell);
    }

    /// Listens to it no longer.
    pub fn remove(&mut self, session: u64) {
        self.version += 1;
        let of_online = self.bells.iter().take(self.online);
        self.online = of_online.filter(|bell| bell.session != session).count();
        self.bells.retain(|bell| bell.session != session);
    }

    /// Whether it is listened to.
    #[must_use]
    pub fn has(&self, session: u64) -> bool {
        self.bells.iter().any(|bell| bell.session == session)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageMemory;
    use tidegate_abi::page::Page;

    #[derive(Debug)]
    struct Memory(Page);

    impl PageMemory for Memory {
        fn page(&self) -> &Page {
            &self.0
        }

        fn wake_gate(&self, _slot: usize) {}
    }

    #[test]
    fn online_processes_come_first_whoever_comes_and_goes() {
        let mut bells = Bells::default();
        let page = || PageRef::new(Memory(Page::default()));
        let sessions = |bells: &Bells| bells.all().iter().map(|b| b.session).collect::<Vec<_>>();
        bells.add_offline(1, &page());
        bells.add(2, &page());
        bells.add_offline(3, &page());
        bells.add(4, &page());
        assert_eq!(sessions(&bells), [2, 4, 1, 3]);
        bells.remove(1);
        bells.remove(2);
        bells.add(5, &page());
        bells.add_offline(6, &page());
        assert_eq!(sessions(&bells), [4, 5, 3, 6]);
        bells.remove(7);
        bells.remove(4);
        bells.remove(5);
        bells.add(8, &page());
        assert_eq!(sessions(&bells), [8, 3, 6]);
    }
}
