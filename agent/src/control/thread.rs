//! Drives the shell of the node ([`tidegate_node`]), and answers operators.
//!
//! It waits for the doorbells of all online processes, one word that other threads raise, and the next timer, all in
//! one `futex_waitv`. It makes no call that may wait: the issue threads make the driver's ioctls, the prover makes
//! ownership checks, and the event thread writes logs.

use super::status::{About, View};
use super::strangers;
use super::waiting::Waiting;
use crate::channels::journal::{Journal, Marked, is_running};
use crate::channels::obstacle::Obstacle;
use crate::clock::{now_ns, stamp};
use crate::host::notify::Notifier;
use crate::host::orders::{Order, Orders};
use crate::inbox::{Ask, Inbox, Input, Learnt, Mailbox, NodeInput, Ungate, User};
use crate::sys::thread_use;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_abi::uuid::Uuid;
use tidegate_node::{Parts, Shell, ports};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::lease::event::{Event as Learning, LeaseEvent};
use tidegate_policy::time::Instant;
use tidegate_proto::v1;

/// Messages and answers of issue threads taken in one turn, before timers and signs of life are looked at again. Doorbells are after each of them.
const TURN: usize = 64;
/// A turn takes no further message after so long, ns.
const TURN_NS: u64 = 1_000_000;

/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl ports::Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        now_ns()
    }
}

/// What the shell needs of this machine.
#[derive(Debug)]
pub struct Machine {
    /// Where channels that nobody claimed stand.
    pub journal: Arc<Journal>,
    /// Where the answers go.
    pub mailbox: Mailbox,
}

impl ports::Machine for Machine {
    fn release_late(&self, marked: Vec<Marked>) {
        crate::channels::reconcile::start_late(
            Arc::clone(&self.journal),
            marked,
            self.mailbox.clone(),
        );
    }

    fn is_running(&self, pid: u32) -> bool {
        is_running(pid)
    }
}

/// The control thread's state.
#[derive(Debug)]
pub struct ControlThread {
    shell: Shell,
    inbox: Inbox,
    waiting: Waiting,
    /// The service manager, which wants to hear that the thread makes turns.
    notifier: Arc<Notifier>,
    notified: u64,
    about: About,
    longest_turn_ns: u64,
    longest_turn_own_ns: u64,
    /// The last block in which offline ran beside online.
    ungated: u64,
    /// What operators told the agents before this one.
    orders: Orders,
    /// What they learnt of leases.
    learnt: Learnt,
}

impl ControlThread {
    /// A node with nobody attached.
    #[must_use]
    pub fn new(
        parts: Parts,
        inbox: Inbox,
        notifier: Arc<Notifier>,
        about: About,
        orders: Orders,
        learnt: Learnt,
    ) -> Self {
        Self {
            shell: Shell::new(parts),
            waiting: Waiting::new(Arc::clone(&inbox.wake)),
            inbox,
            notifier,
            notified: 0,
            about,
            longest_turn_ns: 0,
            longest_turn_own_ns: 0,
            ungated: 0,
            orders,
            learnt,
        }
    }

    /// Runs until it is told to end; what all that it managed used until then, and what is known of leases.
    pub fn run(mut self) -> (v1::GetStatusResponse, Learnt) {
        self.begin();
        loop {
            self.turn();
            if self.shell.has_ended() {
                break;
            }
            let raised = self.inbox.wake.load(Ordering::Acquire);
            if self.inbox.is_empty() {
                let (bells, deadline) = (self.shell.members().bells(), self.shell.deadline());
                self.waiting.wait(bells, raised, deadline);
            }
        }
        self.shell.steer(None);
        (self.view().totals(), self.view().learnt())
    }

    /// Before the first turn.
    #[doc(hidden)]
    pub fn begin(&mut self) {
        self.shell.begin();
        self.obey_earlier_orders();
        self.know_earlier_leases();
    }

