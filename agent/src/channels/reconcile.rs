//! Enables what the journal says may be disabled: at the agent's start, before it says ready, and from
//! `tidegate release`.
//!
//! What the driver refuses to enable stays in the journal, unless it is known to be gone ([`is_gone`]): a
//! record that is cleared too early is a channel that nobody ever enables again.
//!
//! A successor that was handed the node leaves the channels as they are: their processes attach again
//! within milliseconds, and policy decides. What nobody has claimed by the end of the hand-over is
//! enabled then ([`start_late`]). Neither does anybody enable channels whose process is in the middle of
//! changing mappings: it attaches when it has ended that, or is gone.

use crate::causes::with_causes;
use crate::channels::channel::{Batch, ChannelControl, DriverControl, Via, is_gone};
use crate::channels::journal::{Journal, Marked, RECORDS, is_moving};
use crate::inbox::{Mailbox, NodeInput};
use crate::rm::{self, ControlFile, Driver, Gpu, RmError, Subdevice, ThrowAway};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tidegate_abi::rm::{Branch, Status};
use tidegate_node::kinds::Switch;
use tidegate_node::task::Released;

/// A channel that is still marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which.
    pub marked: Marked,
    /// What the driver said, or why it was not asked.
    pub why: String,
    /// The driver refuses this caller, which time does not change.
    pub lasting: bool,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Marked {
            client,
            channel,
            device_instance,
            ..
        } = self.marked;
        write!(
            f,
            "channel {channel:#x} of client {client:#x} on device {device_instance} may stay disabled: {}; release it \
             again (tidegate release) when the driver takes it, or end its process",
            self.why
        )
    }
}

/// What became of the marked channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Enabled.
    pub enabled: usize,
    /// Refused by the driver, because they are gone.
    pub gone: usize,
    /// Still marked: the driver did not take the call, or the GPU is not there.
    pub failed: usize,
    /// Still marked: their process is changing its memory's mappings.
    pub moving: usize,
    /// Those that failed.
    pub stuck: Vec<Stuck>,
}

impl Reconciled {
    fn failed(&mut self, marked: Marked, why: impl Into<String>, lasting: bool) {
        self.failed += 1;
        self.stuck.push(Stuck {
            marked,
            why: why.into(),
            lasting,
        });
    }

    /// Whether to try again is of use: something failed that is not refused for good.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.stuck.iter().any(|stuck| !stuck.lasting)
    }

    /// One line for each of the first that failed, and how many more there are.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = self.stuck.len().saturating_sub(LINES);
        let more = (more > 0).then(|| format!("{more} more channels may stay disabled"));
        let first = self.stuck.iter().take(LINES);
        first.map(ToString::to_string).chain(more)
    }
}

/// Channels that are named before the rest are counted.
const LINES: usize = 8;

impl fmt::Display for Reconciled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} channels enabled, {} were gone, {} could not be enabled",
            self.enabled, self.gone, self.failed
        )?;
        match self.moving {
            0 => Ok(()),
            moving => write!(
                f,
                ", {moving} wait for their process to end a change of its memory"
            ),
        }
    }
}

/// Whether the driver takes no pairs of others from this caller, as firmware may.
fn refuses_caller(error: &RmError) -> bool {
    let statuses = [
        Status::INSUFFICIENT_PERMISSIONS,
        Status::INVALID_CLIENT,
        Status::NOT_SUPPORTED,
    ];
    error
        .status()
        .is_some_and(|status| statuses.contains(&status))
}

/// Enables everything marked, with RM clients of its own. Where the driver cannot be asked, all of it stays marked.
#[must_use]
pub fn enable_marked(journal: &Journal) -> Reconciled {
    enable_here(journal, journal.marked())
}

/// As [`enable_marked`], on a driver that was asked already.
#[must_use]
pub fn enable_marked_on(journal: &Journal, driver: &Driver) -> Reconciled {
    enable(journal, driver, journal.marked())
}

/// Enables these channels, on a driver that is asked now.
fn enable_here(journal: &Journal, marked: Vec<Marked>) -> Reconciled {
    if marked.is_empty() {
        return Reconciled::default();
    }
    let driver = rm::enumerate().unwrap_or_else(|error| Driver::unlisted(&error));
    enable(journal, &driver, marked)
}

/// Enables these channels.
#[must_use]
pub fn enable(journal: &Journal, driver: &Driver, marked: Vec<Marked>) -> Reconciled {
    let mut by_gpu: BTreeMap<u32, Vec<Marked>> = BTreeMap::new();
    let mut done = Reconciled::default();
    for marked in marked {
        if is_moving(&marked) {
            done.moving += 1;
            continue;
        }
        by_gpu
            .entry(marked.device_instance)
            .or_default()
            .push(marked);
    }
    for (instance, marked) in by_gpu {
        let gpu = driver
            .gpus
            .iter()
            .find(|gpu| gpu.device_instance == instance);
        let opened = match gpu {
            Some(gpu) => Subdevice::open(gpu)
                .map(|own| (gpu, DriverControl(own)))
                .map_err(|error| with_causes(&error)),
            None => Err(why_not_there(driver)),
        };
        let (gpu, control) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                keep_but_the_gone(journal, driver, marked, &why, &mut done);
                continue;
            }
        };
        let restart = marked.iter().any(|marked| marked.restart);
        // Asked only where the answer decides.
        let takes_others = OnceCell::new();
        let takes_others =
            || *takes_others.get_or_init(|| takes_others_on(gpu, driver.branch(), &control));
        for marked in marked {
            // One call each: a pair that is gone fails its whole batch.
            let mut batch = Batch::new(Via::Agent);
            batch.push(marked.client, marked.channel, marked.place);
            let times = 0..journal.enables(&[marked.place]);
            let enabled = times.map(|_| control.set(&batch, Switch::Enable));
            match enabled.collect::<Result<(), _>>() {
                Ok(()) => done.enabled += 1,
                Err(error) if is_gone(&error, || control.exists(marked.client), takes_others) => {
                    done.gone += 1;
                }
                Err(error) => {
                    done.failed(marked, with_causes(&error), refuses_caller(&error));
                    continue;
                }
            }
            journal.clear(marked.place);
        }
        if restart {
            restart_graphics(gpu, driver);
        }
    }
    done
}

