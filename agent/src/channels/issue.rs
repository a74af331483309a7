//! One thread per GPU that disables and enables channels.
//!
//! [`tidegate_node::task`] has the rules: what the thread does, in which order, and what it answers. This file has the
//! thread and the driver's calls.
//!
//! The thread waits for the word that is raised with every task and, while an order is armed, for the doorbells of the
//! online processes whose edges it acts on, all in one `futex_waitv`. On a kernel without that call the control thread
//! handles edges alone. It also handles doorbells for which one call has no room.

use crate::causes::with_causes;
use crate::channels::awake::Awake;
use crate::channels::channel::{ChannelControl, is_gone};
use crate::channels::lookout::Alarm;
use crate::clock::now_ns;
use crate::doorbell;
use crate::inbox::{Mailbox, NodeInput};
use crate::rm::RmError;
use crate::sys::{self, WaitSet};
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_abi::rm::Status;
use tidegate_node::batch::{Batch, Kick, Object, Via};
use tidegate_node::journal::Journal;
use tidegate_node::kinds::Switch;
use tidegate_node::page::PageRef;
use tidegate_node::ports;
use tidegate_node::task::{
    Arms, CUDA_US, Carrying, Issue, Queue, Refusal, Release, ReleaseCalls, SliceCalls, Slicing,
    Taken, Task, release,
};

/// Which GPU of the node, counted from 0 in order of minor number.
pub type GpuIndex = u32;

/// Tasks a GPU's queue holds. Policy has at most two orders in flight per job.
const QUEUE: usize = 4096;

/// Where tasks for one GPU are put.
#[derive(Clone, Debug)]
pub struct Issuer {
    task_tx: Sender<Task>,
    /// Its thread can wait on doorbells.
    hears_bells: bool,
    /// Dropped after the sender, so that who wakes finds that there will be no more.
    raised: Raised,
}

/// The word that a thread sleeps on; raised with every task, and at the end.
#[derive(Clone, Debug)]
struct Raised(Arc<AtomicU32>);

impl Raised {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.0);
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.raise();
    }
}

impl Issuer {
    /// One whose tasks the other end takes, at most `queue` of them waiting.
    #[must_use]
    pub fn bounded(queue: usize) -> (Self, Receiver<Task>) {
        let (task_tx, task_rx) = crossbeam_channel::bounded(queue);
        let issuer = Self {
            task_tx,
            hears_bells: sys::has_futex_waitv(),
            raised: Raised(Arc::default()),
        };
        (issuer, task_rx)
    }
}

impl ports::Issuer for Issuer {
    fn put(&self, task: Task) -> Result<(), Task> {
        let put = self.task_tx.try_send(task);
        put.map_err(TrySendError::into_inner)?;
        self.raised.raise();
        Ok(())
    }

    fn keeps_armed(&self) -> bool {
        self.hears_bells
    }
}

/// What an issue thread may do to run soon after an edge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Haste {
    /// Real-time priority.
    pub fifo_priority: Option<i32>,
    /// `channel.cpu_latency`
    pub cpu_latency: Option<Duration>,
}

/// Starts the thread of one GPU; it ends when the sender is dropped.
///
/// # Errors
/// When no thread can be made.
pub fn start(
    gpu: GpuIndex,
    control: Arc<dyn ChannelControl>,
    journal: Arc<Journal>,
    (mailbox, alarm): (Mailbox, Option<Alarm>),
    haste: Haste,
) -> std::io::Result<Issuer> {
    let (issuer, task_rx) = Issuer::bounded(QUEUE);
    let (raised, hears_bells) = (Arc::clone(&issuer.raised.0), issuer.hears_bells);
    std::thread::Builder::new()
        .name(format!("tg-issue-{gpu}"))
        .spawn(move || {
            if let Some(priority) = haste.fifo_priority {
                // The control thread has found out whether this is allowed.
                let _ = sys::schedule_fifo(priority);
            }
            let thread = Thread {
                gpu,
                control: &*control,
                journal: &journal,
                mailbox: &mailbox,
                alarm: alarm.as_ref(),
                task_rx: &task_rx,
                raised: &raised,
                waiting: RefCell::default(),
                arms: RefCell::default(),
                bells: RefCell::default(),
                awake: RefCell::new(Awake::new(haste.cpu_latency)),
                waitv: Cell::new(hears_bells),
            };
            let mut slices = Slices::default();
            while let Some(next) = thread.next(&mut slices) {
                match next {
                    Next::Task(Task::Slice(slicing)) => slices.waiting.push_back(slicing),
                    Next::Task(Task::Issue(issue)) => thread.issue(issue),
                    Next::Task(Task::Release(left)) => {
                        thread.arms.borrow_mut().released();
                        let released = release(left, thread.journal, &thread);
                        mailbox.done(NodeInput::Released(released));
                    }
                    Next::Edge(carrying) => thread.carry(carrying),
                }
            }
        })?;
    Ok(issuer)
}

