//! The state of one attached process.

use crate::beats::{BeatRef, Follower};
use crate::clock::ProcessClock;
use crate::file::{File, Files};
use crate::journal::Place;
use crate::kinds::{Level, Process, Role};
use crate::message::memory::Blocker;
use crate::message::{Asked, Channel, Library, Newcomer, Offer, Peer, Tell, Ticket};
use crate::page::{Activity, LeaseState, LeaseWords, PageRef};
use crate::ports::Outbox;
use crate::request::Settings;
use crate::task::Before;
use crate::work::{Totals, Work};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use tidegate_abi::page::{ACTIVITY_BUSY, DEVICES};
use tidegate_policy::fair::Gives;
use tidegate_policy::ids::{Bytes, GpuId, GpuSet, JobId, ReclaimId};

/// How many channels of one session may be managed.
pub const CHANNELS: usize = 1_024;
/// How many scheduling calls of one session may wait.
pub const TICKETS: usize = 1_024;

/// One attached process: one connection.
#[derive(Debug)]
pub struct Session {
    /// The agent's number for the session.
    pub id: u64,
    /// What the kernel says about the process.
    pub peer: Peer,
    /// Its role.
    pub role: Role,
    /// Why it has that role.
    pub origin: Origin,
    /// Its job; offline only.
    pub job: Option<JobId>,
    /// The preloaded library in it.
    pub library: Library,
    /// Its transport.
    pub link: Link,
    /// Its devices, by their index in its page.
    pub slots: [Slot; DEVICES],
    /// Its files, clients and claims at the driver.
    pub rm: Rm,
    /// Its channels.
    pub channels: Vec<Held>,
    /// Its scheduling calls.
    pub calls: Calls,
    /// What prevented the last reclaim that asked it.
    pub blocker: Option<(ReclaimId, Blocker)>,
    /// Its state with the agent.
    pub state: State,
    /// What it reports of its work.
    pub work: Work,
    /// Its state with leases.
    pub lease: Leasing,
}

/// Where the role of a process comes from.
#[derive(Debug)]
pub struct Origin {
    /// The rule that decided, as text.
    pub rule: String,
    /// The role that the process asked for.
    pub asked: Asked,
    /// The weight and class that it gives its job.
    pub gives: Gives,
}

/// A process' files, clients and claims at the driver.
#[derive(Debug)]
pub struct Rm {
    /// Its files of the driver.
    pub files: OwnFiles,
    /// Its RM clients.
    pub clients: HashMap<u32, Client>,
    /// Claims of clients for which the prover has no answer yet.
    pub claims: usize,
}

/// Scheduling calls of a process.
#[derive(Debug, Default)]
pub struct Calls {
    /// The timeslices that its channel groups had before the agent set them, by client and handle.
    pub slices: HashMap<(u32, u32), Before>,
    /// Its own scheduling calls that wait.
    pub tickets: Vec<Ticket>,
}

/// The state of a process with leases.
#[derive(Debug, Default)]
pub struct Leasing {
    /// Offline: distinguishes its units from those of other jobs.
    pub salt: u64,
    /// Offline: what its trainer offered last, as policy knows it, and on which GPU.
    pub offered: Offer,
    /// See `offered`.
    pub offered_on: GpuSet,
    /// Offline, without a page: its last report.
    pub streamed: Offer,
    /// Offline: its trainer offers units, so the shell listens to its doorbell.
    pub trains: bool,
    /// Offline: the last lease words of its devices, by their index in the page.
    pub told: [Option<LeaseWords>; DEVICES],
    /// Offline: what it did under a lease, as policy knows it, by the index in its page.
    pub done: [u64; DEVICES],
    /// Offline: when it had its last lease, ns.
    pub lent_ns: u64,
    /// Online: when the agent asked it for iterations, and whether it has been silent since.
    pub silence: Silence,
    /// Online: it sent a page for iterations. It may do so once.
    pub claimed: bool,
    /// Online: the page on which it reports iterations.
    pub beats: Option<BeatRef>,
    /// Online: what is known of its iterations, by the index in its page.
    pub followers: BTreeMap<usize, Follower>,
}

