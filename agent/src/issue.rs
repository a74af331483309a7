//! One thread per GPU that disables and enables channels.
//!
//! The ioctl waits for the GPU and may stall behind the driver's locks, so the control thread never
//! makes it: it hands an [`Order`] to the GPU's thread and goes on. Each thread has its own RM client,
//! because two calls on one client serialise even for different GPUs.
//!
//! What may run changes while an order waits its turn. Right before an enable the thread therefore
//! reads two things again: the word that says what is wanted of this job on this GPU, and the activity
//! words of the online processes. If either speaks against it the enable is withheld and reported;
//! a disable is always carried out.
//!
//! A pair that leaves the lists while it may be disabled is enabled here first ([`Release`]), behind
//! every order that still names it: its number may have another owner by now, and nobody would ever
//! enable it again.

use crate::channel::{Batch, ChannelControl, is_gone};
use crate::clock::now_ns;
use crate::inbox::{Input, Mailbox};
use crate::journal::{Journal, Place};
use crate::rm::{ControlFile, RmError};
use crate::sys::SharedPage;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_abi::rm::Status;

/// Which GPU of the node, counted from 0 in order of minor number.
pub type GpuIndex = u32;

/// What is wanted of one job's channels on one GPU: `command << 1 | disable`, written by the control
/// thread with every order.
#[derive(Debug, Default)]
pub struct Wanted(AtomicU64);

impl Wanted {
    /// Says that `command` is the newest.
    pub fn set(&self, command: u64, disable: bool) {
        self.0
            .store(command << 1 | u64::from(disable), Ordering::Release);
    }

    fn is(&self, command: u64, disable: bool) -> bool {
        self.0.load(Ordering::Acquire) == command << 1 | u64::from(disable)
    }
}

/// The activity words that forbid an enable while one of them is busy.
#[derive(Debug, Default)]
pub struct Guards(pub Vec<(Arc<SharedPage>, usize)>);

impl Guards {
    /// Whether one is busy at this moment.
    #[must_use]
    pub fn any_busy(&self) -> bool {
        self.0.iter().any(|(page, slot)| {
            page.devices[*slot].activity.load(Ordering::Acquire) & ACTIVITY_BUSY != 0
        })
    }
}

/// Disable or enable one job's channels on one GPU.
#[derive(Clone, Debug)]
pub struct Order {
    /// Names the order in the answer and in [`Wanted`].
    pub command: u64,
    /// The job, as the control thread numbers it.
    pub job: u32,
    /// Disable, else enable.
    pub disable: bool,
    /// Pre-built calls, GR first.
    pub batches: Arc<Vec<Batch>>,
    /// See [`Wanted`].
    pub wanted: Arc<Wanted>,
    /// See [`Guards`].
    pub guards: Arc<Guards>,
    /// Enable whatever stands against it: the agent is ending, or undoing a failed disable.
    pub unconditional: bool,
}

/// Pairs that left the lists and may be disabled.
#[derive(Debug)]
pub struct Release {
    /// In batches of one client each.
    pub batches: Vec<Batch>,
    /// Of a process that ended: what it had queued is thrown away first, and its files are held until
    /// its channels are enabled, because the driver waits, with the locks of all GPUs held, for each
    /// disabled channel of a process whose files are closed.
    pub dead: Option<Arc<Files>>,
}

/// The driver's files of a process, held open.
#[derive(Debug, Default)]
pub struct Files {
    /// On which the RM clients of its channels were made.
    pub control: Vec<Arc<ControlFile>>,
    /// On which its channels are registered.
    pub uvm: Option<OwnedFd>,
}

/// What a GPU's thread is given to do, in order.
#[derive(Debug)]
pub enum Task {
    /// Policy's.
    Order(Order),
    /// The lists'.
    Release(Release),
}

/// What became of an order.
#[derive(Clone, Copy, Debug)]
pub struct Issued {
    /// The GPU.
    pub gpu: GpuIndex,
    /// [`Order::job`]
    pub job: u32,
    /// [`Order::command`]
    pub command: u64,
    /// [`Order::disable`]
    pub disable: bool,
    /// What happened.
    pub outcome: Outcome,
    /// When the words that forbid an enable were read before its first ioctl; 0 if they were not.
    pub looked_ns: u64,
    /// Entry of the last ioctl; 0 if none was made.
    pub entered_ns: u64,
    /// Its return.
    pub returned_ns: u64,
}

/// See [`Issued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The driver did it.
    Done,
    /// A newer command stands, or online is busy: the channels stay disabled.
    Withheld,
    /// The driver refused at least one batch; the state of the channels is unknown.
    Failed(Status),
}