/// `before`: called before each call.
fn carry_out(thread: &Thread<'_>, mut carrying: Carrying, before: &dyn Fn(&Carrying)) -> Carrying {
    let Thread {
        gpu,
        control,
        journal,
        ..
    } = *thread;
    let switch = carrying.switch();
    loop {
        before(&carrying);
        let Some(batch) = carrying.call(journal, now_ns()) else {
            break;
        };
        let entered_ns = now_ns();
        let answer = control.carry_out(batch, switch);
        let returned_ns = now_ns();
        if let Err(error) = &answer {
            // The file of a process may be closed for reasons of its own.
            if let (Via::Agent, Some(alarm)) = (&batch.via, thread.alarm) {
                alarm.raise(error);
            }
            tracing::warn!(
                gpu,
                disable = switch.disables(),
                pairs = batch.pairs(),
                error = with_causes(error),
                "the driver refused a batch of channels"
            );
        }
        let answer = answer.map_err(|error| error.status().unwrap_or(Status::INVALID_STATE));
        carrying.answered(answer, (entered_ns, returned_ns), journal);
    }
    carrying
}

/// Timeslices that are to be set.
struct Slices {
    waiting: VecDeque<Slicing>,
    /// What the driver gives a group, microseconds.
    usual: u64,
}

impl Default for Slices {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            usual: CUDA_US,
        }
    }
}

/// What the thread of one GPU works with.
struct Thread<'a> {
    gpu: GpuIndex,
    control: &'a dyn ChannelControl,
    journal: &'a Journal,
    mailbox: &'a Mailbox,
    /// Raised where the driver takes no call on a file of the agent's own.
    alarm: Option<&'a Alarm>,
    task_rx: &'a Receiver<Task>,
    /// See [`Raised`].
    raised: &'a AtomicU32,
    /// Looked at in the middle of something else, and not carried out then.
    waiting: RefCell<Queue>,
    /// What it does without being told.
    arms: RefCell<Arms>,
    /// What it sleeps on. Kept for their room.
    bells: RefCell<(Vec<(PageRef, u32)>, WaitSet)>,
    /// How soon processors wake for them.
    awake: RefCell<Awake>,
    /// The kernel has the call.
    waitv: Cell<bool>,
}

/// What is to be done next.
enum Next {
    Task(Task),
    /// What an armed order says.
    Edge(Carrying),
}