/// Channels on a GPU that cannot be asked stay marked, but for those that went with their client: whether there is one of
/// its number the driver says without the GPU.
fn keep_but_the_gone(
    journal: &Journal,
    driver: &Driver,
    marked: Vec<Marked>,
    why: &str,
    done: &mut Reconciled,
) {
    // A driver that lists nothing may not be the one that made the clients.
    let file = driver.lacks.is_none().then(ControlFile::open);
    let file = file.and_then(Result::ok);
    let mut known: BTreeMap<u32, bool> = BTreeMap::new();
    for marked in marked {
        let exists = |client| file.as_ref().is_none_or(|file| file.exists(client));
        let client = marked.client;
        if *known.entry(client).or_insert_with(|| exists(client)) {
            done.failed(marked, why, false);
        } else {
            done.gone += 1;
            journal.clear(marked.place);
        }
    }
}

/// Records that GPUs which are not there may keep: what is on them is enabled by nobody here, and others need room.
const ELSEWHERE: usize = RECORDS / 2;

/// Gives up records of GPUs that are not there, beyond [`ELSEWHERE`] of them. Of a driver that lists none nobody knows which
/// are.
pub fn leave_room(journal: &Journal, driver: &Driver) {
    if driver.lacks.is_some() {
        return;
    }
    let listed = |marked: &Marked| {
        let mut gpus = driver.gpus.iter();
        gpus.any(|gpu| gpu.device_instance == marked.device_instance)
    };
    let elsewhere = journal
        .marked()
        .into_iter()
        .filter(|marked| !listed(marked));
    let beyond: Vec<_> = elsewhere.skip(ELSEWHERE).collect();
    if !beyond.is_empty() {
        tracing::error!(
            "{} records of disabled channels are given up, because their GPUs are not there and others need the room: end \
             the processes that used them",
            beyond.len()
        );
    }
    for marked in beyond {
        journal.clear(marked.place);
    }
}

/// Why a GPU is not among those that are listed.
fn why_not_there(driver: &Driver) -> String {
    if let Some(why) = &driver.lacks {
        return why.clone();
    }
    let hidden: Vec<_> = driver.hidden.iter().map(ToString::to_string).collect();
    if hidden.is_empty() {
        "its GPU is not there".to_owned()
    } else {
        format!(
            "its GPU is not among those that can be used ({})",
            hidden.join("; ")
        )
    }
}

/// Whether the driver takes a pair of another client that is known to be there: a channel of this process, made for
/// that, which has nothing to run.
fn takes_others_on(gpu: &Gpu, branch: Option<Branch>, control: &DriverControl) -> bool {
    let Some(Ok(own)) = branch.map(|branch| ThrowAway::new(gpu, branch)) else {
        return false;
    };
    let mut call = tidegate_abi::rm::DisableChannels {
        num_channels: 1,
        ..Default::default()
    };
    call.h_client_list[0] = own.client();
    call.h_channel_list[0] = own.channel;
    control.0.set_channels(&mut call).is_ok()
}

/// For firmware that looks again at what is enabled only then. Where enabling was enough it changes
/// nothing, so a refusal is told and no more.
fn restart_graphics(gpu: &Gpu, driver: &Driver) {
    let Some(branch) = driver.branch() else {
        return;
    };
    let restarted = ThrowAway::scheduled(gpu, branch).and_then(|own| own.restart_runlist());
    if let Err(error) = restarted {
        tracing::warn!(
            error = with_causes(&error),
            "a runlist was not restarted after its channels were enabled"
        );
    }
}

/// Enables channels that were handed over and that no process claimed, on a thread of its own because
/// the driver may make it wait. Tells the control thread which places are free again.
pub fn start_late(journal: Arc<Journal>, marked: Vec<Marked>, mailbox: Mailbox) {
    let run = move || {
        let places: Vec<_> = marked.iter().map(|marked| marked.place).collect();
        let done = enable_here(&journal, marked);
        tracing::info!("channels nobody claimed: {done}");
        for line in done.lines() {
            tracing::error!("{line}");
        }
        let stuck = done.stuck.into_iter();
        let stuck = stuck.map(|stuck| (stuck.marked.place, stuck.why)).collect();
        mailbox.put(NodeInput::Released(Released::of(places.into_iter(), stuck)));
    };
    let thread = std::thread::Builder::new().name("tg-unclaimed".to_owned());
    if let Err(error) = thread.spawn(run) {
        tracing::error!(%error, "channels nobody claimed stay disabled");
    }
}
