//! One GPU: engines, TSGs that take turns on them, channels that progress side by side.
//!
//! Each engine runs at most one TSG at a time. A TSG with work gets a turn of its timeslice, then
//! goes to the end of the engine's queue if another TSG has work; one without work gives its turn
//! up at once. Loading another TSG than the last costs the switch time, in which nothing runs.
//! While a TSG is on its engine all its channels progress, each through its own queue in order.
//!
//! A channel is *ready* when it is not off, alive, and the head of its queue can run. A disable
//! takes effect at one instant: until then the channel may run, from then on it is *off*: nothing of
//! it runs until it is enabled, and what it was running keeps its remaining work. What brings that
//! instant about is the firmware's ([`Eviction`]); with the usual one it is the disable itself.
//!
//! Calls that change something take effect at the instant last advanced to, except those with an
//! `at`, which is that instant or later. So: advance to `now`, change, advance to `now` again to
//! see what started. At one instant work that ends is finished first, then controls apply, then
//! work starts; so nothing starts on a channel at the instant it becomes disabled.

mod control;
mod controls;
mod event;
mod ids;
mod turns;

use std::collections::{BTreeMap, VecDeque};

use control::Control;
pub use event::{Event, EventKind, Work};
pub use ids::{ChannelId, TsgId};

use crate::eviction::{Eviction, Pending};
use crate::latency::{Latency, Rng};
use crate::slots::Slots;

/// The settings of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Timeslice of a new TSG.
    pub timeslice_ns: u64,
    /// What loading another TSG onto an engine costs.
    pub switch_ns: u64,
    /// How long a disable takes.
    pub disable: Latency,
    /// Whether disables count (two disables need two enables). Hardware is taken to have a flag.
    pub counting: bool,
    /// What takes a disabled channel off its engine.
    pub eviction: Eviction,
    /// Seed of the drawn latencies.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeslice_ns: 2_000_000,
            switch_ns: 50_000,
            disable: Latency::LogNormal {
                p50: 300_000,
                p99: 900_000,
            },
            counting: true,
            eviction: Eviction::default(),
            seed: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Run { remaining: u64 },
    Wait { signalled: bool },
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    tag: u64,
    item: Item,
    started: bool,
    /// The next entry belongs to the same kernel or transfer.
    more: bool,
}

#[derive(Clone, Debug)]
struct Channel {
    tsg: TsgId,
    engine: usize,
    /// Disables in force; 0 or 1 unless they count.
    disabled: u32,
    /// Nothing of it runs.
    off: bool,
    /// A disable in force that has not taken effect.
    pending: Option<Pending>,
    /// Something of it ran since it was last off.
    ran: bool,
    /// In the middle of a kernel or transfer, whether its head began or not.
    inside: bool,
    dead: bool,
    queue: VecDeque<Queued>,
    /// When the head ends, while it runs.
    ends: Option<u64>,
}

impl Channel {
    fn ready(&self) -> bool {
        !self.off
            && !self.dead
            && self.queue.front().is_some_and(|head| match head.item {
                Item::Run { .. } => true,
                Item::Wait { signalled } => signalled,
            })
    }

    /// Takes the head off the hardware, keeping what remains of it.
    fn pause(&mut self, now: u64) {
        if let Some(ends) = self.ends.take()
            && let Some(Queued {
                item: Item::Run { remaining },
                ..
            }) = self.queue.front_mut()
        {
            *remaining = if ends == u64::MAX {
                u64::MAX
            } else {
                ends.saturating_sub(now)
            };
        }
    }

    /// From now on nothing of it runs.
    fn goes_off(&mut self, now: u64) {
        self.pause(now);
        self.off = true;
        self.ran = false;
    }

    /// Notes that `head` finished; the ticket of a disable that takes effect by that.
    fn finished(&mut self, head: Queued, eviction: Eviction) -> Option<u64> {
        self.ends = None;
        self.inside = head.more;
        let pending = self
            .pending
            .filter(|_| !self.inside && eviction.at_kernel_end())?;
        self.pending = None;
        self.off = true;
        self.ran = false;
        Some(pending.ticket)
    }
}

#[derive(Clone, Debug)]
struct Tsg {
    engine: usize,
    timeslice: u64,
    scheduled: bool,
    channels: Vec<ChannelId>,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Idle,
    Switching {
        tsg: TsgId,
        until: u64,
    },
    Running {
        tsg: TsgId,
        slice_end: u64,
        contended: bool,
    },
}

#[derive(Clone, Debug)]
struct Engine {
    number: u32,
    queue: VecDeque<TsgId>,
    turn: Turn,
    last: Option<TsgId>,
    dirty: bool,
    next: u64,
}

