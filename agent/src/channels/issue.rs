//! One thread per GPU that disables and enables channels.
//!
//! What it does, in what order, and what it answers are [`tidegate_node::task`]'s rules; here are the thread
//! and the driver's calls.

use crate::channels::channel::{ChannelControl, is_gone};
use crate::clock::now_ns;
use crate::inbox::{Mailbox, NodeInput};
use crate::rm::RmError;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_node::batch::{Batch, Kick, Object};
use tidegate_node::journal::Journal;
use tidegate_node::kinds::Switch;
use tidegate_node::ports;
use tidegate_node::task::{
    CUDA_US, Carrying, Issue, Issued, Queue, Refusal, Release, ReleaseCalls, SliceCalls, Slicing,
    Task, release,
};

/// Which GPU of the node, counted from 0 in order of minor number.
pub type GpuIndex = u32;

/// Tasks a GPU's queue holds. Policy has at most two orders in flight per job.
const QUEUE: usize = 4096;

/// Where tasks for one GPU are put.
#[derive(Clone, Debug)]
pub struct Issuer(crossbeam_channel::Sender<Task>);

impl Issuer {
    /// One whose tasks the other end takes, at most `queue` of them waiting.
    #[must_use]
    pub fn bounded(queue: usize) -> (Self, crossbeam_channel::Receiver<Task>) {
        let (task_tx, task_rx) = crossbeam_channel::bounded(queue);
        (Self(task_tx), task_rx)
    }
}

impl ports::Issuer for Issuer {
    fn put(&self, task: Task) -> Result<(), Task> {
        self.0
            .try_send(task)
            .map_err(crossbeam_channel::TrySendError::into_inner)
    }
}

/// Starts the thread of one GPU; it ends when the sender is dropped.
///
/// # Errors
/// When no thread can be made.
pub fn start(
    gpu: GpuIndex,
    control: Arc<dyn ChannelControl>,
    journal: Arc<Journal>,
    mailbox: Mailbox,
    fifo_priority: Option<i32>,
) -> std::io::Result<Issuer> {
    let (issuer, task_rx) = Issuer::bounded(QUEUE);
    std::thread::Builder::new()
        .name(format!("tg-issue-{gpu}"))
        .spawn(move || {
            if let Some(priority) = fifo_priority {
                // The control thread has found out whether this is allowed.
                let _ = crate::sys::schedule_fifo(priority);
            }
            let thread = Thread {
                gpu,
                control: &*control,
                journal: &journal,
                mailbox: &mailbox,
                task_rx: &task_rx,
                waiting: RefCell::default(),
            };
            let mut slices = Slices::default();
            while let Some(task) = thread.next(&mut slices) {
                match task {
                    Task::Slice(slicing) => slices.waiting.push_back(slicing),
                    Task::Issue(issue) => thread.issue(issue),
                    Task::Release(left) => {
                        let released = release(left, &thread);
                        mailbox.put(NodeInput::Released(released));
                    }
                }
            }
        })?;
    Ok(issuer)
}

/// `before`: called before each call.
fn carry_out(
    gpu: GpuIndex,
    issue: Issue,
    control: &dyn ChannelControl,
    journal: &Journal,
    before: &dyn Fn(&Carrying),
) -> Issued {
    let mut carrying = Carrying::new(issue);
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
            tracing::warn!(
                gpu,
                disable = switch.disables(),
                pairs = batch.pairs(),
                %error,
                "the driver refused a batch of channels"
            );
        }
        let answer = answer.map_err(|error| error.status().unwrap_or(Status::INVALID_STATE));
        carrying.answered(answer, (entered_ns, returned_ns), journal);
    }
    carrying.issued()
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
    task_rx: &'a crossbeam_channel::Receiver<Task>,
    /// Looked at in the middle of something else, and not carried out then.
    waiting: RefCell<Queue>,
}

impl Thread<'_> {
    /// What is to be done next; none when there will be nothing more. While there is nothing, timeslices are set.
    fn next(&self, slices: &mut Slices) -> Option<Task> {
        loop {
            let waiting = self.waiting.borrow_mut().take();
            let next = waiting.or_else(|| self.task_rx.try_recv().ok());
            if next.is_some() {
                return next;
            }
            let Some(first) = slices.waiting.front_mut() else {
                return self.task_rx.recv().ok();
            };
            if let Some(sliced) = first.step(self, &mut slices.usual) {
                slices.waiting.pop_front();
                self.mailbox.put(NodeInput::Sliced(sliced));
            }
        }
    }

    /// Each one that goes before another has fewer calls, so this ends.
    fn issue(&self, issue: Issue) {
        let before = |working: &Carrying| {
            while let Some(shorter) = self.shorter(working) {
                self.issue(shorter);
            }
        };
        let issued = carry_out(self.gpu, issue, self.control, self.journal, &before);
        self.mailbox.put(NodeInput::Issued(issued));
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
            %error,
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
                    %error,
                    "a channel that left the lists is not enabled"
                );
            }
            let why = error.to_string();
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
