//! How channels are disabled and enabled: the ladder of levels behind one trait.
//!
//! * **L1**: the agent's own RM client lists pairs of other clients.
//! * **L2**: the agent calls through the owner's control file, with the owner's client and subdevice.
//! * **L3**: the job's own library makes the call; the control thread tells it to.
//! * **L5**: no channel is touched, launches wait in the library.
//!
//! L1 and L2 differ only in whose client and file carry the call, so both are a [`Batch`] with a
//! [`Via`]. Batches are built when a job's channels change, never on the way of an edge.
//!
//! What a disable does to work that runs is the firmware's affair, so beside the level there is a
//! method ([`crate::config::Method`]), found by the self-test. It too is data: a batch says whether its
//! call disables scheduling only, and which [`Kick`]s follow it.

mod plan;

use crate::config::{Level, Method};
use crate::journal::Place;
use crate::rm::{ControlFile, Gpu, RmError, Subdevice, ThrowAway};
pub use plan::{Member, Plan};
use std::sync::Arc;
use tidegate_abi::rm::{Branch, DisableChannels, MAX_PAIRS, Status};

/// Through whom a batch goes to the driver.
#[derive(Clone, Debug)]
pub enum Via {
    /// The agent's own client (L1).
    Agent,
    /// The owner's file, client and subdevice (L2).
    Owner {
        /// The owner's control file.
        file: Arc<ControlFile>,
        /// The owner's client.
        client: u32,
        /// A subdevice of that client on the GPU.
        subdevice: u32,
    },
}

impl Via {
    /// How pairs of `client` go to the driver at a level: through the owner's file where the level says so and
    /// there is one.
    #[must_use]
    pub fn of(level: Level, file: Option<&Arc<ControlFile>>, client: u32, subdevice: u32) -> Self {
        match file {
            Some(file) if level == Level::L2 => Self::Owner {
                file: Arc::clone(file),
                client,
                subdevice,
            },
            _ => Self::Agent,
        }
    }
}

/// A channel or group of a process, and the file on which its client was made.
#[derive(Clone, Debug)]
pub struct Object {
    /// The owner's control file.
    pub file: Arc<ControlFile>,
    /// The owner's client.
    pub client: u32,
    /// The channel or group.
    pub handle: u32,
}

/// What makes the firmware carry out what a batch said.
#[derive(Clone, Debug)]
pub enum Kick {
    /// Restart the runlist of graphics and compute, by the agent's own channel on it; where there is
    /// none, by this one.
    RestartGraphics {
        /// A channel of an owner on that runlist.
        otherwise: Option<Object>,
    },
    /// Restart the runlist that this channel is on.
    Restart(Object),
    /// Preempt this group, after a disable.
    Preempt(Object),
}

impl Kick {
    /// Whether it also follows an enable.
    #[must_use]
    pub const fn follows_enable(&self) -> bool {
        match self {
            Self::RestartGraphics { .. } | Self::Restart(_) => true,
            Self::Preempt(_) => false,
        }
    }
}

/// At most [`MAX_PAIRS`] pairs of one process, ready to go.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose channels.
    pub session: u64,
    /// Through whom.
    pub via: Via,
    /// The call; whether it disables is filled in when it is made.
    pub call: DisableChannels,
    /// Where the journal has each pair.
    pub places: Vec<Place>,
    /// How it stops what runs.
    pub method: Method,
    /// What follows the call, in order.
    pub kicks: Vec<Kick>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new(via: Via) -> Self {
        Self {
            session: 0,
            via,
            call: DisableChannels::default(),
            places: Vec::with_capacity(MAX_PAIRS),
            method: Method::default(),
            kicks: Vec::new(),
        }
    }

    /// An empty batch that stops what runs by `method`.
    #[must_use]
    pub fn by(via: Via, method: Method) -> Self {
        Self {
            method,
            ..Self::new(via)
        }
    }

    /// Adds a pair; false when the batch is full.
    pub fn push(&mut self, client: u32, channel: u32, place: Place) -> bool {
        let at = self.places.len();
        if at == MAX_PAIRS {
            return false;
        }
        self.call.h_client_list[at] = client;
        self.call.h_channel_list[at] = channel;
        self.places.push(place);
        self.call.num_channels = u32::try_from(self.places.len()).unwrap_or(0);
        true
    }

    /// Pairs in it.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.places.len()
    }

    /// Its (client, channel, place), in order.
    pub fn entries(&self) -> impl Iterator<Item = (u32, u32, Place)> {
        let handles = self
            .call
            .h_client_list
            .iter()
            .zip(&self.call.h_channel_list);
        handles
            .zip(&self.places)
            .map(|((&client, &channel), &place)| (client, channel, place))
    }
}

/// Disables and enables the channels of one GPU. Called by that GPU's issue thread only.
pub trait ChannelControl: Send + Sync + std::fmt::Debug {
    /// Carries out one batch and returns when the driver has.
    ///
    /// # Errors
    /// The driver's answer. After a failed disable the state of the batch is unknown.
    fn set(&self, batch: &Batch, disable: bool) -> Result<(), RmError>;

    /// Carries out what follows a batch.
    ///
    /// # Errors
    /// The driver's answer.
    fn kick(&self, kick: &Kick) -> Result<(), RmError>;

