//! Channels and their places in the journal; and those that may be disabled and are in no list.
//!
//! A lost connection is not a death: the page goes on telling edges, the channels go on being gated,
//! and the process attaches again as a new session, which takes the place of the old one. Channels of one
//! that attached anew, or was handed over by an earlier agent, are *adopted*: they stay as they are until it
//! has said again what it has.

use crate::journal::{HANDING_OVER_NS, Journal, Marked, Place, Places};
use crate::shares::{Owner, Shares};
use std::sync::Arc;

/// How long processes that were handed over, or attached anew, may take to say what they have: within
/// the second that their own soft landing waits.
pub const ADOPTION_NS: u64 = HANDING_OVER_NS * 8 / 10;

/// How soon a channel that could not be enabled is tried again. A GPU that does not answer is reset by its driver
/// within seconds or by nobody.
pub const STUCK_NS: u64 = 5_000_000_000;

/// A channel that may be disabled and is in no list until its process has said again what it has.
#[derive(Clone, Copy, Debug)]
struct Adopted {
    marked: Marked,
    /// When it is enabled unless it was claimed.
    due_ns: u64,
}

/// The journal, its free places, and what was adopted.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub journal: Arc<Journal>,
    places: Places,
    /// Who has which of the places that were given since the start.
    shares: Shares,
    adopted: Vec<Adopted>,
    /// Releases without an answer.
    pub releases: u32,
}

/// What becomes of channels that nobody claimed in time.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Enabled by the issue thread of a GPU of the node, by its index.
    pub here: Vec<(usize, Vec<Place>)>,
    /// On a GPU that was not listed when the agent started: the driver is asked anew.
    pub elsewhere: Vec<Marked>,
}

impl Adoption {
    /// With what a predecessor left.
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
            releases: 0,
        }
    }

    /// A place for a channel of `owner`; None: it has its share of them, or the journal is full. One that was adopted
    /// is the owner's from here on, with its mark: a pair with two records would be enabled by the one that does not
    /// say that its process is changing mappings.
    pub fn place(
        &mut self,
        (client, channel): (u32, u32),
        device_instance: u32,
        owner: Owner,
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
        Some(place)
    }

    /// Channels are enabled or gone.
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
        let place = adoption.place((7, 1), 0, owner()).expect("there is room");
        adoption.journal.mark(place, Method::Disable);
        adoption.journal.begin_move(place, 70);
        adoption.adopt([place].into_iter(), 0);
        let other = adoption.place((8, 1), 0, owner()).expect("there is room");
        let again = adoption.place((7, 1), 0, owner()).expect("there is room");
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
}
