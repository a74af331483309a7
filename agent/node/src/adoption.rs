//! Places of channels in the journal, and channels that may be disabled but that no process has claimed.
//!
//! A lost connection does not mean that the process is dead. Its page still reports edges and its channels are still
//! gated. The process attaches again as a new session, which takes the place of the old one. Until the process has
//! listed its channels again, they are *inherited* (`adopted` in the code) and stay as they are. The same holds for
//! channels that an earlier agent hands over.
//!
//! A channel on a GPU that the agent cannot use (the GPU is lost, or the driver lists none) is enabled by the process
//! that owns it, on its own file, when the agent asks for it. The answer of the process clears the journal's record.

use crate::journal::{HANDING_OVER_NS, Journal, Marked, Place, Places};
use crate::shares::{Owner, Shares};
use std::collections::HashSet;
use std::sync::Arc;

/// How long processes that were handed over, or attached anew, may take to list their channels: within
/// the second that their own fail-open release waits.
pub const ADOPTION_NS: u64 = HANDING_OVER_NS * 8 / 10;

/// The delay before a channel that could not be enabled is tried again. A GPU that does not answer is reset by its
/// driver within seconds, or by nobody.
pub const STUCK_NS: u64 = 5_000_000_000;

/// A channel that may be disabled, and is in no list until its process has listed it again.
#[derive(Clone, Copy, Debug)]
struct Adopted {
    marked: Marked,
    /// When it is enabled unless a process has claimed it.
    due_ns: u64,
}

/// The journal, its free places, and inherited channels.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub journal: Arc<Journal>,
    places: Places,
    /// Which owner has which of the places that were given since the start.
    shares: Shares,
    adopted: Vec<Adopted>,
    /// What processes were ordered to enable: by the number of the order, with its places.
    told: Vec<(u64, Vec<Place>)>,
    /// Releases without an answer.
    pub releases: u32,
}

/// How channels are enabled that nobody claimed in time.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// By the issue thread of a GPU of the node; its index.
    pub here: Vec<(usize, Vec<Place>)>,
    /// On a GPU that was not listed when the agent started: by the process, or by asking the driver anew.
    pub elsewhere: Vec<Marked>,
}

impl Adoption {
    /// With the channels of a predecessor.
    pub fn new(journal: Arc<Journal>, left: Vec<Marked>, now: u64) -> Self {
        let due_ns = now + ADOPTION_NS;
        for marked in &left {
            journal.doubt(marked.place);
        }
        Self {
            journal,
            places: Places::without(&left),
            shares: Shares::default(),
            adopted: left
                .into_iter()
                .map(|marked| Adopted { marked, due_ns })
                .collect(),
            told: Vec::new(),
            releases: 0,
        }
    }

    /// Whether a channel may be disabled that is in no list.
    pub fn may_be_disabled(&self, pair: (u32, u32)) -> bool {
        let mut adopted = self.adopted.iter();
        adopted.any(|own| (own.marked.client, own.marked.channel) == pair)
    }

    /// A process has these channels, and nobody waits for it to claim those that `is_elsewhere`, by the driver's number
    /// of their GPU: they are due.
    pub fn hurry(
        &mut self,
        pairs: impl Fn() -> HashSet<(u32, u32)>,
        is_elsewhere: impl Fn(u32) -> bool,
        now: u64,
    ) {
        if self.adopted.is_empty() {
            return;
        }
        let pairs = pairs();
        for Adopted { marked, due_ns } in &mut self.adopted {
            let own = pairs.contains(&(marked.client, marked.channel));
            if own && is_elsewhere(marked.device_instance) {
                *due_ns = now;
            }
        }
    }

    /// A process was ordered, by the order of this number, to enable these. They are due again unless it answers.
    pub fn told(&mut self, seq: u64, places: Vec<Place>, now: u64) {
        self.told.retain(|(_, known)| *known != places);
        self.keep_stuck(&places, now);
        self.told.push((seq, places));
    }

    /// The places of that order; empty if it was the order of another process.
    pub fn told_by(&mut self, seq: u64) -> Option<Vec<Place>> {
        let at = self.told.iter().position(|(own, _)| *own == seq)?;
        Some(self.told.swap_remove(at).1)
    }

