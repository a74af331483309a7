//! One preloaded process: its page words and what the interposer core makes of them.

use super::script::{Request, US};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use tidegate_abi::page::{ACTIVITY_BUSY, GATE_CLOSED, GATE_OPEN};
use tidegate_core::activity::{Begin, Counts, Published, Quiet, begin, busy_edge, enter_if_busy};
use tidegate_core::gate::{Admission, Capture, Role, admission};
use tidegate_core::landing::Landing;
use tidegate_core::word::Fences;
use tidegate_device::{ChannelId, TsgId};
use tidegate_policy::event::Reading;
use tidegate_policy::ids::{GraphId, Launches};
use tidegate_policy::time::Instant;

/// One thread steps the whole node, so every fence is as strong as can be.
#[derive(Debug)]
struct Ordered;

impl Fences for Ordered {
    fn light() {}
    fn heavy(&self) {}
}

/// One device as a process uses it.
#[derive(Debug)]
pub(super) struct Device {
    pub gpu: usize,
    pub channels: Vec<(TsgId, ChannelId)>,
    activity: AtomicU64,
    counts: Counts<AtomicU64>,
    open: AtomicU64,
    busy_since: u64,
    idle_since: u64,
    launches: u64,
    graph: u64,
    /// The prober's and the sync hook's own.
    quiet: Option<Quiet>,
    last_busy: u64,
    entered_at_idle: u64,
    graph_now: u64,
    synced: (u64, u64),
    /// Launches that are not done yet.
    pub outstanding: u64,
}

impl Device {
    pub fn new(gpu: usize) -> Self {
        Self {
            gpu,
            channels: Vec::new(),
            activity: AtomicU64::new(0),
            counts: Counts::default(),
            open: AtomicU64::new(GATE_OPEN),
            busy_since: 0,
            idle_since: 0,
            launches: 0,
            graph: 0,
            quiet: None,
            last_busy: 0,
            entered_at_idle: 0,
            graph_now: 0,
            synced: (0, 0),
            outstanding: 0,
        }
    }

    /// A new page starts busy; the prober brings it to idle.
    pub fn new_page(&mut self, now: u64) {
        self.activity = AtomicU64::new(ACTIVITY_BUSY);
        self.quiet = None;
        (self.busy_since, self.idle_since, self.launches, self.graph) = (now, 0, 0, 0);
        self.entered_at_idle = self.counts.entered.load(Relaxed);
    }

    /// A launch begins. Says whether it rang.
    pub fn launch(&mut self, graph: u64, now: u64) -> bool {
        if graph != 0 {
            self.graph_now = graph;
        }
        self.outstanding += 1;
        if enter_if_busy::<_, Ordered>(&self.counts, &self.activity, &self.open) {
            return false;
        }
        self.counts.raise_entered();
        let rang = busy_edge(&self.activity).is_some();
        if rang {
            self.busy_since = now;
        }
        rang
    }

    /// The driver call of a launch came back.
    pub fn returned(&self) {
        self.counts.raise_returned();
    }

    /// A sync call proved that everything is done.
    pub fn synced(&mut self, now: u64) {
        self.synced = (self.counts.entered.load(Relaxed), now);
    }

    pub fn busy(&self) -> bool {
        self.activity.load(SeqCst) & ACTIVITY_BUSY != 0
    }

    /// First half of a probe. Says whether the second half is due.
    pub fn probe(&mut self, now: u64) -> bool {
        let Self {
            activity, counts, ..
        } = self;
        match begin(&Ordered, activity, || core::iter::once(&*counts)) {
            Begin::Idle => false,
            Begin::Quiet(quiet) if self.outstanding == 0 => {
                self.quiet = Some(quiet);
                true
            }
            _ => {
                self.last_busy = now;
                false
            }
        }
    }

    /// Second half. Says whether an idle edge is to be rung.
    pub fn publish(&mut self, now: u64) -> bool {
        let Some(quiet) = self.quiet.take() else {
            return false;
        };
        let sums = quiet.sums;
        let synced = if self.synced.0 == sums.entered {
            self.synced.1
        } else {
            0
        };
        let words = (
            synced.max(self.last_busy),
            sums.entered - self.entered_at_idle,
        );
        let Self {
            activity, counts, ..
        } = &*self;
        match quiet.publish(&Ordered, activity, || core::iter::once(counts)) {
            Published::Idle { .. } => {
                (self.idle_since, self.launches) = words;
                self.graph = core::mem::take(&mut self.graph_now);
                self.entered_at_idle = sums.entered;
                true
            }
            Published::TakenBack => {
                self.last_busy = now;
                false
            }
        }
    }

