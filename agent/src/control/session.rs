//! What the control thread keeps of one attached process.

use crate::config::Role;
use crate::identity::Credentials;
use crate::inbox::{Activity, Channel, Newcomer, Outbox, Process, Tell};
use crate::issue::Files;
use crate::journal::Place;
use crate::rm::ControlFile;
use crate::sys::SharedPage;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_abi::page::{DEVICES, DeviceWords};
use tidegate_policy::event::Reading;
use tidegate_policy::ids::{Bytes, GpuId, GraphId, JobId, Launches, ReclaimId};
use tidegate_policy::time::Instant;
use tidegate_proto::v1::MemoryResult;

/// Channels one session may have managed.
pub const CHANNELS: usize = 1_024;
/// Scheduling calls of one session that may wait.
pub const TICKETS: usize = 1_024;

/// One attached process, by its connection.
#[derive(Debug)]
pub struct Session {
    /// The agent's number.
    pub id: u64,
    /// Which process.
    pub process: Process,
    /// What the kernel says of it.
    pub peer: Credentials,
    /// What it is.
    pub role: Role,
    /// Why.
    pub rule: String,
    /// Offline only.
    pub job: Option<JobId>,
    /// Version of its library.
    pub version: String,
    /// Version of the driver as it saw it.
    pub driver: String,
    /// Plain counts, else atomic adds.
    pub membarrier: bool,
    /// None: edges travel on the stream.
    pub page: Option<Arc<SharedPage>>,
    /// None: the connection is lost, the process lives on.
    pub outbox: Option<Outbox>,
    /// Its devices, by the place in its page.
    pub slots: [Slot; DEVICES],
    /// How often it rings.
    pub rings: Rate,
    /// Its control file.
    pub file: File,
    /// A copy of its UVM file, held until its channels are enabled.
    pub uvm: Option<OwnedFd>,
    /// Its RM clients.
    pub clients: HashMap<u32, Client>,
    /// Its channels.
    pub channels: Vec<Held>,
    /// Scheduling calls that wait.
    pub tickets: Vec<Ticket>,
    /// The prober's last round as passed on.
    pub progress_ns: u64,
    /// Soft landing as last seen.
    pub released: u64,
    /// It was under an agent before.
    pub was_gated: bool,
    /// It takes orders about memory.
    pub takes_memory: bool,
    /// What the last reclaim that asked it found in the way.
    pub hindrance: Option<(ReclaimId, Hindrance)>,
    /// Some of its channels cannot be controlled, so its launches wait while its job is disabled.
    pub launch_gated: bool,
    /// Policy says it makes no progress.
    pub lapsed: bool,
    /// Why it is not managed, or what is odd.
    pub note: String,
}

/// Why memory is not taken from a process just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// Nothing is in the way.
    None,
    /// It has not answered.
    Silent,
    /// One of its threads is inside this call, which may hold the driver's locks.
    Inside(String),
    /// Not all of it can be stopped, or it does not listen.
    Unstoppable,
    /// It said no.
    Refused(MemoryResult),
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nothing is in the way"),
            Self::Silent => f.write_str("it has not answered in time"),
            Self::Inside(call) => write!(f, "one of its threads is inside {call}"),
            Self::Unstoppable => f.write_str("not all of its channels can be disabled"),
            Self::Refused(MemoryResult::Cancelled) => f.write_str("the order came too late"),
            Self::Refused(result) => write!(f, "it answered {}", result.as_str_name()),
        }
    }
}

/// One device of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Which GPU, once the process said so.
    pub gpu: Option<GpuId>,
    /// Activity as last passed on.
    pub seen: Activity,
    /// Why it is busy without launching (`BusyReason`), as last passed on.
    pub suspect: u32,
    /// Without a page: the launch gate as last told, closed or not.
    pub gate: Option<bool>,
    /// Launches it had made before this session.
    pub launched_before: u64,
    /// Memory made for a KV cache that is not registered, as last told.
    pub unregistered: Bytes,
    /// What the process is shown as its share of the GPU, as last told.
    pub share: Option<Bytes>,
}

/// The control file a process sent.
#[derive(Debug)]
pub enum File {
    /// It sent none.
    None,
    /// The prover looks at it; the one before stays, if it cannot be had.
    Looking(Option<Arc<ControlFile>>),
    /// It is the driver's.
    Control(Arc<ControlFile>),
}

/// Whether a client is the session's own.
#[derive(Debug)]
pub enum Client {
    /// Waits for the file, or for the prover.
    Asked,
    /// Yes; None: by its word.
    Own(Option<Arc<ControlFile>>),
    /// No, or it cannot be told.
    Foreign,
}

/// One channel of a process.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// As reported.
    pub channel: Channel,
    /// Where it is.
    pub gpu: Option<GpuId>,
    /// Its place in the journal while it is managed.
    pub place: Option<Place>,
}

/// A scheduling call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Names it.
    pub ticket: u64,
    /// Its client.
    pub client: u32,
    /// TSG or channel.
    pub object: u32,
}

/// Rings in the current window of 100 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    window: u64,
    rings: u32,
}

impl Rate {
    /// Counts one; whether there were more than `per_second` allows.
    pub const fn exceeds(&mut self, now_ns: u64, per_second: u32) -> bool {
        let window = now_ns / 100_000_000;
        if window != self.window {
            self.window = window;
            self.rings = 0;
        }
        self.rings += 1;
        self.rings > per_second / 10
    }
}