    /// What an earlier agent learnt of iterations and units on the GPUs that are there.
    fn know_earlier_leases(&mut self) {
        let learnt = std::mem::take(&mut self.learnt);
        let lines = self.shell.lanes().gpus.lines().iter();
        let uuids: Vec<String> = lines.map(|line| Uuid(line.gpu.uuid).to_string()).collect();
        for (gpu, uuid) in (0..).map(GpuId).zip(uuids) {
            for known in learnt.get(&uuid).into_iter().flatten() {
                let event = Learning::Known {
                    key: known.key,
                    mean_ns: known.mean_ns,
                    spread_ns: known.spread_ns,
                    p95_ns: known.p95_ns,
                    seen: known.seen,
                };
                let event = LeaseEvent::Seen { gpu, event };
                self.shell.steer(Some(Event::Lease(event)));
            }
        }
    }

    /// What an operator told an earlier agent, before anybody attaches to this one.
    fn obey_earlier_orders(&mut self) {
        let orders = std::mem::take(&mut self.orders);
        let said = |order: &Order| {
            let since = stamp(order.since_unix_ms.saturating_mul(1_000_000));
            format!("since {since}, by {}", order.by)
        };
        if let Some(order) = &orders.drained {
            self.shell.steer(Some(Event::Drain { drained: true }));
            self.shell
                .remark("drained", format!("still drained {}", said(order)));
        }
        if let Some(order) = &orders.all_paused {
            self.shell.steer(Some(Event::Pause { job: None }));
            let text = format!("every job is still paused: {}", said(order));
            self.shell.remark("operator", text);
        }
        for (job, known) in orders.jobs.iter().filter(|(_, known)| known.paused) {
            let text = format!("job `{job}` is still paused: {}", said(&known.order));
            self.shell.remark("operator", text);
        }
        self.shell.steer_by_name(orders.by_name());
    }

    /// Reads everything that changed since the last turn, and never waits.
    #[doc(hidden)]
    pub fn turn(&mut self) {
        self.shell.wake();
        self.say_alive();
        let (begun, used) = (self.shell.now_ns(), thread_use());
        for done in self.inbox.done_rx.try_iter().take(TURN) {
            self.shell.take(done);
        }
        // No more than one: whatever people ask, no doorbell waits for more than one answer.
        if let Some(ask) = self.inbox.next_ask() {
            self.answer(ask);
            self.shell.wake();
        }
        for _ in 0..TURN {
            let Ok(input) = self.inbox.input_rx.try_recv() else {
                break;
            };
            self.take(input);
            if self.shell.now_ns() - begun > TURN_NS {
                break;
            }
        }
        self.shell.rest();
        let took = now_ns() - begun;
        self.longest_turn_ns = self.longest_turn_ns.max(took);
        if took > self.longest_turn_own_ns {
            let own = took.min(thread_use().awake_since(used).unwrap_or(took));
            self.longest_turn_own_ns = self.longest_turn_own_ns.max(own);
        }
    }

    /// Whether messages wait for another turn.
    #[doc(hidden)]
    #[must_use]
    pub fn has_input(&self) -> bool {
        !self.inbox.is_empty()
    }

    fn say_alive(&mut self) {
        let (every, now) = (self.notifier.alive_every_ns(), self.shell.now_ns());
        if every != 0 && now - self.notified >= every {
            self.notified = now;
            self.notifier.alive(now);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Node(input, _) => return self.shell.take(input),
            Input::Mps(pid) => self.see_mps(pid),
            Input::Users(users) => self.see_users(users),
            Input::Ask(ask) => self.answer(ask),
            Input::Audit(kind, text) => self.shell.remark(kind, text),
        }
        self.shell.wake();
    }

    /// MPS came or went. What is managed stays so: it was no client of MPS when it began.
    fn see_mps(&mut self, pid: Option<i32>) {
        let about = &mut self.about.obstacles;
        about.retain(|obstacle| !matches!(obstacle, Obstacle::Mps(_)));
        about.extend(pid.map(Obstacle::Mps));
        self.shell.take(NodeInput::Mps(pid.is_some()));
        let (kind, text) = match pid {
            Some(pid) => ("obstacle", Obstacle::Mps(pid).to_string()),
            None => ("obstacle_gone", "MPS ended".to_owned()),
        };
        self.shell.remark(kind, text);
    }