    /// A batch and all that follows it.
    ///
    /// # Errors
    /// The first answer that is one. After a failed disable the state of the batch is unknown.
    fn carry_out(&self, batch: &Batch, disable: bool) -> Result<(), RmError> {
        self.set(batch, disable)?;
        let kicks = batch.kicks.iter();
        kicks
            .filter(|kick| disable || kick.follows_enable())
            .try_for_each(|kick| self.kick(kick))
    }

    /// Whether there still is an RM client of this number, whoever owns it.
    fn exists(&self, client: u32) -> bool;
}

/// Whether a refusal to enable one pair means that there is nothing left to enable. No other refusal does: a channel that
/// is taken for gone is never enabled again.
///
/// `exists`: whether the driver still has the pair's client, with which its channels go. `takes_others`: whether it takes
/// pairs of living clients that are not the caller's. One that takes none refuses a channel that is still there in the
/// words in which it refuses one that is gone.
pub fn is_gone(
    error: &RmError,
    exists: impl FnOnce() -> bool,
    takes_others: impl FnOnce() -> bool,
) -> bool {
    let Some(status) = error.status() else {
        return false;
    };
    let of_the_channel = matches!(
        status,
        Status::INVALID_CHANNEL | Status::INVALID_OBJECT_HANDLE | Status::OBJECT_NOT_FOUND
    );
    !exists() || of_the_channel && takes_others()
}

/// The driver.
#[derive(Debug)]
pub struct DriverControl(pub Subdevice);

impl ChannelControl for DriverControl {
    fn set(&self, batch: &Batch, disable: bool) -> Result<(), RmError> {
        // RM writes the struct back, so the prepared one stays as it is.
        let mut call = batch.call;
        call.disable = u8::from(disable);
        call.only_disable_scheduling = u8::from(disable && batch.method == Method::Preempt);
        match &batch.via {
            Via::Agent => self.0.set_channels(&mut call),
            Via::Owner {
                file,
                client,
                subdevice,
            } => file.set_channels(*client, *subdevice, &mut call),
        }
    }

    fn kick(&self, kick: &Kick) -> Result<(), RmError> {
        match kick {
            Kick::RestartGraphics { otherwise: None } => Err(RmError::Refused {
                what: "RESTART_RUNLIST without a channel on it",
                status: Status::INVALID_CHANNEL,
            }),
            Kick::RestartGraphics {
                otherwise: Some(by),
            }
            | Kick::Restart(by) => by.file.restart_runlist(by.client, by.handle),
            Kick::Preempt(group) => group.file.preempt(group.client, group.handle),
        }
    }

    fn exists(&self, client: u32) -> bool {
        self.0.sees(client)
    }
}

/// The driver, with a channel of the agent's own on the graphics runlist.
#[derive(Debug)]
pub struct Restarter {
    control: DriverControl,
    own: Option<ThrowAway>,
}

impl Restarter {
    /// Opens the GPU; `method` says whether a channel is needed. Without one (the driver gives none)
    /// the owners' channels have to do, and a restart without either is an error of its own.
    ///
    /// # Errors
    /// When the driver gives no subdevice.
    pub fn open(gpu: &Gpu, branch: Option<Branch>, method: Method) -> Result<Self, RmError> {
        let own = branch
            .filter(|_| method == Method::Restart)
            .and_then(|branch| {
                let own = ThrowAway::scheduled(gpu, branch);
                own.inspect_err(|error| {
                    tracing::warn!(%error, "no channel of the agent's own to restart runlists by");
                })
                .ok()
            });
        Ok(Self {
            control: DriverControl(Subdevice::open(gpu)?),
            own,
        })
    }
}

impl Restarter {
    /// Whether it has a channel of its own.
    #[must_use]
    pub const fn has_channel(&self) -> bool {
        self.own.is_some()
    }
}

impl ChannelControl for Restarter {
    fn set(&self, batch: &Batch, disable: bool) -> Result<(), RmError> {
        self.control.set(batch, disable)
    }

    fn kick(&self, kick: &Kick) -> Result<(), RmError> {
        match (kick, &self.own) {
            (Kick::RestartGraphics { .. }, Some(own)) => own.restart_runlist(),
            _ => self.control.kick(kick),
        }
    }

    fn exists(&self, client: u32) -> bool {
        self.control.exists(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_driver_that_knows_nothing_of_a_pair_says_that_it_is_gone() {
        let refused = |status| RmError::Refused {
            what: "FIFO_DISABLE_CHANNELS",
            status,
        };
        let gone =
            |status, exists, takes_others| is_gone(&refused(status), || exists, || takes_others);
        for status in [
            Status::INVALID_CLIENT,
            Status::INVALID_CHANNEL,
            Status::INVALID_OBJECT_HANDLE,
            Status::OBJECT_NOT_FOUND,
        ] {
            assert!(gone(status, false, false), "{status:?}: no such client");
            assert!(!gone(status, true, false), "{status:?}: it takes no pair");
            let of_the_channel = status != Status::INVALID_CLIENT;
            assert_eq!(gone(status, true, true), of_the_channel, "{status:?}");
        }
        for status in [
            Status::TIMEOUT,
            Status::INSUFFICIENT_PERMISSIONS,
            Status::INVALID_STATE,
            Status::NOT_SUPPORTED,
        ] {
            assert!(!gone(status, true, true), "{status:?}");
            assert!(gone(status, false, true), "{status:?}: its client is");
        }
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        let what = "FIFO_DISABLE_CHANNELS";
        assert!(!is_gone(
            &RmError::Ioctl { what, source },
            || false,
            || true
        ));
    }
}
