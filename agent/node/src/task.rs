//! The tasks of a GPU's issue thread, and the rules by which it does them.
//!
//! A call of the driver waits for the GPU, and may stall behind the driver's locks. So the shell never makes one: it
//! hands a [`Task`] to the GPU's thread and goes on. Each thread has its own RM client, because two calls on one client
//! run one after the other, even for different GPUs.
//!
//! While an order waits, the decision about what may run can change. Right before an enable the thread therefore reads
//! two things again: the word that says what is wanted of this job on this GPU, and the activity words of the online
//! processes. If either forbids the enable, the thread withholds it and reports that. A disable is always carried out.
//!
//! If a pair may be disabled when it leaves the lists, it is first enabled here ([`Release`]), behind every order that
//! still names it. Later its number may have another owner, and nobody would ever enable it again. Orders that name
//! none of the leaving pairs need not wait for all of them ([`Queue`]).
//!
//! The rules are [`Carrying`] and [`release`]: they say which call is next, and take its answer. Whatever makes the
//! calls (a thread, a simulation) adds nothing.

mod arms;
mod queue;
mod slicing;
mod wanted;

use crate::batch::{Batch, Kick};
use crate::file::Files;
use crate::journal::{Journal, Place};
use crate::kinds::Switch;
use crate::page::{Guards, Watch};
pub use arms::{Arms, Taken};
pub use queue::Queue;
pub use slicing::{Before, CUDA_US, Group, SliceCalls, Sliced, Slicing};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_policy::effect::Look;
use tidegate_policy::event::Order;
pub use wanted::{TakenBack, Wanted, Wish};

/// Disable or enable one job's channels on one GPU.
#[derive(Clone, Debug)]
pub struct Issue {
    /// Names it in the answer and in [`Wanted`].
    pub order: Order,
    /// What to do.
    pub switch: Switch,
    /// Prepared calls, those that compute first.
    pub batches: Arc<Vec<Batch>>,
    /// See [`Wanted`].
    pub wanted: Arc<Wanted>,
    /// See [`Guards`].
    pub guards: Arc<Guards>,
    /// `Unconditional`: enable whatever stands against it, because the agent is ending, or undoing a failed
    /// disable.
    pub look: Look,
    /// Of an armed order ([`Arms`]): the words of which one that is busy is an edge.
    pub watch: Option<Arc<Watch>>,
}

/// Pairs that left the lists and may be disabled.
#[derive(Debug)]
pub struct Release {
    /// In batches of one client each.
    pub batches: Vec<Batch>,
    /// Of a process that ended: what it had queued is thrown away first, and its files are held until
    /// its channels are enabled, because the driver waits, with the locks of all GPUs held, for each
    /// disabled channel of a process whose files are closed.
    pub dead: Option<Files>,
}

/// What a GPU's thread is given to do, in order.
#[derive(Debug)]
pub enum Task {
    /// Policy's.
    Issue(Issue),
    /// The lists'.
    Release(Release),
    /// Of jobs that share by timeslices.
    Slice(Slicing),
}

/// What became of an order.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    /// Which.
    pub order: Order,
    /// What it was to do.
    pub switch: Switch,
    /// Nobody ordered it: it is what an armed order does, under that order's number.
    pub unasked: bool,
    /// What happened.
    pub outcome: Outcome,
    /// A call for several processes was refused, so that each had its own.
    pub apart: bool,
    /// When the words that forbid an enable were read before its first call; 0 if they were not.
    pub looked_ns: u64,
    /// Entry of the last call; 0 if none was made.
    pub entered_ns: u64,
    /// Its return.
    pub returned_ns: u64,
}

/// See [`Issued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The driver did it.
    Done,
    /// A newer order stands, or online is busy: the channels stay disabled.
    Withheld,
    /// The driver refused at least one batch; the state of the channels is unknown.
    Failed(Status),
}

/// What became of pairs that left the lists.
#[derive(Clone, Debug, Default)]
pub struct Released {
    /// Enabled, or gone.
    pub free: Vec<Place>,
    /// Still disabled.
    pub stuck: Vec<Place>,
    /// The driver's words about the first of those.
    pub why: String,
}

impl Released {
    /// What became of `places`, of which `stuck` could not be enabled, each with the driver's words.
    #[must_use]
    pub fn of(places: impl Iterator<Item = Place>, stuck: Vec<(Place, String)>) -> Self {
        let is_free = |place: &Place| !stuck.iter().any(|(left, _)| left == place);
        let free = places.filter(is_free).collect();
        let why = stuck.first().map(|(_, why)| why.clone());
        Self {
            free,
            stuck: stuck.into_iter().map(|(place, _)| place).collect(),
            why: why.unwrap_or_default(),
        }
    }
}

