//! A worker whose channels a probe disables and enables, by one of three ways.
//!
//! What makes firmware carry a disable out (a restart of the runlist, a preemption) follows it, by the method
//! that P2m found on this card. The worker makes those calls itself, which no firmware is known to refuse.
//!
//! A pair is marked in the journal before it is disabled, and the worker is told what to enable if its
//! input ends; so a subject may be dropped, and its probe killed, at any moment.

use crate::hold::Hold;
use crate::link::Worker;
use crate::message::{Done, Op, Own};
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use tidegate_abi::class::Engine;
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS, Status};
use tidegate_agent::channels::channel::{self, Batch, ChannelControl, DriverControl, Via};
use tidegate_agent::channels::journal::Place;
use tidegate_agent::clock::now_ns;
use tidegate_agent::config::Method;
use tidegate_core::rm::Channel;
use tidegate_driver::rm::{ControlFile, Driver, Gpu, RmError, Subdevice};
use tidegate_node::kinds::Switch;

/// `NVA06F_CTRL_CMD_RESTART_RUNLIST` {force restart, bypass wait}, from the kernel's `ctrla06f.h`.
pub const RESTART_RUNLIST: u32 = 0xa06f_0111;

/// Who makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The probe, with its own RM client and foreign pairs (L1).
    Foreign,
    /// The probe, through the worker's control file (L2).
    OwnersFile,
    /// A thread of the worker (L3).
    Inside,
}

impl Way {
    /// As the design calls it.
    #[must_use]
    pub const fn level(self) -> &'static str {
        match self {
            Self::Foreign => "L1",
            Self::OwnersFile => "L2",
            Self::Inside => "L3",
        }
    }
}

/// Groups that compute, and one channel of them.
#[must_use]
pub fn graphics(channels: &[Channel]) -> (BTreeSet<u32>, Option<u32>) {
    let of = || channels.iter().filter(|one| one.engine == Engine::Graphics);
    (
        of().map(|one| one.tsg).collect(),
        of().next().map(|one| one.channel),
    )
}

/// One control of an object of the worker's, made by the worker; nanoseconds it took.
///
/// # Errors
/// RM's answer, with `what` before it.
pub fn control(
    worker: &mut Worker,
    own: &Own,
    (object, cmd, what): (u32, u32, &str),
    parameters: &[u8],
) -> anyhow::Result<u64> {
    let op = Op::Control {
        own: own.clone(),
        object,
        cmd,
        parameters: parameters.to_vec(),
    };
    answered(&worker.call("control", vec![op])?, what)
}

fn answered(done: &[Done], what: &str) -> anyhow::Result<u64> {
    let done = done.first().context("an empty answer")?;
    let status = Status(u32::try_from(done.value).unwrap_or(u32::MAX));
    anyhow::ensure!(
        status.is_ok(),
        "{what}: {} ({:#x})",
        status.name(),
        status.0
    );
    Ok(done.ns)
}

/// The GPU of a device instance.
///
/// # Errors
/// When the driver has none of that instance.
pub fn gpu(driver: &Driver, instance: u32) -> anyhow::Result<&Gpu> {
    driver
        .gpus
        .iter()
        .find(|gpu| gpu.device_instance == instance)
        .with_context(|| format!("the driver has no device instance {instance}"))
}

#[derive(Debug)]
struct Lists {
    control: DriverControl,
    batches: Vec<Batch>,
}

/// The worker and the way to its channels.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The worker.
    pub worker: Worker,
    /// Its channels, compute before copy.
    pub channels: Vec<Channel>,
    hold: &'a Hold,
    places: Vec<Place>,
    own: Own,
    way: Way,
    method: Method,
    lists: Option<Lists>,
    disabled: bool,
    /// Progress at which all that was launched has finished.
    pub launched: u64,
}