    /// They are enabled, so nobody has to claim them.
    pub fn settle(&mut self, places: Vec<Place>) {
        // Whose process has them in its list by now is not asked about.
        let adopted = |place: &Place| self.adopted.iter().any(|own| own.marked.place == *place);
        let settled: Vec<_> = places.into_iter().filter(adopted).collect();
        self.adopted
            .retain(|own| !settled.contains(&own.marked.place));
        self.free(settled);
    }

    /// A place for a channel of `owner`; None: it has its share of them, or the journal is full. An inherited channel
    /// belongs to the owner from now on, with its mark: a pair with two records would be enabled by the record that
    /// does not say that its process is changing mappings.
    pub fn place(
        &mut self,
        (client, channel): (u32, u32),
        device_instance: u32,
        owner: Owner,
        was_gated: bool,
    ) -> Option<Place> {
        if !self.shares.allow(&owner, self.places.left()) {
            return None;
        }
        let same = |adopted: &Adopted| {
            let own = &adopted.marked;
            (own.client, own.channel, own.device_instance) == (client, channel, device_instance)
        };
        if let Some(at) = self.adopted.iter().position(same) {
            let place = self.adopted.swap_remove(at).marked.place;
            self.journal.end_move(place);
            self.journal.doubt(place);
            self.shares.give_back(place.number());
            self.shares.take(place.number(), owner);
            return Some(place);
        }
        let place = self.places.take()?;
        self.shares.take(place.number(), owner);
        self.journal
            .describe(place, client, channel, device_instance);
        if was_gated && self.journal.is_instead_of_lost() {
            self.journal.suspect(place);
        }
        Some(place)
    }

    /// A channel that no order will reach, of a process that was under an agent whose journal is lost: it is due as if
    /// it stood there.
    pub fn suspect(
        &mut self,
        (client, channel): (u32, u32),
        device_instance: u32,
        owner: Owner,
        now: u64,
    ) {
        if self.may_be_disabled((client, channel)) {
            return;
        }
        let place = self.place((client, channel), device_instance, owner, true);
        self.keep(place.into_iter(), now);
    }