    /// The page's words as the agent reads them.
    pub fn reading(&self) -> Reading {
        let word = self.activity.load(SeqCst);
        Reading {
            generation: word >> 1,
            busy: word & ACTIVITY_BUSY != 0,
            busy_since: Instant::from_nanos(self.busy_since),
            idle_since: Instant::from_nanos(self.idle_since),
            launches: Launches(self.launches),
            graph: GraphId(self.graph),
        }
    }
}

/// What an online process is doing.
#[derive(Debug)]
pub(super) struct Serving {
    pub requests: VecDeque<Request>,
    pub request: Option<Request>,
    /// Iterations of the request that are done; the first is the prefill.
    pub done: u64,
    pub launches_left: u64,
    pub syncing: bool,
    pub probing: bool,
    /// Length of the idle time that the next launch ends, if that is a decode gap.
    pub gap: Option<u64>,
}

/// What an offline process is doing.
#[derive(Debug)]
pub(super) struct Harvesting {
    pub job: u32,
    pub landing: Landing,
    pub gate_closed: bool,
    /// GPUs that it may launch nothing for, where launches are all that can be held.
    pub held: BTreeSet<usize>,
    pub heartbeat: u64,
}

impl Harvesting {
    /// Whether a launch passes the gate.
    pub fn passes(&self, attached_once: bool) -> bool {
        let held = self.gate_closed || !self.held.is_empty();
        let closed = held || !attached_once || self.landing != Landing::Obeying;
        let state = if closed { GATE_CLOSED } else { GATE_OPEN };
        admission(Role::Offline, 4 | state, Capture::None) == Admission::Pass
    }
}

#[derive(Debug)]
pub(super) enum Kind {
    Online(Serving),
    Offline(Harvesting),
}

#[derive(Debug)]
pub(super) struct Process {
    pub alive: bool,
    pub kind: Kind,
    pub devices: Vec<Device>,
    pub gpus: u8,
    /// Epoch of the agent whose stream stands.
    pub attached: Option<u64>,
    pub attached_once: bool,
    /// Devices whose channels that agent was told of.
    pub reported: BTreeSet<usize>,
    /// Generation of the last agent it obeyed.
    pub obeyed: u64,
}

impl Process {
    pub fn new(kind: Kind, gpus: u8) -> Self {
        Self {
            alive: true,
            kind,
            devices: super::judge::of_mask(gpus).map(Device::new).collect(),
            gpus,
            attached: None,
            attached_once: false,
            reported: BTreeSet::new(),
            obeyed: 0,
        }
    }

    pub fn online(gpus: u8, requests: VecDeque<Request>) -> Self {
        let serving = Serving {
            requests,
            request: None,
            done: 0,
            launches_left: 0,
            syncing: false,
            probing: false,
            gap: None,
        };
        Self::new(Kind::Online(serving), gpus)
    }

    pub fn offline(job: u32, gpus: u8) -> Self {
        let harvesting = Harvesting {
            job,
            landing: Landing::Obeying,
            gate_closed: true,
            held: BTreeSet::new(),
            heartbeat: 0,
        };
        Self::new(Kind::Offline(harvesting), gpus)
    }

    pub fn is_reported(&self) -> bool {
        self.reported.len() >= self.devices.len()
    }

    pub fn is_online(&self) -> bool {
        matches!(self.kind, Kind::Online(_))
    }

    pub fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.kind {
            Kind::Online(serving) => Some(serving),
            Kind::Offline(_) => None,
        }
    }

    pub fn harvesting(&mut self) -> Option<&mut Harvesting> {
        match &mut self.kind {
            Kind::Offline(harvesting) => Some(harvesting),
            Kind::Online(_) => None,
        }
    }

    pub fn job(&self) -> Option<u32> {
        match &self.kind {
            Kind::Offline(harvesting) => Some(harvesting.job),
            Kind::Online(_) => None,
        }
    }
}

/// Longest time between a probe that saw a device busy and the idle edge.
pub(super) const PROBE_MAX: u64 = 510 * US;
