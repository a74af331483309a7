//! The blocking pool (`yard`): threads for operations that an untrusted client can make wait. The files of such clients
//! are checked, used and closed here, and nowhere else.
//!
//! Closing a socket with unsent data, or using a file of a client's own file system, takes as long as its maker likes,
//! and the thread is lost until then. So each tenant has one thread at a time, and another thread stands by whenever
//! one begins: a client that makes a thread wait waits alone. Some threads are reserved for the agent's own user.
//! [`Yard::late`] names the tenant whose work waits for longer than [`LATE_NS`], and the tenant that makes a thread
//! wait for so long.

use super::grave::Grave;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tidegate_node::kinds::Tenant;

/// Threads that strangers leave to the agent's own user.
const RESERVED: usize = 2;
/// Status names tenants whose work lasts longer.
const LATE_NS: u64 = 1_000_000_000;
/// The refusals that status shows: a tenant whose file makes a thread wait, and one whose file waits for a thread.
const STUCK: &str = "a file that it passed keeps a thread waiting";
const WAITS: &str = "its files wait, because files of others keep all threads waiting";

/// Something to do.
pub type Job = Box<dyn FnOnce() + Send>;

/// The threads, and what waits for them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Yard(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    more: Condvar,
    grave: Option<Grave>,
    /// Threads there may be.
    most: usize,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<Tenant, VecDeque<Job>>,
    /// Tenants with something to do and no thread, in turn, each since when, ns.
    turn: VecDeque<(Tenant, u64)>,
    /// Tenants with a thread, each since when it does what it does.
    working: BTreeMap<Tenant, u64>,
    /// Threads that look for something to do, or are about to.
    idle: usize,
    threads: usize,
    /// Whose work a session's is.
    sessions: HashMap<u64, Tenant>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("working", &self.working)
            .finish_non_exhaustive()
    }
}

impl Yard {
    /// With one thread, and at most `most` ([`super::means`]). It lives as long as the process.
    #[must_use]
    pub fn start(most: usize) -> Self {
        let grave = Grave::start().inspect_err(|error| {
            tracing::warn!(%error, "connections with files on them are closed by the threads of their tenants");
        });
        let yard = Self(Arc::new(Inner {
            grave: grave.ok(),
            most,
            ..Inner::default()
        }));
        yard.0.lock().count_one();
        yard.0.grow();
        yard
    }

    /// Closes a connection that has files on it. Never waits for it.
    ///
    /// # Errors
    /// The connection, where it has to be closed as a job.
    pub fn bury(&self, stream: UnixStream) -> Result<(), UnixStream> {
        match &self.0.grave {
            Some(grave) => grave.put(stream),
            None => Err(stream),
        }
    }

    /// Does `job` for `tenant`, after all that was put for it before. Never waits for it.
    pub fn put(&self, tenant: Tenant, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        let jobs = state.waiting.entry(tenant.clone()).or_default();
        jobs.push_back(Box::new(job));
        if jobs.len() == 1 && !state.working.contains_key(&tenant) {
            state.turn.push_back((tenant, crate::clock::now_ns()));
            self.0.more.notify_one();
        }
    }

    /// As [`Self::put`], for the tenant of a session; as for the agent's own if that is not known any more.
    pub fn put_for(&self, session: u64, job: impl FnOnce() + Send + 'static) {
        let tenant = self.0.lock().sessions.get(&session).cloned();
        self.put(tenant.unwrap_or_default(), job);
    }

    /// Tenants whose work has waited too long at `now_ns`, or has kept a thread waiting too long, each with its refusal.
    #[must_use]
    pub fn late(&self, now_ns: u64) -> Vec<(Tenant, &'static str)> {
        let state = self.0.lock();
        let late = |since: u64| now_ns.saturating_sub(since) >= LATE_NS;
        let working = state.working.iter().filter(|(_, since)| late(**since));
        let waiting = state.turn.iter().filter(|(_, since)| late(*since));
        let stuck = working.map(|(tenant, _)| (tenant.clone(), STUCK));
        stuck
            .chain(waiting.map(|(tenant, _)| (tenant.clone(), WAITS)))
            .collect()
    }

    /// What is done for `session` is done for `tenant` from here on.
    pub fn house(&self, session: u64, tenant: Tenant) {
        self.0.lock().sessions.insert(session, tenant);
    }