/// An [`Issue`] under way.
#[derive(Debug)]
pub struct Carrying {
    issue: Issue,
    next: usize,
    /// Enables that the batch at hand has had.
    enables: u32,
    /// What is left of the batch at hand where some of it is known to be disabled.
    rest: Option<Box<Batch>>,
    /// What is left of a call for several processes that was refused: one for each. They come before the next batch.
    apart: VecDeque<Batch>,
    issued: Issued,
}

impl Carrying {
    /// Before its first call.
    #[must_use]
    pub const fn new(issue: Issue) -> Self {
        let issued = Issued {
            order: issue.order,
            switch: issue.switch,
            unasked: false,
            outcome: Outcome::Done,
            apart: false,
            looked_ns: 0,
            entered_ns: 0,
            returned_ns: 0,
        };
        Self {
            issue,
            next: 0,
            enables: 0,
            rest: None,
            apart: VecDeque::new(),
            issued,
        }
    }

    /// What the armed order to enable, `issue`, does for an edge.
    pub(crate) fn unasked(issue: Issue) -> Self {
        let mut carrying = Self::new(Issue {
            switch: Switch::Disable,
            look: Look::Unconditional,
            ..issue
        });
        carrying.issued.unasked = true;
        carrying
    }

    /// What it carried out.
    pub(crate) fn into_issue(self) -> Issue {
        self.issue
    }

    /// What it carries out.
    #[must_use]
    pub const fn issue(&self) -> &Issue {
        &self.issue
    }

    /// Calls that are left, without what follows each.
    #[must_use]
    pub fn left(&self) -> usize {
        self.apart.len() + self.issue.batches.len().saturating_sub(self.next)
    }

    /// What it is to do.
    #[must_use]
    pub const fn switch(&self) -> Switch {
        self.issue.switch
    }

    /// The batch whose call is to be made now, with all that follows it; [`Self::answered`] is to say what
    /// came of it. None: there is nothing more to do. Marks in the journal what is about to be disabled.
    pub fn call(&mut self, journal: &Journal, now_ns: u64) -> Option<&Batch> {
        if self.issue.switch == Switch::Disable {
            return self.disables(journal, now_ns);
        }
        let Issue {
            order,
            batches,
            wanted,
            guards,
            look,
            ..
        } = &self.issue;
        if *look == Look::First && self.left() > 0 {
            if !wanted.enables(order.generation) || guards.any_busy() {
                self.issued.outcome = Outcome::Withheld;
                self.next = batches.len();
                self.apart.clear();
                return None;
            }
            if self.issued.looked_ns == 0 {
                self.issued.looked_ns = now_ns;
            }
        }
        let batch = self.apart.front().or_else(|| batches.get(self.next))?;
        for &place in &batch.places {
            journal.doubt(place);
        }
        Some(batch)
    }

    /// The next batch to disable: what is known to be disabled is not disabled again, since firmware counts.
    fn disables(&mut self, journal: &Journal, now_ns: u64) -> Option<&Batch> {
        self.rest = None;
        if let Some(own) = self.apart.front() {
            // What the refused call did to it is not known.
            own.places
                .iter()
                .for_each(|&place| journal.mark(place, own.method));
            return Some(own);
        }
        let is_sure = |place: &Place| journal.is_sure(*place);
        let is_known = |batch: &&Batch| batch.places.iter().all(is_sure);
        let batches = self.issue.batches.get(self.next..)?;
        let known = batches.iter().take_while(is_known).count();
        if known > 0 {
            self.next += known;
            if self.issued.entered_ns == 0 {
                self.issued.entered_ns = now_ns;
            }
            self.issued.returned_ns = now_ns;
        }
        let (batch, later) = batches.get(known..)?.split_first()?;
        // What makes firmware carry this call out may follow one that is left out.
        let left_out = later.iter().take_while(is_known);
        let kicks: Vec<Kick> = left_out.flat_map(|batch| batch.kicks.clone()).collect();
        let batch = if !kicks.is_empty() || batch.places.iter().any(is_sure) {
            let mut rest = batch.without(|place| is_sure(&place));
            rest.kicks.extend(kicks);
            self.rest.insert(Box::new(rest))
        } else {
            batch
        };
        for &place in &batch.places {
            journal.mark(place, batch.method);
        }
        Some(batch)
    }

