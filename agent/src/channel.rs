//! How channels are disabled and enabled: the ladder of levels behind one trait.
//!
//! * **L1**: the agent's own RM client lists pairs of other clients.
//! * **L2**: the agent calls through the owner's control file, with the owner's client and subdevice.
//! * **L3**: the job's own library makes the call; the control thread tells it to.
//! * **L5**: no channel is touched, launches wait in the library.
//!
//! L1 and L2 differ only in whose client and file carry the call, so both are a [`Batch`] with a
//! [`Via`]. Batches are built when a job's channels change, never on the way of an edge.

use crate::journal::Place;
use crate::rm::{ControlFile, RmError, Subdevice};
use std::sync::Arc;
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS};

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

    /// Whether there still is an RM client of this number, whoever owns it.
    fn exists(&self, client: u32) -> bool;
}

/// The driver.
#[derive(Debug)]
pub struct DriverControl(pub Subdevice);

impl ChannelControl for DriverControl {
    fn set(&self, batch: &Batch, disable: bool) -> Result<(), RmError> {
        // RM writes the struct back, so the prepared one stays as it is.
        let mut call = batch.call;
        call.disable = u8::from(disable);
        match &batch.via {
            Via::Agent => self.0.set_channels(&mut call),
            Via::Owner {
                file,
                client,
                subdevice,
            } => file.set_channels(*client, *subdevice, &mut call),
        }
    }

    fn exists(&self, client: u32) -> bool {
        self.0.sees(client)
    }
}
