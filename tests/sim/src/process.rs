//! One preloaded process: its page, and what the interposer core makes of it.

use crate::dice::US;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use tidegate_abi::page::{ACTIVITY_BUSY, DeviceWords, GATE_HELD, GATE_OPEN, GATE_STATE, Page};
use tidegate_core::activity::{Begin, Counts, Published, Quiet, begin, busy_edge, enter_if_busy};
use tidegate_core::gate::{Admission, Capture, Role, admission};
use tidegate_core::landing::{Landing, Pulse};
use tidegate_core::word::Fences;
use tidegate_device::{ChannelId, TsgId};

/// One thread steps the whole node, so every fence is as strong as can be.
#[derive(Debug)]
struct Ordered;

impl Fences for Ordered {
    fn light() {}
    fn heavy(&self) {}
}

/// One device as a process uses it. Its activity stands in the process' page.
#[derive(Debug)]
pub(crate) struct Device {
    pub gpu: usize,
    pub channels: Vec<(TsgId, ChannelId)>,
    counts: Counts<AtomicU64>,
    open: AtomicU64,
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
            counts: Counts::default(),
            open: AtomicU64::new(GATE_OPEN),
            quiet: None,
            last_busy: 0,
            entered_at_idle: 0,
            graph_now: 0,
            synced: (0, 0),
            outstanding: 0,
        }
    }

    /// A new page starts busy; the prober brings it to idle.
    fn new_page(&mut self, words: &DeviceWords, now: u64) {
        words.activity.store(ACTIVITY_BUSY, SeqCst);
        words.busy_since_ns.store(now, Relaxed);
        self.quiet = None;
        self.entered_at_idle = self.counts.entered.load(Relaxed);
    }

    /// A launch begins. Says whether it rang.
    pub fn launch(&mut self, words: &DeviceWords, graph: u64, now: u64) -> bool {
        if graph != 0 {
            self.graph_now = graph;
        }
        self.outstanding += 1;
        if enter_if_busy::<_, Ordered>(&self.counts, &words.activity, &self.open) {
            return false;
        }
        self.counts.raise_entered();
        let rang = busy_edge(&words.activity).is_some();
        if rang {
            words.busy_since_ns.store(now, Relaxed);
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

    /// First half of a probe. Says whether the second half is due.
    pub fn probe(&mut self, words: &DeviceWords, now: u64) -> bool {
        let counts = &self.counts;
        match begin(&Ordered, &words.activity, || core::iter::once(counts)) {
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
    pub fn publish(&mut self, words: &DeviceWords, now: u64) -> bool {
        let Some(quiet) = self.quiet.take() else {
            return false;
        };
        let sums = quiet.sums;
        let synced = if self.synced.0 == sums.entered {
            self.synced.1
        } else {
            0
        };
        words
            .idle_since_ns
            .store(synced.max(self.last_busy), Relaxed);
        words
            .launches
            .store(sums.entered - self.entered_at_idle, Relaxed);
        words.graph.store(self.graph_now, Relaxed);
        let counts = &self.counts;
        match quiet.publish(&Ordered, &words.activity, || core::iter::once(counts)) {
            Published::Idle { .. } => {
                self.graph_now = 0;
                self.entered_at_idle = sums.entered;
                true
            }
            Published::TakenBack => {
                self.last_busy = now;
                false
            }
        }
    }
}

/// Whether a device counts as busy.
pub(crate) fn busy(words: &DeviceWords) -> bool {
    words.activity.load(SeqCst) & ACTIVITY_BUSY != 0
}

/// A process, and what its play keeps of it.
#[derive(Debug)]
pub(crate) struct Process<O> {
    pub alive: bool,
    /// Its job; None: it is online.
    pub job: Option<u32>,
    pub landing: Landing,
    /// The agent's heartbeat, as the process sees it.
    pub heartbeat: Pulse,
    /// How far its clock is ahead of the agent's, ns. All that it writes is of its own.
    pub ahead: u64,
    pub devices: Vec<Device>,
    pub gpus: u8,
    /// The page of the last agent it attached to.
    pub page: Arc<Page>,
    /// Its number with that agent.
    pub session: u64,
    /// Cleared when it closes that stream.
    pub listens: Arc<AtomicBool>,
    /// Epoch of the agent whose stream stands.
    pub attached: Option<u64>,
    pub attached_once: bool,
    /// Devices whose channels that agent was told of.
    pub reported: BTreeSet<usize>,
    /// Generation of the last agent it obeyed.
    pub obeyed: u64,
    /// The prober is to look.
    pub probing: bool,
    pub own: O,
}

impl<O> Process<O> {
    /// A process of a job on these GPUs (bit mask), or without one an online process.
    pub fn new(job: Option<u32>, gpus: u8, own: O) -> Self {
        Self {
            alive: true,
            job,
            landing: Landing::Obeying,
            heartbeat: Pulse::default(),
            ahead: 0,
            devices: of_mask(gpus).map(Device::new).collect(),
            gpus,
            page: Arc::default(),
            session: 0,
            listens: Arc::default(),
            attached: None,
            attached_once: false,
            reported: BTreeSet::new(),
            obeyed: 0,
            probing: false,
            own,
        }
    }

    /// Attaches to another agent, by a page of its own.
    pub fn new_page(&mut self, session: u64, now: u64) {
        let page = Arc::new(Page::default());
        let now = self.clock(now);
        for (device, words) in self.devices.iter_mut().zip(&page.devices) {
            device.new_page(words, now);
        }
        page.process.prober_ns.store(now, Relaxed);
        (self.page, self.session) = (page, session);
        self.heartbeat = Pulse::default();
        self.listens = Arc::new(AtomicBool::new(true));
    }

    /// Raises the doorbell.
    pub fn ring(&self) {
        self.page.process.doorbell.fetch_add(1, AcqRel);
    }

    /// When the agent gave its last sign of life, by the process' own clock.
    pub fn heard(&mut self, now: u64) -> u64 {
        let (word, now) = (self.page.agent.heartbeat_ns.load(Acquire), self.clock(now));
        self.heartbeat.look(word, now)
    }

    /// What its clock says.
    pub fn clock(&self, now: u64) -> u64 {
        now + self.ahead
    }

    /// Says that it enabled its own channels, without the agent it obeyed.
    pub fn released(&self) {
        let released = &self.page.process.released;
        released.store(self.obeyed, Release);
    }

    /// Whether its launches on device `at` pass the gate, as the agent has set it.
    pub fn is_open(&self, at: usize) -> bool {
        let gate = self.page.gates[at].gate.load(Acquire);
        admission(Role::Offline, gate, Capture::None) == Admission::Pass
    }

    /// Whether the agent it obeys holds its launches for a reclaim.
    pub fn is_held(&self) -> bool {
        let gates = self.page.gates.iter().take(self.devices.len());
        let mut states = gates.map(|gate| gate.gate.load(Acquire) & GATE_STATE);
        self.landing == Landing::Obeying && states.any(|state| state == GATE_HELD)
    }

    /// Whether launches of an offline process pass.
    pub fn passes(&self) -> bool {
        let obeys = self.attached_once && self.landing == Landing::Obeying;
        let offline = !self.is_online();
        offline && obeys && (0..self.devices.len()).all(|at| self.is_open(at))
    }

    pub fn is_reported(&self) -> bool {
        self.reported.len() >= self.devices.len()
    }

    pub fn is_online(&self) -> bool {
        self.job.is_none()
    }
}

/// Indexes of a bit mask.
pub(crate) fn of_mask(mask: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |gpu| mask >> gpu & 1 == 1)
}

/// Longest time between a probe that saw a device busy and the idle edge.
pub(crate) const PROBE_MAX: u64 = 510 * US;