/// Whether an online process reports its iterations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// When the agent asked for them, ns.
    pub asked_ns: Option<u64>,
    /// Since when it has worked without reporting any, ns, and its launches at that time.
    pub since: Option<(u64, u64)>,
    /// An event has reported that.
    pub told: bool,
}

/// The transport of a process, and its last reports.
#[derive(Debug)]
pub struct Link {
    /// The clock of the times that it sends.
    pub clock: ProcessClock,
    /// Its page; None: edges travel on the stream.
    pub page: Option<PageRef>,
    /// Its stream; None: the connection is lost, but the process lives.
    pub outbox: Option<Box<dyn Outbox>>,
    /// Counts its rings.
    pub rings: Rate,
    /// Counts its wakes without a ring.
    pub vain: Vain,
    /// The word of the prober's last round, as last read. A changed word is progress.
    pub prober: u64,
    /// Requests in flight, as its engine last reported.
    pub flight: Flight,
    /// The generation after which it enabled its own channels, as last read.
    pub released: u64,
}

/// An engine's reports of requests. Overlapping requests form one flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// Whether some are in flight; None: the engine has not reported any.
    pub on: Option<bool>,
    /// Number of flights so far, which names the last one.
    pub number: u64,
}

/// The state of a process with the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Why it is not managed, or what is special about it.
    pub note: String,
    /// It was under an earlier agent.
    pub was_gated: bool,
    /// Some of its channels cannot be controlled, so its launches wait while its job is disabled.
    pub launch_gated: bool,
    /// Policy found that it makes no progress.
    pub lapsed: bool,
    /// The agent asked it to check whether it has work.
    pub asked: bool,
    /// Since when its launches have waited at the gate, ns.
    pub waits: Option<u64>,
    /// Policy assumes that it has no work.
    pub rests: bool,
    /// Policy assumes that it does not count beside other jobs.
    pub uncounted: bool,
}

/// A process' files of the driver.
#[derive(Debug)]
pub struct OwnFiles {
    /// Its control file.
    pub control: Control,
    /// A copy of its UVM file, held until its channels are enabled.
    pub uvm: Option<File>,
}

/// One device of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The GPU; None: the process has not reported it yet.
    pub gpu: Option<GpuId>,
    /// Its activity, as policy knows it.
    pub seen: Activity,
    /// Why it is busy without launching (`BusyReason`), as policy knows it.
    pub suspect: u32,
    /// Without a page: the last launch gate that was sent, closed or not.
    pub gate: Option<bool>,
    /// Launches of an online process at the last look, and when they had grown, ns.
    pub launched: (u64, u64),
    /// Launches that it had made before this session.
    pub launched_before: u64,
    /// Memory of a KV cache that is not registered, as last reported.
    pub unregistered: Bytes,
    /// All memory that the process holds there, as last reported.
    pub held: Bytes,
    /// The share of the GPU that an offline process sees, and how much others give up for the process there, as last sent.
    pub share: Option<(Option<Bytes>, Bytes)>,
}

/// The control file of a process.
#[derive(Debug)]
pub enum Control {
    /// The process sent none.
    None,
    /// The prover checks it. If the file cannot be used, the previous one stays.
    Looking(Option<File>),
    /// It is the driver's file.
    Known(File),
}

/// Whether a client is the session's own.
#[derive(Debug)]
pub enum Client {
    /// Waiting for the file, or for the prover.
    Asked,
    /// Yes, proven; None: by the process' own report.
    Own(Option<File>),
    /// No, or nobody can know.
    Foreign,
}

/// One channel of a process.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The channel, as reported.
    pub channel: Channel,
    /// Its GPU.
    pub gpu: Option<GpuId>,
    /// Its place in the journal while it is managed.
    pub place: Option<Place>,
}

/// Number of rings in the current window of 100 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    window: u64,
    rings: u32,
}

impl Rate {
    /// Counts one ring; whether there were more than `per_second` allows.
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

/// Wakes that came without a ring, as they were last counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vain {
    since_ns: u64,
    seen: u32,
}