/// The model of one GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    config: Config,
    rng: Rng,
    now: u64,
    engines: Vec<Engine>,
    tsgs: Slots<Tsg>,
    channels: Slots<Channel>,
    controls: BTreeMap<(u64, u64), Control>,
    control_seq: u64,
}

impl Gpu {
    /// A GPU without channels, at instant 0.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            rng: Rng::new(config.seed),
            now: 0,
            engines: Vec::new(),
            tsgs: Slots::new(),
            channels: Slots::new(),
            controls: BTreeMap::new(),
            control_seq: 0,
        }
    }

    /// The instant last advanced to.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The settings; a change counts from the next use (the seed only at [`Gpu::new`]).
    pub const fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Adds a TSG that runs on engine `engine` (the driver's engine type) once it is scheduled.
    pub fn add_tsg(&mut self, engine: u32) -> TsgId {
        let index = self
            .engines
            .iter()
            .position(|e| e.number == engine)
            .unwrap_or_else(|| {
                self.engines.push(Engine {
                    number: engine,
                    queue: VecDeque::new(),
                    turn: Turn::Idle,
                    last: None,
                    dirty: false,
                    next: u64::MAX,
                });
                self.engines.len() - 1
            });
        let tsg = TsgId(self.tsgs.insert(Tsg {
            engine: index,
            timeslice: self.config.timeslice_ns.max(1),
            scheduled: false,
            channels: Vec::new(),
        }));
        self.engines[index].queue.push_back(tsg);
        tsg
    }

    /// Adds a channel to `tsg`, enabled and empty. On a TSG that is gone the channel never runs.
    pub fn add_channel(&mut self, tsg: TsgId) -> ChannelId {
        let engine = self.tsgs.get(tsg.0).map_or(0, |t| t.engine);
        let channel = ChannelId(self.channels.insert(Channel {
            tsg,
            engine,
            disabled: 0,
            off: false,
            pending: None,
            ran: false,
            inside: false,
            dead: false,
            queue: VecDeque::new(),
            ends: None,
        }));
        if let Some(tsg) = self.tsgs.get_mut(tsg.0) {
            tsg.channels.push(channel);
        }
        channel
    }

    /// Removes a channel and its queue.
    pub fn remove_channel(&mut self, channel: ChannelId) {
        if let Some(gone) = self.channels.remove(channel.0) {
            if let Some(tsg) = self.tsgs.get_mut(gone.tsg.0) {
                tsg.channels.retain(|c| *c != channel);
            }
            self.touch(gone.engine);
        }
    }

    /// Removes a TSG with its channels.
    pub fn remove_tsg(&mut self, tsg: TsgId) {
        if let Some(gone) = self.tsgs.remove(tsg.0) {
            for channel in gone.channels {
                self.channels.remove(channel.0);
            }
            self.engines[gone.engine].queue.retain(|t| *t != tsg);
            self.touch(gone.engine);
        }
    }

    /// Lets a TSG take part in its engine's turns, or takes it out.
    pub fn set_scheduled(&mut self, tsg: TsgId, on: bool) {
        if let Some(t) = self.tsgs.get_mut(tsg.0) {
            t.scheduled = on;
            let engine = t.engine;
            self.touch(engine);
        }
    }

    /// Sets a TSG's timeslice, from its next turn.
    pub fn set_timeslice(&mut self, tsg: TsgId, ns: u64) {
        if let Some(t) = self.tsgs.get_mut(tsg.0) {
            t.timeslice = ns.max(1);
        }
    }

    /// How long a TSG keeps its engine beside others; 0: it is gone.
    #[must_use]
    pub fn timeslice(&self, tsg: TsgId) -> u64 {
        self.tsgs.get(tsg.0).map_or(0, |t| t.timeslice)
    }

    /// Appends work to a channel's queue.
    pub fn submit(&mut self, channel: ChannelId, work: Work) {
        if let Some(c) = self.channels.get_mut(channel.0)
            && !c.dead
        {
            let (tag, item) = match work {
                Work::Run { ns, tag } | Work::Part { ns, tag } => {
                    (tag, Item::Run { remaining: ns })
                }
                Work::Wait { tag } => (tag, Item::Wait { signalled: false }),
            };
            c.queue.push_back(Queued {
                tag,
                item,
                started: false,
                more: matches!(work, Work::Part { .. }),
            });
            if c.queue.len() == 1 {
                let engine = c.engine;
                self.touch(engine);
            }
        }
    }

    /// The tag of the wait that blocks a channel, if one is at the head of its queue.
    #[must_use]
    pub fn waiting(&self, channel: ChannelId) -> Option<u64> {
        match self.channels.get(channel.0)?.queue.front()? {
            Queued {
                tag,
                item: Item::Wait { signalled: false },
                ..
            } => Some(*tag),
            _ => None,
        }
    }

    /// Meets the wait at the head of a channel's queue. It finishes when the channel next runs.
    pub fn signal(&mut self, channel: ChannelId) {
        if let Some(c) = self.channels.get_mut(channel.0)
            && let Some(Queued {
                item: Item::Wait { signalled },
                ..
            }) = c.queue.front_mut()
        {
            *signalled = true;
            let engine = c.engine;
            self.touch(engine);
        }
    }

    /// Kills a channel: its queue is dropped without events and it never runs again.
    pub fn fail(&mut self, channel: ChannelId) {
        if let Some(c) = self.channels.get_mut(channel.0) {
            c.dead = true;
            c.queue.clear();
            c.ends = None;
            let engine = c.engine;
            self.touch(engine);
        }
    }

    /// Drops what a channel has queued but not begun.
    pub fn discard_queued(&mut self, channel: ChannelId) {
        if let Some(c) = self.channels.get_mut(channel.0) {
            c.queue.retain(|q| q.started);
            let engine = c.engine;
            self.touch(engine);
        }
    }

    /// Whether a channel is disabled, in effect or not.
    #[must_use]
    pub fn is_disabled(&self, channel: ChannelId) -> bool {
        self.channels.get(channel.0).is_some_and(|c| c.disabled > 0)
    }

    /// Whether nothing of a channel runs because it is disabled.
    #[must_use]
    pub fn is_off(&self, channel: ChannelId) -> bool {
        self.channels.get(channel.0).is_some_and(|c| c.off)
    }

    /// The number of the engine that a TSG runs on; 0: the TSG is gone.
    #[must_use]
    pub fn engine_of(&self, tsg: TsgId) -> u32 {
        let engine = self.tsgs.get(tsg.0).map(|t| t.engine);
        engine.map_or(0, |engine| self.engines[engine].number)
    }

    /// Whether any TSG has the turn on the engine of `tsg`.
    #[must_use]
    pub fn is_engine_busy(&self, tsg: TsgId) -> bool {
        let engine = self.tsgs.get(tsg.0).map(|t| t.engine);
        engine.is_some_and(|engine| matches!(self.engines[engine].turn, Turn::Running { .. }))
    }

    /// Whether a TSG has its engine's turn.
    #[must_use]
    pub fn has_turn(&self, tsg: TsgId) -> bool {
        let engine = self.tsgs.get(tsg.0).map(|t| t.engine);
        engine.is_some_and(|engine| {
            matches!(self.engines[engine].turn, Turn::Running { tsg: own, .. } if own == tsg)
        })
    }

    /// Entries in a channel's queue, the one that runs included.
    #[must_use]
    pub fn queued(&self, channel: ChannelId) -> usize {
        self.channels.get(channel.0).map_or(0, |c| c.queue.len())
    }

    /// Whether work of the channel is on the hardware at this instant.
    #[must_use]
    pub fn is_running(&self, channel: ChannelId) -> bool {
        self.channels
            .get(channel.0)
            .is_some_and(|c| c.ends.is_some())
    }

    /// The next instant at which something happens by itself, or the present one when calls since
    /// the last advance have something to start. `None` when nothing ever will.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        if self.engines.iter().any(|e| e.dirty) {
            return Some(self.now);
        }
        let control = self.controls.keys().next().map_or(u64::MAX, |(at, _)| *at);
        let next = self
            .engines
            .iter()
            .fold(control, |next, e| next.min(e.next));
        (next != u64::MAX).then_some(next)
    }

    /// Lets time pass up to and including `now`, appending what happened in its order. A `now` in
    /// the past is the present.
    pub fn advance(&mut self, now: u64, events: &mut Vec<Event>) {
        let now = now.max(self.now);
        while let Some(next) = self.next_event()
            && next <= now
        {
            self.now = next.max(self.now);
            self.finish_due(events);
            self.apply_controls(events);
            for index in 0..self.engines.len() {
                if self.engines[index].dirty || self.engines[index].next <= self.now {
                    self.settle(index, events);
                }
            }
        }
        self.now = now;
    }

    fn touch(&mut self, engine: usize) {
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.dirty = true;
        }
    }

    fn emit(&self, events: &mut Vec<Event>, kind: EventKind) {
        events.push(Event { at: self.now, kind });
    }
}