    /// The call of the batch named last was entered and has returned. Clears in the journal what was enabled. A refused call
    /// that named several processes is made for each of them next: whose channels made the driver refuse it does not keep
    /// the others as they are.
    pub fn answered(
        &mut self,
        answer: Result<(), Status>,
        (entered_ns, returned_ns): (u64, u64),
        journal: &Journal,
    ) {
        let rest = self.rest.take();
        let own = self.apart.front().or(rest.as_deref());
        let Some(batch) = own.or_else(|| self.issue.batches.get(self.next)) else {
            return;
        };
        self.issued.entered_ns = entered_ns;
        self.issued.returned_ns = returned_ns;
        if answer.is_ok() && self.issue.switch == Switch::Enable {
            self.enables += 1;
            if self.enables < journal.enables(&batch.places) {
                return;
            }
        }
        self.enables = 0;
        match (answer, self.issue.switch) {
            (Ok(()), Switch::Enable) => {
                for &place in &batch.places {
                    journal.clear(place);
                }
            }
            (Ok(()), Switch::Disable) => {
                for &place in &batch.places {
                    journal.confirm(place);
                }
            }
            (Err(_), _) if batch.is_joint() => {
                self.apart = batch.apart();
                self.issued.apart = true;
                self.next += 1;
                return;
            }
            (Err(status), _) => self.issued.outcome = Outcome::Failed(status),
        }
        if self.apart.pop_front().is_none() {
            self.next += 1;
        }
    }

    /// What became of it, after the last call.
    #[must_use]
    pub const fn issued(&self) -> Issued {
        self.issued
    }
}

/// Carries out the calls for channels that left the lists. Errors are the driver's words.
pub trait ReleaseCalls {
    /// Whether there still is an RM client of this number, whoever owns it.
    fn exists(&self, client: u32) -> bool;
    /// Disables the channels of a batch and throws away what they have queued.
    fn throw_away(&self, batch: &Batch);
    /// Enables the channels of a batch.
    ///
    /// # Errors
    /// When the driver refuses, and whether its words mean that the channels are gone.
    fn enable(&self, batch: &Batch) -> Result<(), Refusal>;
    /// Carries out what follows a batch; a refusal changes nothing.
    fn kick(&self, kick: &Kick);
    /// Before each other call: what waits and may go before the rest of `leaving` ([`Queue::overtaker`]). So an order
    /// waits for one call at most.
    fn between(&self, leaving: &Release) {
        let _ = leaving;
    }
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// There is nothing left to enable.
    pub gone: bool,
    /// The driver's words.
    pub why: String,
}

/// How often a pair that left the lists is enabled until it counts as stuck.
const RELEASE_TRIES: usize = 3;

/// Enables what left the lists, as often as `journal` says that it was disabled, and says what stays disabled.
pub fn release(release: Release, journal: &Journal, calls: &dyn ReleaseCalls) -> Released {
    let mut stuck = Vec::new();
    for batch in &release.batches {
        // Enabling them then runs no more than what was on the GPU. A driver that does not take it runs
        // all of it, once, which is what it does without.
        calls.between(&release);
        if release.dead.is_some() && calls.exists(batch.call.h_client_list[0]) {
            calls.between(&release);
            let mut rewinding = batch.clone();
            rewinding.call.rewind_gp_put = 1;
            for &place in &batch.places {
                journal.mark(place, batch.method);
            }
            calls.throw_away(&rewinding);
        }
        stuck.extend(enable_what_is_left(batch, &release, (journal, calls)));
        // They are enabled; this is for firmware that has to be told twice.
        for kick in &batch.kicks {
            calls.between(&release);
            calls.kick(kick);
        }
    }
    drop(release.dead);
    let places = release.batches.into_iter().flat_map(|batch| batch.places);
    Released::of(places, stuck)
}

/// Enables the pairs of a batch that still exist; those that could not be.
fn enable_what_is_left(
    batch: &Batch,
    leaving: &Release,
    (journal, calls): (&Journal, &dyn ReleaseCalls),
) -> Vec<(Place, String)> {
    let client = batch.call.h_client_list[0];
    calls.between(leaving);
    if !calls.exists(client) {
        return Vec::new();
    }
    let enable = |batch: &Batch| {
        (0..journal.enables(&batch.places)).try_for_each(|_| {
            calls.between(leaving);
            calls.enable(batch)
        })
    };
    if enable(batch).is_ok() {
        return Vec::new();
    }
    let mut stuck = Vec::new();
    // One pair that is gone fails the whole batch.
    for (client, channel, place) in batch.entries() {
        let mut single = Batch::new(batch.via.clone());
        single.push(client, channel, place);
        let mut failed = None;
        for _ in 0..RELEASE_TRIES {
            failed = enable(&single)
                .err()
                .filter(|refusal| !refusal.gone)
                .map(|refusal| refusal.why);
            if failed.is_none() {
                break;
            }
        }
        stuck.extend(failed.map(|why| (place, why)));
    }
    stuck
}

#[cfg(test)]
mod tests;