    /// Channels were enabled, or are gone.
    pub fn free(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            self.journal.clear(place);
            self.shares.give_back(place.number());
            self.places.give_back(place);
        }
    }

    /// Channels of a process that attached anew.
    pub fn adopt(&mut self, places: impl Iterator<Item = Place>, now: u64) {
        let due_ns = now + ADOPTION_NS;
        self.keep(places, due_ns);
    }

    /// Channels that could not be enabled: they stay in the journal, and are tried again.
    pub fn keep_stuck(&mut self, places: &[Place], now: u64) {
        self.keep(places.iter().copied(), now + STUCK_NS);
    }

    fn keep(&mut self, places: impl Iterator<Item = Place>, due_ns: u64) {
        for place in places {
            self.journal.doubt(place);
            let marked = self.journal.described(place);
            self.adopted.push(Adopted { marked, due_ns });
        }
    }

    /// Nobody could claim anything for this long.
    pub fn put_off(&mut self, by_ns: u64) {
        for adopted in &mut self.adopted {
            adopted.due_ns += by_ns;
        }
    }

    /// When the next of them is due.
    pub fn deadline(&self) -> Option<u64> {
        self.adopted.iter().map(|adopted| adopted.due_ns).min()
    }

    /// Ends what was adopted to be claimed until `due_ns`: what a process claimed is policy's, the rest is to
    /// be enabled, but where the process is in the middle of changing its memory's mappings.
    pub fn take_due(
        &mut self,
        due_ns: u64,
        now: u64,
        is_claimed: impl Fn(&Marked) -> bool,
        is_running: impl Fn(u32) -> bool,
        gpu_of: impl Fn(u32) -> Option<usize>,
    ) -> Option<Due> {
        if self.adopted.iter().all(|adopted| adopted.due_ns > due_ns) {
            return None;
        }
        let adopted = std::mem::take(&mut self.adopted);
        let (ended, later): (Vec<_>, Vec<_>) = adopted
            .into_iter()
            .partition(|adopted| adopted.due_ns <= due_ns);
        self.adopted = later;
        let mut due = Due::default();
        for Adopted { marked, .. } in ended {
            if is_claimed(&marked) {
                self.free([marked.place]);
            } else if marked.mover.is_some_and(&is_running) {
                let due_ns = now + ADOPTION_NS;
                self.adopted.push(Adopted { marked, due_ns });
            } else if let Some(gpu) = gpu_of(marked.device_instance) {
                match due.here.iter_mut().find(|(at, _)| *at == gpu) {
                    Some((_, places)) => places.push(marked.place),
                    None => due.here.push((gpu, vec![marked.place])),
                }
            } else {
                due.elsewhere.push(marked);
            }
        }
        due.here.sort_by_key(|(gpu, _)| *gpu);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Method, Tenant};
    use tidegate_policy::ids::JobId;

    /// P-LIFECYCLE-4: a channel that is claimed again keeps its record, so that whoever reads the journal sees that its
    /// process changes mappings.
    #[test]
    fn a_pair_that_is_claimed_again_has_one_record() {
        let mut adoption = Adoption::new(Arc::new(Journal::private()), Vec::new(), 0);
        let owner = || Owner {
            tenant: Tenant::User(1),
            job: Some(JobId(0)),
        };
        let place = adoption
            .place((7, 1), 0, owner(), false)
            .expect("there is room");
        adoption.journal.mark(place, Method::Disable);
        adoption.journal.begin_move(place, 70);
        adoption.adopt([place].into_iter(), 0);
        let other = adoption
            .place((8, 1), 0, owner(), false)
            .expect("there is room");
        let again = adoption
            .place((7, 1), 0, owner(), false)
            .expect("there is room");
        assert!(other != place && again == place);
        assert_eq!(adoption.deadline(), None, "nobody enables it unasked");
        let marked = || adoption.journal.marked();
        assert_eq!(
            marked()[0].mover,
            None,
            "who claims it has ended what it did"
        );
        adoption.journal.begin_move(again, 71);
        let movers: Vec<_> = marked().iter().map(|marked| marked.mover).collect();
        assert_eq!(movers, [Some(71)]);
    }

    /// P-LIFECYCLE-8: what a process is told to enable stays on record until it has said that it did.
    #[test]
    fn a_channel_on_a_gpu_that_is_not_there_is_due_when_its_process_is_known_and_stays_until_it_answers()
     {
        let mut adoption = Adoption::new(Arc::new(Journal::private()), Vec::new(), 0);
        let owner = Owner {
            tenant: Tenant::User(1),
            job: Some(JobId(0)),
        };
        let place = adoption
            .place((7, 1), 5, owner, false)
            .expect("there is room");
        adoption.journal.mark(place, Method::Disable);
        adoption.keep_stuck(&[place], 0);
        let due = |adoption: &mut Adoption, now| {
            let due = adoption.take_due(now, now, |_| false, |_| false, |_| None);
            due.map_or(0, |due| due.elsewhere.len())
        };
        adoption.hurry(|| [(7, 1), (8, 1)].into(), |instance| instance == 0, 10);
        assert_eq!(due(&mut adoption, 10), 0, "its GPU is here");
        adoption.hurry(|| [(8, 1)].into(), |_| true, 10);
        assert_eq!(due(&mut adoption, 10), 0, "another's");
        adoption.hurry(|| [(7, 1), (8, 1)].into(), |instance| instance == 5, 10);
        assert_eq!(due(&mut adoption, 10), 1);
        adoption.told(3, vec![place], 10);
        assert!(adoption.may_be_disabled((7, 1)));
        assert_eq!(adoption.told_by(4), None);
        // Nobody answers.
        assert_eq!(due(&mut adoption, 10 + STUCK_NS), 1);
        adoption.told(5, vec![place], 10 + STUCK_NS);
        assert_eq!(adoption.told_by(3), None, "that order is over");
        let answered = adoption.told_by(5).expect("it was told");
        adoption.settle(answered);
        assert!(!adoption.may_be_disabled((7, 1)) && adoption.journal.marked().is_empty());
        assert_eq!(adoption.deadline(), None);
    }
}
