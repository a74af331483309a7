//! The queue of a GPU's issue thread, and which of its entries overtake others.
//!
//! A process can leave a thousand channels behind, each of which needs a call of its own to be enabled. An order does
//! not wait for all of these calls: it goes before the next one if it names no RM client of the process that left. If
//! it names one, it has to wait: the number may have another owner by now, and the release would undo the order.
//!
//! A job can have a thousand channels, 64 in a call. A disable of another job goes before the next of these calls if it
//! takes fewer calls than are left, under the same condition. Orders of one job never overtake each other.

use super::{Carrying, Issue, Release, Task};
use crate::batch::Batch;
use crate::kinds::Switch;
use std::collections::{BTreeSet, VecDeque};

/// Tasks in the order they came.
#[derive(Debug, Default)]
pub struct Queue(VecDeque<Task>);

impl Queue {
    /// One more, behind all.
    pub fn put(&mut self, task: Task) {
        self.0.push_back(task);
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one that came first.
    pub fn take(&mut self) -> Option<Task> {
        self.0.pop_front()
    }

    /// The first order, if it may go before the rest of `leaving` and every release that came before it.
    pub fn overtaker(&mut self, leaving: &Release) -> Option<Issue> {
        let at = self
            .0
            .iter()
            .position(|task| matches!(task, Task::Issue(_)))?;
        let Some(Task::Issue(issue)) = self.0.get(at) else {
            return None;
        };
        let waits = self.0.iter().take(at).any(|task| match task {
            Task::Release(before) => names_one_of(issue, before),
            Task::Issue(_) | Task::Slice(_) => false,
        });
        if waits || names_one_of(issue, leaving) {
            return None;
        }
        self.remove(at)
    }

    /// An order that may go before the next call of `working`.
    pub fn shorter(&mut self, working: &Carrying) -> Option<Issue> {
        if working.left() < 2 {
            return None;
        }
        let at = self.shorter_at(working)?;
        self.remove(at)
    }

    /// One look at each task: whatever came before an order keeps it back if it is of its job, or names a client of it.
    fn shorter_at(&self, working: &Carrying) -> Option<usize> {
        let mut jobs = BTreeSet::from([working.issue().order.job]);
        let mut clients: BTreeSet<u32> = clients(&working.issue().batches).collect();
        for (at, task) in self.0.iter().enumerate() {
            match task {
                Task::Release(before) => clients.extend(self::clients(&before.batches)),
                Task::Slice(_) => {}
                Task::Issue(issue) => {
                    let shorter =
                        issue.switch == Switch::Disable && issue.batches.len() < working.left();
                    let apart = !jobs.contains(&issue.order.job)
                        && self::clients(&issue.batches).all(|client| !clients.contains(&client));
                    if shorter && apart {
                        return Some(at);
                    }
                    jobs.insert(issue.order.job);
                    clients.extend(self::clients(&issue.batches));
                }
            }
        }
        None
    }

    fn remove(&mut self, at: usize) -> Option<Issue> {
        match self.0.remove(at) {
            Some(Task::Issue(issue)) => Some(issue),
            _ => None,
        }
    }
}

/// Whether an order names an RM client of what leaves.
fn names_one_of(issue: &Issue, leaving: &Release) -> bool {
    let gone: BTreeSet<u32> = clients(&leaving.batches).collect();
    clients(&issue.batches).any(|client| gone.contains(&client))
}

/// The RM clients that calls name, with repetitions.
fn clients(batches: &[Batch]) -> impl Iterator<Item = u32> {
    let all = batches.iter().flat_map(Batch::entries);
    all.map(|(client, ..)| client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Via;
    use crate::journal::{Journal, Place};
    use crate::page::Guards;
    use crate::task::{Refusal, ReleaseCalls, Wanted, release};
    use std::cell::RefCell;
    use std::sync::Arc;
    use tidegate_policy::effect::Look;
    use tidegate_policy::event::Order;
    use tidegate_policy::ids::{Generation, GpuId, JobId};

    fn batches(client: u32, channels: u32) -> Vec<Batch> {
        let mut batches = vec![Batch::new(Via::Agent)];
        for channel in 0..channels {
            let last = batches.last_mut().expect("one at least");
            if !last.push(client, channel, Place(channel)) {
                let mut next = Batch::new(Via::Agent);
                next.push(client, channel, Place(channel));
                batches.push(next);
            }
        }
        batches
    }

    fn order(client: u32, generation: u64) -> Task {
        Task::Issue(issue(client, generation, 2))
    }

    fn issue(client: u32, generation: u64, channels: u32) -> Issue {
        Issue {
            order: Order {
                gpu: GpuId(0),
                job: JobId(client),
                generation: Generation(generation),
            },
            switch: Switch::Disable,
            batches: Arc::new(batches(client, channels)),
            wanted: Arc::new(Wanted::default()),
            guards: Arc::new(Guards::default()),
            look: Look::First,
            watch: None,
        }
    }

    fn leaves(client: u32, channels: u32) -> Release {
        Release {
            batches: batches(client, channels),
            dead: None,
        }
    }

    /// A driver that knows no channel of the client that leaves, and an order that comes after so many calls.
    struct Calls {
        queue: RefCell<Queue>,
        comes: RefCell<Vec<(usize, Task)>>,
        made: RefCell<Vec<String>>,
    }

    impl ReleaseCalls for Calls {
        fn exists(&self, _client: u32) -> bool {
            true
        }

        fn throw_away(&self, _batch: &Batch) {}

        fn enable(&self, batch: &Batch) -> Result<(), Refusal> {
            self.made
                .borrow_mut()
                .push(format!("enable {}", batch.pairs()));
            let why = String::new();
            Err(Refusal { gone: true, why })
        }

        fn kick(&self, _kick: &crate::batch::Kick) {}

        fn between(&self, leaving: &Release) {
            let calls = self.made.borrow().len();
            let mut comes = self.comes.borrow_mut();
            while comes.first().is_some_and(|(after, _)| *after <= calls) {
                self.queue.borrow_mut().put(comes.remove(0).1);
            }
            while let Some(issue) = self.queue.borrow_mut().overtaker(leaving) {
                let (job, generation) = (issue.order.job.0, issue.order.generation.0);
                self.made.borrow_mut().push(format!("{job}:{generation}"));
            }
        }
    }

    fn carried_out(comes: Vec<(usize, Task)>) -> (Vec<String>, usize) {
        let calls = Calls {
            queue: RefCell::default(),
            comes: RefCell::new(comes),
            made: RefCell::default(),
        };
        release(leaves(7, 1_000), &Journal::private(), &calls);
        let left = calls.queue.borrow().len();
        (calls.made.into_inner(), left)
    }

    /// P-SECURITY-9: preemption does not wait for what a stranger leaves behind.
    #[test]
    fn an_order_waits_for_one_call_of_a_release_and_not_for_all() {
        let (made, left) = carried_out(vec![(100, order(8, 1)), (100, order(9, 1))]);
        assert_eq!(left, 0);
        assert_eq!(made[100..102], ["8:1", "9:1"]);
        assert!(made.len() > 1_000, "and all channels are asked for");
    }

    #[test]
    fn an_order_for_a_client_that_leaves_waits_and_so_do_those_behind_it() {
        let (made, left) = carried_out(vec![(5, order(7, 1)), (6, order(8, 1))]);
        assert_eq!(left, 2);
        assert!(made.iter().all(|call| call.starts_with("enable")));
    }

    /// P-SECURITY-9: nor for what a stranger has.
    #[test]
    fn an_order_to_disable_waits_for_one_call_of_a_longer_one() {
        let mut queue = Queue::default();
        queue.put(order(8, 1));
        queue.put(Task::Issue(issue(9, 1, 1_000)));
        queue.put(order(9, 2));
        queue.put(order(7, 2));
        let mut enable = issue(10, 1, 2);
        enable.switch = Switch::Enable;
        queue.put(Task::Issue(enable));
        let mut takes = |channels| {
            let found = queue.shorter(&Carrying::new(issue(7, 1, channels)));
            found.map(|issue| (issue.order.job.0, issue.order.generation.0))
        };
        assert_eq!(takes(64), None, "one call is left of it");
        assert_eq!(takes(1_000), Some((8, 1)));
        // Of job 9 the longer one came first, 7 is its own, and 10 can wait.
        assert_eq!(takes(1_000), None);
        assert_eq!(takes(1_001), None);
        assert_eq!(queue.len(), 4);
    }

    #[test]
    fn an_order_waits_for_the_client_that_it_names() {
        let mut queue = Queue::default();
        let mut others = issue(9, 1, 2);
        others.order.job = JobId(8);
        queue.put(Task::Issue(others));
        assert!(queue.shorter(&Carrying::new(issue(9, 1, 200))).is_none());
        assert!(queue.shorter(&Carrying::new(issue(7, 1, 200))).is_some());
    }

    #[test]
    fn a_release_is_overtaken_too_unless_it_has_the_client() {
        let mut queue = Queue::default();
        queue.put(Task::Release(leaves(8, 3)));
        queue.put(order(9, 1));
        queue.put(order(8, 1));
        let leaving = leaves(7, 1);
        let first = queue.overtaker(&leaving).expect("it may");
        assert_eq!(first.order.job, JobId(9));
        assert!(queue.overtaker(&leaving).is_none());
        assert!(matches!(queue.take(), Some(Task::Release(_))));
        let second = queue.overtaker(&leaving).expect("its client is back");
        assert_eq!(second.order.job, JobId(8));
        assert!(queue.is_empty());
    }
}