impl Thread<'_> {
    /// What is to be done next; none when there will be nothing more. While there is nothing, timeslices are set.
    fn next(&self, slices: &mut Slices) -> Option<Next> {
        if let Some(task) = self.waiting.borrow_mut().take() {
            return Some(Next::Task(task));
        }
        loop {
            let raised = self.raised.load(Ordering::Acquire);
            match self.task_rx.try_recv() {
                Ok(task) => return Some(Next::Task(task)),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            // Before the words are read: a ring that comes after is not slept through.
            self.read_bells();
            if let Some(carrying) = self.due() {
                return Some(Next::Edge(carrying));
            }
            match slices.waiting.front_mut() {
                Some(first) => {
                    if let Some(sliced) = first.step(self, &mut slices.usual) {
                        slices.waiting.pop_front();
                        self.mailbox.done(NodeInput::Sliced(sliced));
                    }
                }
                None => self.sleep(raised),
            }
        }
    }

    fn due(&self) -> Option<Carrying> {
        if !self.waitv.get() {
            return None;
        }
        self.arms.borrow_mut().due()
    }

    fn read_bells(&self) {
        let (bells, _) = &mut *self.bells.borrow_mut();
        bells.clear();
        if !self.waitv.get() {
            return;
        }
        for page in self.arms.borrow().bells() {
            if page.is_heard() && !bells.iter().any(|(known, _)| known.is_same(page)) {
                let rung = page.process.doorbell.load(Ordering::Acquire);
                bells.push((page.clone(), rung));
            }
        }
    }

    /// Sleeps until a task comes or a doorbell rings.
    fn sleep(&self, raised: u32) {
        let armed = self.waitv.get() && self.arms.borrow().is_armed();
        self.awake.borrow_mut().set(armed);
        let (bells, set) = &mut *self.bells.borrow_mut();
        if bells.is_empty() {
            let _ = sys::futex_wait(self.raised, raised, None);
            return;
        }
        let bells = bells.iter().map(|(page, rung)| (page, *rung));
        if let Err(error) = doorbell::wait(set, (self.raised, raised), bells, u64::MAX) {
            tracing::error!(gpu = self.gpu, %error, "cannot wait on the doorbells");
            self.waitv.set(false);
        }
    }

    fn issue(&self, issue: Issue) {
        let taken = self.arms.borrow_mut().take(issue);
        match taken {
            Taken::Carry(carrying) => self.carry(carrying),
            Taken::Done(issued) => self.mailbox.done(NodeInput::Issued(issued)),
        }
    }

    /// Each one that goes before another has fewer calls, so this ends.
    fn carry(&self, carrying: Carrying) {
        let before = |working: &Carrying| {
            while let Some(shorter) = self.shorter(working) {
                self.issue(shorter);
            }
        };
        let done = carry_out(self, carrying, &before);
        let issued = self.arms.borrow_mut().done(done);
        self.mailbox.done(NodeInput::Issued(issued));
    }

    fn shorter(&self, working: &Carrying) -> Option<Issue> {
        if working.left() < 2 {
            return None;
        }
        self.with_all_that_waits(|waiting| waiting.shorter(working))
    }

    fn overtaker(&self, leaving: &Release) -> Option<Issue> {
        self.with_all_that_waits(|waiting| waiting.overtaker(leaving))
    }

    fn with_all_that_waits(&self, take: impl FnOnce(&mut Queue) -> Option<Issue>) -> Option<Issue> {
        let mut waiting = self.waiting.borrow_mut();
        let room = QUEUE.saturating_sub(waiting.len());
        self.task_rx
            .try_iter()
            .take(room)
            .for_each(|task| waiting.put(task));
        take(&mut waiting)
    }
}

impl SliceCalls for Thread<'_> {
    fn timeslice(&self, group: &Object) -> Result<u64, Status> {
        let answer = self.control.timeslice(group);
        answer.map_err(|error| self.not_sliced(group, &error))
    }

    fn set_timeslice(&self, group: &Object, us: u64) -> Result<(), Status> {
        let answer = self.control.set_timeslice(group, us);
        answer.map_err(|error| self.not_sliced(group, &error))
    }
}

impl Thread<'_> {
    fn not_sliced(&self, group: &Object, error: &RmError) -> Status {
        tracing::warn!(
            gpu = self.gpu,
            client = format_args!("{:#x}", group.client),
            group = format_args!("{:#x}", group.handle),
            error = with_causes(error),
            "a timeslice is not set"
        );
        error.status().unwrap_or(Status::INVALID_STATE)
    }
}

impl ReleaseCalls for Thread<'_> {
    fn exists(&self, client: u32) -> bool {
        self.control.exists(client)
    }

    fn throw_away(&self, batch: &Batch) {
        let _ = self.control.set(batch, Switch::Disable);
    }

    fn enable(&self, batch: &Batch) -> Result<(), Refusal> {
        self.control.set(batch, Switch::Enable).map_err(|error| {
            let client = batch.call.h_client_list[0];
            // The level was chosen because the driver takes such pairs.
            let gone = is_gone(&error, || self.control.exists(client), || true);
            if batch.pairs() == 1 && !gone {
                tracing::error!(
                    gpu = self.gpu,
                    client = format_args!("{client:#x}"),
                    channel = format_args!("{:#x}", batch.call.h_channel_list[0]),
                    error = with_causes(&error),
                    "a channel that left the lists is not enabled"
                );
            }
            let why = with_causes(&error);
            Refusal { gone, why }
        })
    }

    fn kick(&self, kick: &Kick) {
        let _ = self.control.kick(kick);
    }

    fn between(&self, leaving: &Release) {
        while let Some(issue) = self.overtaker(leaving) {
            self.issue(issue);
        }
    }
}