    /// A session is gone.
    pub fn leave(&self, session: u64) {
        self.0.lock().sessions.remove(&session);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the thread that was counted.
    fn grow(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tg-yard".to_owned());
        if let Err(error) = thread.spawn(move || inner.work()) {
            tracing::warn!(%error, "cannot start another thread for untrusted descriptors");
            let mut state = self.lock();
            state.threads -= 1;
            state.idle -= 1;
        }
    }

    fn work(self: Arc<Self>) {
        loop {
            let mut state = self.lock();
            let (tenant, job) = loop {
                if let Some(next) = state.next(self.most) {
                    break next;
                }
                state = self
                    .more
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            state.idle -= 1;
            // Before the work: this thread may never come back from it.
            let grows = state.idle == 0 && state.threads < self.most;
            if grows {
                state.count_one();
            }
            drop(state);
            if grows {
                self.grow();
            }
            job();
            let mut state = self.lock();
            state.done(tenant);
            state.idle += 1;
        }
    }
}

impl State {
    fn count_one(&mut self) {
        self.threads += 1;
        self.idle += 1;
    }

    /// What is to be done next, where there are at most so many threads.
    fn next(&mut self, most: usize) -> Option<(Tenant, Job)> {
        let is_own = |tenant: &Tenant| *tenant == Tenant::Agent;
        let strangers = self.working.keys().filter(|tenant| !is_own(tenant)).count();
        let room = strangers + RESERVED.min(most / 2) < most;
        let at = self
            .turn
            .iter()
            .position(|(tenant, _)| room || is_own(tenant))?;
        let (tenant, _) = self.turn.remove(at)?;
        let job = self.waiting.get_mut(&tenant)?.pop_front()?;
        self.working.insert(tenant.clone(), crate::clock::now_ns());
        Some((tenant, job))
    }

    fn done(&mut self, tenant: Tenant) {
        self.working.remove(&tenant);
        if self
            .waiting
            .get(&tenant)
            .is_some_and(|jobs| !jobs.is_empty())
        {
            self.turn.push_back((tenant, crate::clock::now_ns()));
        } else {
            self.waiting.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    /// P-SECURITY-8: what a stranger passes makes nobody wait but itself.
    #[test]
    fn who_makes_a_thread_wait_waits_for_it_alone() {
        let yard = Yard::start(64);
        let (held_tx, held_rx) = channel::<()>();
        let (done_tx, done_rx) = channel();
        let stuck = Tenant::User(7);
        yard.put(stuck, move || {
            let _ = held_rx.recv();
        });
        for uid in [7, 8, 9, 10] {
            for nth in 0..3 {
                let done_tx = done_tx.clone();
                yard.put(Tenant::User(uid), move || {
                    done_tx.send((uid, nth)).expect("heard")
                });
            }
        }
        let mut done: Vec<_> = (0..9)
            .map(|_| done_rx.recv_timeout(SOON).expect("in time"))
            .collect();
        assert!(done.iter().all(|(uid, _)| *uid != 7), "{done:?}");
        for uid in 8..=10 {
            let own = done
                .iter()
                .filter(|(of, _)| *of == uid)
                .map(|(_, nth)| *nth);
            assert_eq!(own.collect::<Vec<_>>(), [0, 1, 2], "in order");
        }
        drop(held_tx);
        done = (0..3)
            .map(|_| done_rx.recv_timeout(SOON).expect("in time"))
            .collect();
        assert_eq!(done, [(7, 0), (7, 1), (7, 2)]);
        assert!(yard.0.lock().threads <= 5);
    }

    /// P-SECURITY-11: few threads serve all strangers, and none of them is the last one for the agent's own user.
    #[test]
    fn who_keeps_all_threads_waiting_is_named_and_leaves_some_to_the_agents_own_user() {
        let yard = Yard::start(6);
        let (held_tx, held_rx) = channel::<()>();
        let held_rx = Arc::new(Mutex::new(held_rx));
        let (begun_tx, begun_rx) = channel();
        for uid in 1..=6 {
            let (held_rx, begun_tx) = (Arc::clone(&held_rx), begun_tx.clone());
            yard.put(Tenant::User(uid), move || {
                let _ = begun_tx.send(uid);
                let _ = held_rx.lock().expect("not poisoned").recv();
            });
        }
        // Jobs are handed out in turn. Their threads then run in any order.
        let begun = |count| {
            let begun = (0..count).map(|_| begun_rx.recv_timeout(SOON).expect("in time"));
            begun.collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(begun(4), [1, 2, 3, 4].into());
        let (own_tx, own_rx) = channel();
        yard.put(Tenant::Agent, move || own_tx.send(()).expect("heard"));
        own_rx.recv_timeout(SOON).expect("root's work is done");
        let now = crate::clock::now_ns();
        assert_eq!(yard.late(now - LATE_NS), []);
        let late = yard.late(now + LATE_NS);
        let strangers = || late.iter().filter(|(tenant, _)| *tenant != Tenant::Agent);
        let of = |what| strangers().filter(|(_, said)| *said == what).count();
        assert_eq!((of(STUCK), of(WAITS)), (4, 2), "{late:?}");
        assert_eq!(yard.0.lock().threads, 6);
        drop(held_tx);
        assert_eq!(begun(2), [5, 6].into());
    }
}