impl Vain {
    /// There are `wakes` by now; whether they were more than `per_second` allows, over 100 ms or longer.
    pub fn exceeds(&mut self, wakes: u32, now_ns: u64, per_second: u32) -> bool {
        let passed = now_ns.saturating_sub(self.since_ns);
        if passed < 100_000_000 {
            return false;
        }
        let more = u64::from(wakes.wrapping_sub(self.seen));
        (self.since_ns, self.seen) = (now_ns, wakes);
        u128::from(more) * 1_000_000_000 > u128::from(per_second) * u128::from(passed)
    }
}

/// A hash of a name that is the same in every run of the agent: FNV-1a.
fn salt(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Session {
    /// The session of a newcomer.
    #[must_use]
    pub fn new(newcomer: Newcomer) -> Self {
        let control = if newcomer.control_file.is_some() {
            Control::Looking(None)
        } else {
            Control::None
        };
        Self {
            id: newcomer.session,
            peer: newcomer.peer,
            role: newcomer.role,
            origin: Origin {
                rule: newcomer.rule,
                asked: newcomer.asked,
                gives: newcomer.gives,
            },
            job: None,
            library: newcomer.library,
            link: Link {
                clock: newcomer.clock,
                page: newcomer.page,
                outbox: Some(newcomer.outbox),
                rings: Rate::default(),
                vain: Vain::default(),
                prober: 0,
                flight: Flight::default(),
                released: 0,
            },
            slots: [Slot::default(); DEVICES],
            rm: Rm {
                files: OwnFiles { control, uvm: None },
                clients: HashMap::new(),
                claims: 0,
            },
            channels: Vec::new(),
            calls: Calls::default(),
            blocker: None,
            state: State {
                was_gated: newcomer.last_agent_generation != 0,
                ..State::default()
            },
            work: Work::default(),
            lease: Leasing {
                salt: salt(&newcomer.job),
                ..Leasing::default()
            },
        }
    }

    /// Which process it is.
    #[must_use]
    pub const fn process(&self) -> Process {
        self.peer.process
    }

    /// Launches in this session, as its page says; 0 for a process without one.
    #[must_use]
    pub fn launches(&self) -> u64 {
        let Some(page) = &self.link.page else {
            return 0;
        };
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.gpu.is_some())
            .map(|(at, slot)| page.launches(at).saturating_sub(slot.launched_before))
            .fold(0, u64::saturating_add)
    }

    /// Its part of its job's reported work, in this session.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let page = self.link.page.as_ref();
        self.work
            .totals(page.map_or(0, |page| page.process.units.load(Ordering::Relaxed)))
    }

    /// Whether its activity closes gates.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.role == Role::Online
    }

    /// Updates its heartbeat, with a time of its own clock, because libraries up to 0.1.0 compare it with that.
    pub fn beat(&self, now: u64) {
        if let Some(page) = &self.link.page {
            let at = self.link.clock.there(now);
            page.agent.heartbeat_ns.store(at, Ordering::Release);
        }
    }

    /// Sends the process a message; false if it does not listen and is cut off.
    pub fn tell(&mut self, tell: Tell) -> bool {
        let outbox = self.link.outbox.as_ref();
        let sent = outbox.is_some_and(|outbox| outbox.tell(tell));
        if !sent {
            self.link.outbox = None;
        }
        sent
    }

    /// Sends a process without a page the launch gates that have changed.
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

    /// Sends it the lease of a device.
    pub fn tell_lease(&mut self, slot: usize, lease: LeaseWords) {
        let Some(told) = self.lease.told.get_mut(slot) else {
            return;
        };
        if told.replace(lease) == Some(lease) {
            return;
        }
        if let Some(page) = &self.link.page {
            return page.set_lease(slot, &lease);
        }
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        self.tell(Tell::Lease { slot, lease });
    }

    /// Sends it that a device has no lease. `free`: it needs none.
    pub fn tell_no_lease(&mut self, slot: usize, free: bool) {
        let told = self.lease.told.get(slot).copied().flatten();
        let state = if free {
            LeaseState::None
        } else {
            LeaseState::Withdrawn
        };
        let number = told.map_or(0, |told| told.number);
        self.tell_lease(
            slot,
            LeaseWords {
                number,
                state,
                until_ns: 0,
                units: 0,
            },
        );
    }

    /// Its files of the driver, for those that must hold them longer.
    pub fn take_files(&mut self) -> Files {
        let mut control: Vec<File> = Vec::new();
        for held in self.channels.iter().filter(|held| held.place.is_some()) {
            if let Some(Client::Own(Some(file))) = self.rm.clients.get(&held.channel.client)
                && !control.iter().any(|known| known.is(file))
            {
                control.push(file.clone());
            }
        }
        Files {
            control,
            uvm: self.rm.files.uvm.take(),
        }
    }

    /// GPUs it uses, by its devices and its channels.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> {
        let devices = self.slots.iter().filter_map(|slot| slot.gpu);
        devices.chain(self.channels.iter().filter_map(|held| held.gpu))
    }

    /// Whether it counts among the processes of other jobs: it has shown that a channel is its own, or where no channel
    /// is touched that a file is the driver's. Else every process without a GPU would have a part of each.
    pub(crate) fn counts(&self, settings: &Settings) -> bool {
        if settings.believe_unproven {
            return true;
        }
        if settings.level == Level::L5 || settings.mps {
            return matches!(self.rm.files.control, Control::Known(_));
        }
        let proven = |held: &Held| {
            let client = self.rm.clients.get(&held.channel.client);
            matches!(client, Some(Client::Own(_)))
        };
        self.channels.iter().any(proven)
    }

    /// The GPU on which it has been busy without a launch for longest, and since when, ns.
    pub fn busy_for_nothing(&self) -> Option<(GpuId, u64)> {
        let busy = self
            .slots
            .iter()
            .filter(|slot| slot.seen.word & ACTIVITY_BUSY != 0);
        let since = busy.filter_map(|slot| {
            let since = slot.seen.busy_since_ns.max(slot.launched.1);
            Some((slot.gpu?, since))
        });
        since.min_by_key(|(_, since)| *since)
    }

    /// What it has on `gpu` that orders reach: managed channels, or else its launches.
    #[must_use]
    pub fn gated_on(&self, gpu: GpuId) -> usize {
        let on = |held: &&Held| held.gpu == Some(gpu) && held.place.is_some();
        let launches = self.state.launch_gated && self.gpus().any(|own| own == gpu);
        self.channels
            .iter()
            .filter(on)
            .count()
            .max(usize::from(launches))
    }

    /// Timeslices of groups that are gone are not restored.
    pub fn forget_slices(&mut self) {
        let channels = &self.channels;
        let of = |held: &Held| (held.channel.client, held.channel.tsg);
        self.calls
            .slices
            .retain(|group, _| channels.iter().any(|held| of(held) == *group));
    }

    /// Its managed channels: their GPUs and their places in the journal.
    pub fn managed(&self) -> impl Iterator<Item = (Option<GpuId>, Place)> {
        let held = self.channels.iter();
        held.filter_map(|held| Some((held.gpu, held.place?)))
    }

    /// Whether every client it has was proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        !self.rm.clients.is_empty()
            && self
                .rm
                .clients
                .values()
                .all(|client| matches!(client, Client::Own(Some(_))))
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

    #[test]
    fn wakes_without_a_ring_are_measured_over_the_time_in_which_they_came() {
        let mut vain = Vain::default();
        let (beat, mut wakes) = (50_000_000, 0_u32);
        for nth in 1..100 {
            wakes = wakes.wrapping_add(2_000);
            assert!(!vain.exceeds(wakes, nth * beat, 50_000), "beat {nth}");
        }
        // A thread that came late has as many to count, over as long.
        wakes = wakes.wrapping_add(200_000);
        assert!(!vain.exceeds(wakes, 199 * beat, 50_000));
        wakes = wakes.wrapping_add(6_000);
        assert!(vain.exceeds(wakes, 201 * beat, 50_000));
        assert!(!vain.exceeds(wakes, 203 * beat, 50_000));
    }
}