    /// Those who use a GPU: of those that are not attached somebody has to hear.
    fn see_users(&mut self, users: Vec<User>) {
        let members = self.shell.members().all();
        let attached: BTreeSet<i32> = members.map(|member| member.process().pid).collect();
        for user in self.about.strangers.see(users, &attached) {
            self.shell.remark("unattached", strangers::text(&user));
        }
    }

    fn answer(&mut self, ask: Ask) {
        // Whoever asked may have left meanwhile.
        self.shell.steer(None);
        match ask {
            Ask::Report(answer) => {
                let report = v1::GetStatusResponse {
                    longest_turn_ns: self.longest_turn_ns,
                    longest_turn_own_ns: self.longest_turn_own_ns,
                    ..self.view().report()
                };
                drop(answer.send(Box::new(report)));
            }
            Ask::Busy(since, answer) => {
                let gpus = 0..self.shell.lanes().gpus.lines().len();
                let of = gpus.map(|gpu| self.shell.spans().of(gpu, since));
                drop(answer.send(of.collect()));
            }
            Ask::Usage(answer) => drop(answer.send(Box::new(self.view().totals()))),
            Ask::Pause(job, answer) => {
                drop(answer.send(self.steer(job.as_deref(), |job| Event::Pause { job })));
            }
            Ask::Resume(job, answer) => {
                drop(answer.send(self.steer(job.as_deref(), |job| Event::Resume { job })));
            }
            Ask::Steered(jobs) => self.shell.steer_by_name(jobs),
            Ask::Drain(drained, answer) => {
                self.shell.steer(Some(Event::Drain { drained }));
                drop(answer.send(self.live_names()));
            }
            Ask::Ungate(order, answer) => drop(answer.send(self.ungate(order))),
            Ask::Regate(block) => {
                if block == self.ungated {
                    let until = Instant::default();
                    self.shell.steer(Some(Event::Ungate { until }));
                }
            }
            Ask::Explain(pid, answer) => drop(answer.send(Box::new(self.view().explain(pid)))),
            Ask::Learnt(answer) => drop(answer.send(self.view().learnt())),
            Ask::Leases(job, answer) => drop(answer.send(self.view().leases(job.as_deref()))),
            Ask::Handle(handle, job, answer) => {
                drop(answer.send(self.view().handles(handle, job.as_deref())));
            }
        }
    }

    /// Lets offline run beside online, unless it does already; returns which jobs there are.
    fn ungate(&mut self, order: Ungate) -> Result<Vec<String>, String> {
        if self.shell.policy().ungated_until().is_some() {
            return Err("another block is ungated at this moment".to_owned());
        }
        let Ungate {
            block,
            length_ns,
            who,
        } = order;
        let length = Duration::from_nanos(length_ns);
        self.ungated = block;
        let text = format!("for {length:.1?} at most: by {who}");
        self.shell.remark("ungated", text);
        let until = Instant::from_nanos(self.shell.now_ns()).after(length);
        self.shell.steer(Some(Event::Ungate { until }));
        Ok(self.live_names())
    }

    /// Steers one job by name, or all; returns which.
    fn steer(
        &mut self,
        name: Option<&str>,
        event: fn(Option<JobId>) -> Event<'static>,
    ) -> Vec<String> {
        let Some(name) = name else {
            self.shell.steer(Some(event(None)));
            return self.live_names();
        };
        let mut steered = Vec::new();
        for job in self.shell.members().live_jobs() {
            if self.view().job_name(job) == name {
                self.shell.steer(Some(event(Some(job))));
                steered.push(name.to_owned());
            }
        }
        steered
    }

    /// Jobs with a process, by name.
    fn live_names(&self) -> Vec<String> {
        let live = self.shell.members().live_jobs().into_iter();
        live.map(|job| self.view().job_name(job).to_owned())
            .collect()
    }

    const fn view(&self) -> View<'_> {
        View::new(&self.shell, &self.about)
    }
}
