//! Channels as they go to the driver: batches of pairs, whose client and file carry the call, and what follows it.
//!
//! * **L1**: the agent's own RM client lists channels of other clients.
//! * **L2**: the agent makes the call through the owner's control file, with the owner's client and subdevice.
//! * **L3**: the job's own library makes the call, on the shell's order.
//! * **L5**: no channel is touched; launches wait in the library.
//!
//! L1 and L2 differ only in the client and the file of the call, so both are a [`Batch`] with a [`Via`]. Batches are
//! built when a job's channels change, never on the path of an edge.
//!
//! What a disable does to running work depends on the firmware. Beside the level there is therefore a [`Method`], which
//! the self-test chooses. It is data as well: a batch says whether its call only disables scheduling, which groups are
//! preempted before it, and which [`Kick`]s follow it.

mod plan;

use crate::file::File;
use crate::journal::Place;
use crate::kinds::{Level, Method, Switch};
pub use plan::{Member, Plan};
use std::collections::VecDeque;
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS};

/// Through whom a batch goes to the driver.
#[derive(Clone, Debug)]
pub enum Via {
    /// The agent's own client (L1).
    Agent,
    /// The owner's file, client and subdevice (L2).
    Owner {
        /// The owner's control file.
        file: File,
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
    pub fn of(level: Level, file: Option<&File>, client: u32, subdevice: u32) -> Self {
        match file {
            Some(file) if level == Level::L2 => Self::Owner {
                file: file.clone(),
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
    pub file: File,
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

/// One of the calls that carry out a batch.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// Preempts this group. Nothing depends on the answer: the call that disables comes next.
    Lead(&'a Object),
    /// Disables or enables the pairs.
    Set,
    /// Makes the firmware carry that out.
    Kick(&'a Kick),
}

/// At most [`MAX_PAIRS`] pairs of one process, or of several of a job, ready to go.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose channels; of several processes the one that came last.
    pub session: u64,
    /// Whose channel each pair is.
    sessions: Vec<u64>,
    /// Through whom.
    pub via: Via,
    /// The call; whether it disables is filled in when it is made.
    pub call: DisableChannels,
    /// Where the journal has each pair.
    pub places: Vec<Place>,
    /// How it stops what runs.
    pub method: Method,
    /// Groups that are preempted before the call disables. They save time and stop nothing, so no rest of a call and no
    /// call that is made again has any.
    pub leads: Vec<Object>,
    /// What follows the call, in order.
    pub kicks: Vec<Kick>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new(via: Via) -> Self {
        Self {
            session: 0,
            sessions: Vec::with_capacity(MAX_PAIRS),
            via,
            call: DisableChannels::default(),
            places: Vec::with_capacity(MAX_PAIRS),
            method: Method::default(),
            leads: Vec::new(),
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
        self.sessions.push(self.session);
        self.call.num_channels = u32::try_from(self.places.len()).unwrap_or(0);
        true
    }

    /// Adds a pair of `session`, which may be another process than that of the last pair; false when the batch is full.
    pub(crate) fn push_of(
        &mut self,
        session: u64,
        (client, channel): (u32, u32),
        place: Place,
    ) -> bool {
        if self.places.len() < MAX_PAIRS {
            self.session = session;
        }
        self.push(client, channel, place)
    }

    /// The same without the pairs at places that `leaves` names.
    #[must_use]
    pub fn without(&self, leaves: impl Fn(Place) -> bool) -> Self {
        let mut rest = Self {
            session: self.session,
            kicks: self.kicks.clone(),
            ..Self::by(self.via.clone(), self.method)
        };
        let named = self.entries().zip(&self.sessions);
        for ((client, channel, place), &session) in named.filter(|(entry, _)| !leaves(entry.2)) {
            rest.push_of(session, (client, channel), place);
        }
        rest
    }

    /// Whether it names channels of several processes.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.sessions.iter().any(|&other| other != self.session)
    }

    /// A batch for each process, in the order in which they come, each with what follows it: one that is refused keeps
    /// nothing from following the others. What is about nobody of them follows the last.
    #[must_use]
    pub fn apart(&self) -> VecDeque<Self> {
        let mut apart: VecDeque<Self> = VecDeque::new();
        for ((client, channel, place), &session) in self.entries().zip(&self.sessions) {
            let at = apart.iter().position(|own| own.session == session);
            let at = at.unwrap_or_else(|| {
                apart.push_back(Self::by(self.via.clone(), self.method));
                apart.len() - 1
            });
            apart[at].push_of(session, (client, channel), place);
        }
        for kick in &self.kicks {
            let about = match kick {
                Kick::RestartGraphics { .. } => {
                    let each = apart.iter_mut();
                    each.for_each(|own| own.kicks.push(kick.clone()));
                    continue;
                }
                Kick::Restart(by) | Kick::Preempt(by) => by.client,
            };
            let names = |own: &Self| own.entries().any(|(client, ..)| client == about);
            let at = apart.iter().position(names);
            let last = apart.len().saturating_sub(1);
            if let Some(own) = apart.get_mut(at.unwrap_or(last)) {
                own.kicks.push(kick.clone());
            }
        }
        apart
    }

    /// The driver's calls that carry it out, in order.
    pub fn calls(&self, switch: Switch) -> impl Iterator<Item = Call<'_>> {
        let disables = switch.disables();
        let leads = self.leads.iter().filter(move |_| disables);
        let kicks = self.kicks.iter();
        let follows = kicks.filter(move |kick| disables || kick.follows_enable());
        let before = leads.map(Call::Lead).chain([Call::Set]);
        before.chain(follows.map(Call::Kick))
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