impl<'a> Subject<'a> {
    /// Takes a worker that has its context, with `way` to its channels, which stops them by `method`. `driver` is
    /// asked for unless the worker makes the calls itself.
    ///
    /// # Errors
    /// When the trace shows no channels, or that way cannot be had.
    pub fn new<'b>(
        mut worker: Worker,
        hold: &'a Hold,
        driver: impl FnOnce() -> anyhow::Result<&'b Driver>,
        (way, method): (Way, Method),
    ) -> anyhow::Result<Self> {
        hold.check()?;
        worker.trace.read()?;
        let mut channels = worker.trace.channels();
        channels.sort_by_key(|channel| channel.engine != Engine::Graphics);
        let own = worker.trace.owners().into_iter().next();
        let own = own.context("the trace shows no channel: the library was not preloaded, or the driver's ioctls do not pass through libc's ioctl")?;
        if channels.iter().any(|channel| channel.client != own.client) {
            bail!("the context's channels belong to several RM clients");
        }
        let instance = channels[0]
            .device_instance
            .context("the channels' device is not known")?;
        let mut places = Vec::new();
        for channel in &channels {
            places.push(hold.place(channel.client, channel.channel, instance)?);
        }
        worker.one(Op::Hold { own: own.clone() })?;
        let mut subject = Self {
            worker,
            channels,
            hold,
            places,
            own,
            way,
            method,
            lists: None,
            disabled: false,
            launched: 0,
        };
        if way != Way::Inside {
            let via = subject.via(way)?;
            let control = DriverControl(Subdevice::open(gpu(driver()?, instance)?)?);
            let batches = subject
                .channels
                .chunks(MAX_PAIRS)
                .zip(subject.places.chunks(MAX_PAIRS))
                .map(|(channels, places)| {
                    let mut batch = Batch::by(via.clone(), method);
                    for (channel, place) in channels.iter().zip(places) {
                        batch.push(channel.client, channel.channel, *place);
                    }
                    batch
                })
                .collect();
            subject.lists = Some(Lists { control, batches });
        }
        Ok(subject)
    }

    fn via(&self, way: Way) -> anyhow::Result<Via> {
        if way == Way::Foreign {
            return Ok(Via::Agent);
        }
        let file = self.owners_file()?;
        Ok(Via::Owner {
            file: channel::file(file),
            client: self.own.client,
            subdevice: self.own.subdevice,
        })
    }

    /// A copy of the worker's control file, shown to be the one its client was made on.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn owners_file(&self) -> anyhow::Result<ControlFile> {
        let pid = i32::try_from(self.worker.pid())?;
        let pidfd = tidegate_driver::sys::pidfd_open(pid).context("pidfd_open")?;
        let file = tidegate_driver::sys::pidfd_getfd(pidfd.as_fd(), self.own.fd)
            .context("pidfd_getfd of the owner's control file")?;
        let file = ControlFile::adopt(file)?;
        anyhow::ensure!(
            file.owns(self.own.client)?,
            "the owner's file does not own its client"
        );
        Ok(file)
    }

    /// What the worker's own calls need.
    #[must_use]
    pub const fn own(&self) -> &Own {
        &self.own
    }

    /// Clients and channels.
    #[must_use]
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        self.channels
            .iter()
            .map(|channel| (channel.client, channel.channel))
            .collect()
    }

    /// The GPU they are on.
    #[must_use]
    pub fn instance(&self) -> u32 {
        self.channels[0].device_instance.unwrap_or(0)
    }

    /// Marks all pairs: somebody else is about to disable them.
    pub fn mark(&mut self) {
        self.mark_by(self.method);
    }

    /// As [`Self::mark`], for who disables them by that method and enables them by what undoes it.
    pub fn mark_by(&mut self, method: Method) {
        for place in &self.places {
            self.hold.journal().mark(*place, method);
        }
        self.disabled = true;
    }

    /// Clears all pairs: they are enabled again, or gone.
    pub fn clear(&mut self) {
        for place in &self.places {
            self.hold.journal().clear(*place);
        }
        self.disabled = false;
    }

    /// Whether its channels are, or may be, disabled.
    #[must_use]
    pub const fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// How its channels are stopped.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Restarts the runlist of what computes, from inside; nanoseconds it took.
    ///
    /// # Errors
    /// RM's answer.
    pub fn restart(&mut self) -> anyhow::Result<u64> {
        let channel = graphics(&self.channels).1.context("no graphics channel")?;
        let what = (channel, RESTART_RUNLIST, "RESTART_RUNLIST");
        control(&mut self.worker, &self.own, what, &[1, 0])
    }

    /// Preempts the groups of what computes, from inside; nanoseconds it took.
    ///
    /// # Errors
    /// RM's answer.
    pub fn preempt(&mut self) -> anyhow::Result<u64> {
        let mut ns = 0;
        for tsg in graphics(&self.channels).0 {
            let own = self.own.clone();
            let op = Op::Preempt { own, tsg };
            let done = self.worker.call("control", vec![op])?;
            ns += done.first().map_or(0, |done| done.ns);
        }
        Ok(ns)
    }

    /// What has to follow a disable or an enable by its method, whoever made that; nanoseconds it took.
    ///
    /// # Errors
    /// RM's answer.
    pub fn follow(&mut self, disable: bool) -> anyhow::Result<u64> {
        match self.method {
            Method::Restart => self.restart(),
            Method::Preempt if disable => self.preempt(),
            Method::Disable | Method::Preempt | Method::PreemptFirst => Ok(0),
        }
    }

    /// Stops all channels by its method, or lets them run; nanoseconds the calls took.
    ///
    /// # Errors
    /// The driver's answer. The pairs stay marked after an error.
    pub fn set(&mut self, disable: bool) -> anyhow::Result<u64> {
        if disable {
            self.mark();
        }
        let mut ns = match &self.lists {
            Some(lists) => {
                let switch = if disable {
                    Switch::Disable
                } else {
                    Switch::Enable
                };
                let start = now_ns();
                for batch in &lists.batches {
                    lists.control.set(batch, switch)?;
                }
                now_ns() - start
            }
            None => {
                let own = self.own.clone();
                let op = if disable && self.method == Method::Preempt {
                    Op::Unlist { disable, own }
                } else {
                    Op::Channels { disable, own }
                };
                let done = self.worker.call("control", vec![op])?;
                done.first().map_or(0, |done| done.ns)
            }
        };
        ns += self.follow(disable)?;
        if !disable {
            self.clear();
        }
        Ok(ns)
    }

    /// One call with a list of the caller's making, by the way in use. What it disables, the caller marks.
    ///
    /// # Errors
    /// When the way has no such call; inside it, RM's answer.
    pub fn raw(&self, call: &mut DisableChannels) -> anyhow::Result<Result<(), RmError>> {
        let lists = self
            .lists
            .as_ref()
            .context("only a thread of the owner may")?;
        Ok(match self.way {
            Way::OwnersFile => {
                let file = self.owners_file()?;
                file.set_channels(self.own.client, self.own.subdevice, call)
            }
            _ => lists.control.0.set_channels(call),
        })
    }

    /// The way in use.
    #[must_use]
    pub const fn way(&self) -> Way {
        self.way
    }
}

impl Drop for Subject<'_> {
    fn drop(&mut self) {
        // What fails here is still marked: the guardian and the worker's own end see to it.
        if self.disabled {
            let _ = self.set(false);
        }
    }
}