/// Where tasks for one GPU are put.
pub type Issuer = crossbeam_channel::Sender<Task>;

/// Tasks a GPU's queue holds. Policy has at most two orders in flight per job.
const QUEUE: usize = 4096;
/// How often a pair that left the lists is enabled until it counts as lost.
const RELEASE_TRIES: usize = 3;

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
    let (task_tx, task_rx) = crossbeam_channel::bounded::<Task>(QUEUE);
    std::thread::Builder::new()
        .name(format!("tg-issue-{gpu}"))
        .spawn(move || {
            if let Some(priority) = fifo_priority {
                // The control thread has found out whether this is allowed.
                let _ = crate::sys::schedule_fifo(priority);
            }
            for task in task_rx {
                match task {
                    Task::Order(order) => {
                        let issued = carry_out(gpu, &order, &*control, &journal);
                        drop(order);
                        mailbox.put(Input::Issued(issued));
                    }
                    Task::Release(release) => {
                        let mut stuck = Vec::new();
                        for batch in &release.batches {
                            if release.dead.is_some() {
                                throw_away(batch, &*control);
                            }
                            stuck.extend(enable_what_is_left(gpu, batch, &*control));
                            // They are enabled; this is for firmware that has to be told twice.
                            for kick in &batch.kicks {
                                let _ = control.kick(kick);
                            }
                        }
                        drop(release.dead);
                        let places = release.batches.into_iter().flat_map(|batch| batch.places);
                        mailbox.put(Input::released(places, stuck));
                    }
                }
            }
        })?;
    Ok(task_tx)
}

/// Drops what the channels of a dead process have queued, so that enabling them runs no more than what
/// was on the GPU. A driver that does not take it runs all of it, once, which is what it does without.
fn throw_away(batch: &Batch, control: &dyn ChannelControl) {
    let mut rewinding = batch.clone();
    rewinding.call.rewind_gp_put = 1;
    if control.exists(batch.call.h_client_list[0]) {
        let _ = control.set(&rewinding, true);
    }
}

/// Enables the pairs of a batch that still exist; those that could not be.
fn enable_what_is_left(
    gpu: GpuIndex,
    batch: &Batch,
    control: &dyn ChannelControl,
) -> Vec<(Place, String)> {
    let client = batch.call.h_client_list[0];
    if !control.exists(client) || control.set(batch, false).is_ok() {
        return Vec::new();
    }
    let mut stuck = Vec::new();
    // One pair that is gone fails the whole batch.
    for (client, channel, place) in batch.entries() {
        let mut single = Batch::new(batch.via.clone());
        single.push(client, channel, place);
        let mut failed = None;
        for _ in 0..RELEASE_TRIES {
            // The level was chosen because the driver takes such pairs.
            let gone = |error: &RmError| is_gone(error, || control.exists(client), || true);
            failed = control
                .set(&single, false)
                .err()
                .filter(|error| !gone(error));
            if failed.is_none() {
                break;
            }
        }
        if let Some(error) = failed {
            tracing::error!(
                gpu,
                client = format_args!("{client:#x}"),
                channel = format_args!("{channel:#x}"),
                %error,
                "a channel that left the lists stays disabled for now"
            );
            stuck.push((place, error.to_string()));
        }
    }
    stuck
}

fn carry_out(
    gpu: GpuIndex,
    order: &Order,
    control: &dyn ChannelControl,
    journal: &Journal,
) -> Issued {
    let mut issued = Issued {
        gpu,
        job: order.job,
        command: order.command,
        disable: order.disable,
        outcome: Outcome::Done,
        looked_ns: 0,
        entered_ns: 0,
        returned_ns: 0,
    };
    for batch in order.batches.iter() {
        if !order.disable && !order.unconditional {
            let looked_ns = now_ns();
            if !order.wanted.is(order.command, false) || order.guards.any_busy() {
                issued.outcome = Outcome::Withheld;
                break;
            }
            if issued.looked_ns == 0 {
                issued.looked_ns = looked_ns;
            }
        }
        if order.disable {
            for &place in &batch.places {
                journal.mark(place, batch.method);
            }
        }
        issued.entered_ns = now_ns();
        let answer = control.carry_out(batch, order.disable);
        issued.returned_ns = now_ns();
        match answer {
            Ok(()) if !order.disable => {
                for &place in &batch.places {
                    journal.clear(place);
                }
            }
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(
                    gpu,
                    disable = order.disable,
                    pairs = batch.pairs(),
                    %error,
                    "the driver refused a batch of channels"
                );
                issued.outcome = Outcome::Failed(error.status().unwrap_or(Status::INVALID_STATE));
            }
        }
    }
    issued
}