impl Session {
    /// The session of a newcomer, and the file it sent.
    #[must_use]
    pub fn new(newcomer: Newcomer) -> (Self, Option<OwnedFd>) {
        let file = newcomer.control_file;
        let session = Self {
            id: newcomer.session,
            process: newcomer.peer.process(),
            role: newcomer.role,
            rule: newcomer.rule,
            job: None,
            version: newcomer.version,
            driver: newcomer.driver,
            membarrier: newcomer.membarrier,
            page: newcomer.page.map(Arc::new),
            outbox: Some(newcomer.outbox),
            slots: [Slot::default(); DEVICES],
            rings: Rate::default(),
            file: if file.is_some() {
                File::Looking(None)
            } else {
                File::None
            },
            uvm: None,
            clients: HashMap::new(),
            channels: Vec::new(),
            tickets: Vec::new(),
            progress_ns: 0,
            released: 0,
            was_gated: newcomer.last_agent_generation != 0,
            takes_memory: newcomer.takes_memory,
            hindrance: None,
            launch_gated: false,
            lapsed: false,
            note: String::new(),
            peer: newcomer.peer,
        };
        (session, file)
    }

    /// Launches in this session, as its page says; 0 for a process without one.
    #[must_use]
    pub fn launches(&self) -> u64 {
        let Some(page) = &self.page else { return 0 };
        let devices = self.slots.iter().zip(&page.devices);
        devices
            .filter(|(slot, _)| slot.gpu.is_some())
            .map(|(slot, words)| {
                let total = words.total.load(std::sync::atomic::Ordering::Relaxed);
                total.saturating_sub(slot.launched_before)
            })
            .fold(0, u64::saturating_add)
    }

    /// Whether its activity closes gates.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.role == Role::Online
    }

    /// Tells the process something; false when it does not listen, and is cut off.
    pub fn tell(&mut self, tell: Tell) -> bool {
        let sent = self
            .outbox
            .as_ref()
            .is_some_and(|outbox| outbox.try_send(tell).is_ok());
        if !sent {
            self.outbox = None;
        }
        sent
    }

    /// Tells a process without a page the launch gates that have changed.
    pub fn tell_gates(&mut self, closed: impl Fn(GpuId) -> bool) {
        for at in 0..self.slots.len() {
            let Some(gpu) = self.slots[at].gpu else {
                continue;
            };
            let wanted = Some(closed(gpu));
            if self.slots[at].gate != wanted {
                let tell = Tell::Gate {
                    slot: u32::try_from(at).unwrap_or(u32::MAX),
                    closed: wanted == Some(true),
                };
                if self.tell(tell) {
                    self.slots[at].gate = wanted;
                }
            }
        }
    }

    /// The driver's files of it, for who has to hold them longer.
    pub fn take_files(&mut self) -> Files {
        let mut control: Vec<Arc<ControlFile>> = Vec::new();
        for held in self.channels.iter().filter(|held| held.place.is_some()) {
            if let Some(Client::Own(Some(file))) = self.clients.get(&held.channel.client)
                && !control.iter().any(|known| Arc::ptr_eq(known, file))
            {
                control.push(Arc::clone(file));
            }
        }
        Files {
            control,
            uvm: self.uvm.take(),
        }
    }

    /// GPUs it uses, by its devices and its channels.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> {
        let devices = self.slots.iter().filter_map(|slot| slot.gpu);
        devices.chain(self.channels.iter().filter_map(|held| held.gpu))
    }

    /// What it has on `gpu` that orders reach: managed channels, or else its launches.
    #[must_use]
    pub fn gated_on(&self, gpu: GpuId) -> usize {
        let on = |held: &&Held| held.gpu == Some(gpu) && held.place.is_some();
        let launches = self.launch_gated && self.gpus().any(|own| own == gpu);
        self.channels
            .iter()
            .filter(on)
            .count()
            .max(usize::from(launches))
    }

    /// Whether every client it has was proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        !self.clients.is_empty()
            && self
                .clients
                .values()
                .all(|client| matches!(client, Client::Own(Some(_))))
    }
}

/// The words of one device, as they stand. The writer may be between two of them: the generation in
/// the first tells one edge from another, and the rest is only ever used as measures.
#[must_use]
pub fn read(words: &DeviceWords) -> Activity {
    Activity {
        word: words.activity.load(Ordering::Acquire),
        busy_since_ns: words.busy_since_ns.load(Ordering::Relaxed),
        idle_since_ns: words.idle_since_ns.load(Ordering::Relaxed),
        launches: words.launches.load(Ordering::Relaxed),
        graph: words.graph.load(Ordering::Relaxed),
    }
}

/// As policy takes it.
#[must_use]
pub const fn reading(activity: Activity) -> Reading {
    Reading {
        generation: activity.word >> 1,
        busy: activity.word & tidegate_abi::page::ACTIVITY_BUSY != 0,
        busy_since: Instant::from_nanos(activity.busy_since_ns),
        idle_since: Instant::from_nanos(activity.idle_since_ns),
        launches: Launches(activity.launches),
        graph: GraphId(activity.graph),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probing_library_never_rings_too_often_and_a_tight_loop_soon_does() {
        let mut rate = Rate::default();
        for edge in 0..10_000_u64 {
            assert!(!rate.exceeds(edge * 100_000, 50_000));
        }
        let mut rate = Rate::default();
        assert!((0..10_000).any(|_| rate.exceeds(5, 50_000)));
    }
}
