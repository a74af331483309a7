//! The checker: what must hold, judged from the script and the device's own history.
//!
//! - *ran beside*: nothing offline is on an engine of a GPU while online work is there, beyond the latency that was
//!   drawn for the disables under way, and 100 us.
//! - *woke*: no order enables a channel before online has been idle on that GPU for twice the longest decode gap of the
//!   schedule (at least 2 ms, at most 200 ms, and 200 ms before 32 gaps). If every process there reports its requests:
//!   while none of those is in flight.
//! - *preempted*: no channel is disabled twice within one request. Scripts are drawn so that gaps are stationary.
//! - *without a live agent*: no channel stays disabled for more than a second without one.
//! - *left disabled*: when all is quiet again, nothing is disabled. If jobs take turns, nothing is disabled for longer
//!   than the turns of all others, and no GPU that a job could have is unused.
//! - *two jobs*: if jobs take turns, and none run at once by timeslices, no order of the agent enables a channel while
//!   a channel of another job is enabled on that GPU.
//!
//! The first three are promises of the agent, so they hold only while it is in *control*: it runs, and every process
//! that was attached before has attached to it. It can know only the gaps of requests that began and ended under its
//! control.

use super::script::Word;
use crate::dice::{MS, US};
use crate::process::of_mask;
use crate::timeline::{Timeline, Who};
use crate::world::Fact;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_device::{ChannelId, TsgId};
use tidegate_policy::config::FairMode;

/// What the agent and its issue threads may take on top of the device's drawn latency.
const ALLOWANCE: u64 = 100 * US;
/// Calls of one edge that are in that.
const CALLS: u64 = 3;
/// Longest that an issue thread is drawn to take before each one more: jobs that run at once have up to six processes to
/// disable, one call after the other.
const CALL: u64 = 12 * US;
const STUCK: u64 = 1_000 * MS;
const LONGEST_COOLDOWN: u64 = 200 * MS;
const SHORTEST_COOLDOWN: u64 = 2 * MS;
const WARM_UP: u64 = 32;
/// Equal iterations in a row before a pattern is known for a decode step.
const REPEATS: usize = 8;
/// How long after the agent heard of channels an enable that it decided on before may still be made, ns.
const NEWCOMERS: u64 = 5 * MS;
/// How long after a process said that a request came an enable that was decided on before may still be made, ns.
const HEARD: u64 = 200 * US;
/// How long a swap may take, ns.
const SWAP: u64 = 20 * MS;
/// Longest that a job waits for its turn when all is quiet, ns: a gang of weight 1 beside single jobs of weight 4, each
/// with turns of 20 ms.
const LONGEST_WAIT: u64 = 800 * MS;
/// Of each kind; enough to see what is wrong.
const KEPT: usize = 5;

/// Sums and maxima.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Online work arriving on a GPU that had none.
    pub edges: u64,
    /// Orders that gave a job its GPUs back.
    pub wakes: u64,
    /// Orders that stopped a running job.
    pub preemptions: u64,
    /// Times a GPU's thread disabled for an edge without being told.
    pub fired: u64,
    /// Orders that gave a job the GPU of another, where jobs take turns; they count for neither of these.
    pub swaps: u64,
    /// Longest time a channel stayed disabled with no live agent.
    pub worst_stuck_ns: u64,
    /// Time an engine worked for offline.
    pub offline_ns: u64,
    /// Virtual time, times GPUs.
    pub total_ns: u64,
}

impl Figures {
    /// Takes another schedule's figures in.
    pub fn add(&mut self, other: &Self) {
        self.edges += other.edges;
        self.wakes += other.wakes;
        self.preemptions += other.preemptions;
        self.fired += other.fired;
        self.swaps += other.swaps;
        self.worst_stuck_ns = self.worst_stuck_ns.max(other.worst_stuck_ns);
        self.offline_ns += other.offline_ns;
        self.total_ns += other.total_ns;
    }
}

#[derive(Debug, Default)]
struct Gpu {
    /// Online work that arrived and did not end, by process.
    work: BTreeMap<usize, u64>,
    busy_since: u64,
    idle_since: u64,
    /// Offline TSGs on their engine, and since when.
    running: BTreeMap<TsgId, u64>,
    /// Disables: begin and drawn latency.
    calls: Vec<(u64, u64)>,
    /// Decode gaps that the agent can have counted, and the longest that it must know.
    gaps: u64,
    longest: u64,
    /// The job that was enabled last, if online has not been busy since.
    had: Option<u32>,
}

impl Gpu {
    fn busy(&self) -> bool {
        !self.work.is_empty()
    }
}

#[derive(Debug, Default)]
struct Channel {
    job: u32,
    disabled_since: Option<u64>,
    /// It came up beside others that the agent knew already.
    late: bool,
    /// Since when the agent knows it.
    known: Option<u64>,
    /// When it was last to be enabled.
    called: u64,
    /// A disable was made since.
    asked_off: bool,
}

/// A request under way.
#[derive(Debug)]
struct Open {
    gpus: u8,
    /// Since when the agent can know of it from its engine.
    told: Option<u64>,
    /// The last gap, known to the agent once the iteration after it has ended.
    last: Option<u64>,
    disables: BTreeMap<(usize, ChannelId), u32>,
    run: Vec<u64>,
    spoiled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Whether jobs may wait for each other.
    turns: bool,
    /// Whether they always do: with timeslices some run at once.
    alone: bool,
    /// A disable that was answered takes effect when the kernel that runs has ended.
    at_kernel_end: bool,
    gpus: Vec<Gpu>,
    channels: BTreeMap<(usize, ChannelId), Channel>,
    requests: BTreeMap<usize, Open>,
    /// Online processes of which not every request is announced: their GPUs, and since when the agent knows them.
    silent: BTreeMap<usize, (u8, u64)>,
    /// How much earlier than the end of work a process may say it was idle.
    slack: u64,
    controlled: bool,
    controlled_since: u64,
    agent_up: bool,
    agent_changed: u64,
    last_wake: u64,
    last_preemption: u64,
    violations: Vec<String>,
    figures: Figures,
    /// Where violations are marked besides, if the schedule is told.
    pub timeline: Option<Timeline>,
}

impl Judge {
    pub fn new(gpus: u8, slack: u64, mode: FairMode, at_kernel_end: bool) -> Self {
        let gpus = (0..gpus).map(|_| Gpu::default()).collect();
        Self {
            turns: mode != FairMode::Together,
            alone: mode == FairMode::Turns,
            at_kernel_end,
            gpus,
            slack,
            ..Self::default()
        }
    }

    /// Learns what is so.
    pub fn learns(&mut self, now: u64, fact: Fact<'_>) {
        match fact {
            Fact::Agent { up, new } => self.agent(now, up, new),
            Fact::ChannelUp {
                gpu,
                channel,
                job,
                late,
            } => self.channel_up((gpu, channel), job, late),
            Fact::ChannelDown(gpu, channel) => self.channel_down(gpu, channel),
            Fact::OnlineGone(pid) => self.online_gone(pid, now),
            Fact::Run(gpu, tsg, at) => self.run(gpu, tsg, at),
            Fact::Stop(gpu, tsg, at) => self.stop(gpu, tsg, at),
            Fact::Disabled(gpu, channel, at) => self.disabled(gpu, channel, at),
            Fact::Enabled(gpu, channel, at) => self.enabled(gpu, channel, at),
            Fact::DisableCall {
                gpu,
                list,
                order,
                drawn,
            } => self.disable_call(gpu, list, order, now, drawn),
            Fact::EnableCall { gpu, list, order } => self.enable_call(gpu, list, order, now),
        }
    }

    fn violated(&mut self, now: u64, what: &str) {
        if let Some(timeline) = &self.timeline {
            timeline.put(now, Who::Judge, what);
        }
        let kind = what.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let alike = self.violations.iter().filter(|one| one.contains(&kind));
        if alike.count() < KEPT {
            let (ms, ns) = (now / MS, now % MS);
            self.violations.push(format!("at {ms}.{ns:06} ms: {what}"));
        }
    }

    pub fn control(&mut self, now: u64, controlled: bool) {
        if self.controlled == controlled {
            return;
        }
        self.controlled = controlled;
        self.controlled_since = now;
        for open in self.requests.values_mut() {
            open.spoiled = true;
        }
    }

    /// The agent started, died, was stopped or goes on. A new one has everything to learn.
    fn agent(&mut self, now: u64, up: bool, new: bool) {
        if up && !self.agent_up {
            let mut stuck = 0;
            for channel in self.channels.values() {
                if let Some(since) = channel.disabled_since {
                    stuck = stuck.max(now - since.max(self.agent_changed));
                }
            }
            self.stuck(now, stuck);
        }
        self.agent_up = up;
        self.agent_changed = now;
        if new {
            for gpu in &mut self.gpus {
                (gpu.gaps, gpu.longest) = (0, 0);
            }
        }
    }

    fn stuck(&mut self, now: u64, ns: u64) {
        self.figures.worst_stuck_ns = self.figures.worst_stuck_ns.max(ns);
        if ns > STUCK {
            self.violated(
                now,
                &format!("disabled for {} ms without a live agent", ns / MS),
            );
        }
    }

    pub const fn fired(&mut self) {
        self.figures.fired += 1;
    }

    pub fn submitted(&mut self, pid: usize, gpu: usize, now: u64) {
        let book = &mut self.gpus[gpu];
        if !book.busy() {
            book.busy_since = now;
            book.had = None;
            self.figures.edges += 1;
        }
        *book.work.entry(pid).or_insert(0) += 1;
    }

    pub fn finished(&mut self, pid: usize, gpu: usize, at: u64) {
        if let Some(left) = self.gpus[gpu].work.get_mut(&pid) {
            *left -= 1;
            if *left == 0 {
                self.online_left(pid, gpu, at);
            }
        }
    }

    fn online_left(&mut self, pid: usize, gpu: usize, at: u64) {
        if !self.gpus[gpu].running.is_empty() {
            self.check_beside(gpu, at);
        }
        let book = &mut self.gpus[gpu];
        if book.work.remove(&pid).is_some() && !book.busy() {
            book.idle_since = at;
        }
    }

    fn online_gone(&mut self, pid: usize, now: u64) {
        for gpu in 0..self.gpus.len() {
            self.online_left(pid, gpu, now);
        }
        self.requests.remove(&pid);
        self.silent.remove(&pid);
    }

    /// A process works on what it did not announce, or may.
    pub fn silent(&mut self, pid: usize, gpus: u8, now: u64) {
        self.silent.entry(pid).or_insert((gpus, now));
    }

    /// A process attached that says that none is in flight: what it works on shows whether that is so.
    pub fn speaks(&mut self, pid: usize) {
        self.silent.remove(&pid);
    }

    pub fn request_begins(&mut self, pid: usize, gpus: u8, word: Word, now: u64) {
        // Who lies does that to its own requests.
        let spoiled = !self.controlled || word == Word::Lies;
        let open = Open {
            gpus,
            told: (word == Word::Tells).then_some(now),
            last: None,
            disables: BTreeMap::new(),
            run: Vec::new(),
            spoiled,
        };
        self.requests.insert(pid, open);
    }

    /// A gap between two decode iterations of the request ended.
    pub fn decode_gap(&mut self, pid: usize, ns: u64) {
        let Some(open) = self.requests.get_mut(&pid) else {
            return;
        };
        open.run.extend(open.last.replace(ns));
        let (mask, known) = (open.gpus, !open.spoiled && open.run.len() >= REPEATS);
        let longest = if known {
            open.run.iter().copied().max().unwrap_or(0)
        } else {
            0
        };
        for gpu in of_mask(mask) {
            if let Some(book) = self.gpus.get_mut(gpu) {
                book.gaps += 1;
                book.longest = book.longest.max(longest);
            }
        }
    }

    pub fn request_ends(&mut self, pid: usize, now: u64) {
        let Some(open) = self.requests.remove(&pid) else {
            return;
        };
        let most = open.disables.values().copied().max().unwrap_or(0);
        if most > 1 && !open.spoiled {
            self.violated(
                now,
                &format!("a request of process {pid} was preempted {most} times"),
            );
        }
    }

    fn run(&mut self, gpu: usize, tsg: TsgId, at: u64) {
        self.gpus[gpu].running.insert(tsg, at);
    }

    fn stop(&mut self, gpu: usize, tsg: TsgId, at: u64) {
        if let Some(since) = self.gpus[gpu].running.get(&tsg).copied() {
            self.check_beside(gpu, at);
            self.figures.offline_ns += at - since;
            self.gpus[gpu].running.remove(&tsg);
        }
    }

    /// Something offline runs at this instant.
    fn check_beside(&mut self, gpu: usize, at: u64) {
        let book = &mut self.gpus[gpu];
        if !book.busy() || !self.controlled {
            return;
        }
        let begin = book.busy_since.max(self.controlled_since);
        book.calls
            .retain(|(called, drawn)| called + drawn + STUCK >= begin);
        let drawn: Vec<u64> = book
            .calls
            .iter()
            .filter(|(called, drawn)| called + drawn >= begin)
            .map(|(_, drawn)| *drawn)
            .collect();
        let more = u64::try_from(drawn.len())
            .unwrap_or(0)
            .saturating_sub(CALLS);
        let took = drawn.iter().sum::<u64>() + more * CALL;
        if at > begin + took + ALLOWANCE {
            let late = (at - begin - took) / US;
            self.violated(
                at,
                &format!(
                    "offline ran beside online on GPU {gpu}, {late} us beyond its {} disables",
                    drawn.len()
                ),
            );
        }
    }

    fn disabled(&mut self, gpu: usize, channel: ChannelId, at: u64) {
        let Some(book) = self.channels.get_mut(&(gpu, channel)) else {
            return;
        };
        book.known.get_or_insert(at);
        if book.disabled_since.is_none() {
            book.disabled_since = Some(at);
            for open in self.requests.values_mut() {
                if of_mask(open.gpus).any(|used| used == gpu) {
                    *open.disables.entry((gpu, channel)).or_insert(0) += 1;
                }
            }
        }
    }

    fn enabled(&mut self, gpu: usize, channel: ChannelId, at: u64) {
        let since = self
            .channels
            .get_mut(&(gpu, channel))
            .and_then(|channel| channel.disabled_since.take());
        if let Some(since) = since
            && !self.agent_up
        {
            self.stuck(at, at - since.max(self.agent_changed));
        }
        if self.alone && self.controlled {
            self.check_alone(gpu, channel, at);
        }
    }

    /// A channel is enabled by the agent, which knows of no other job's that is.
    fn check_alone(&mut self, gpu: usize, channel: ChannelId, at: u64) {
        let Some(own) = self.channels.get(&(gpu, channel)) else {
            return;
        };
        let (job, called) = (own.job, own.called);
        if called <= self.controlled_since + NEWCOMERS {
            return;
        }
        let beside = |((on, _), other): &(&(usize, ChannelId), &Channel)| {
            let known = other.known.is_some_and(|since| since + NEWCOMERS < called);
            let off = other.disabled_since.is_some() || self.at_kernel_end && other.asked_off;
            *on == gpu && other.job != job && !off && known
        };
        if let Some((_, other)) = self.channels.iter().find(beside) {
            let other = other.job;
            let text = format!("two jobs were enabled on GPU {gpu}, {job} beside {other}");
            self.violated(at, &text);
        }
    }

    /// Launches pass on a GPU, of these jobs.
    pub fn pass(&mut self, gpu: usize, jobs: &BTreeSet<u32>, now: u64) {
        if !self.turns || !self.controlled || now <= self.controlled_since + NEWCOMERS {
            return;
        }
        if jobs.len() > 1 && self.alone {
            self.violated(now, &format!("two jobs launch on GPU {gpu}: {jobs:?}"));
        }
        let Some(job) = jobs.first() else { return };
        let had = self.gpus[gpu].had.replace(*job);
        self.figures.swaps += u64::from(had.is_some_and(|had| had != *job));
    }

    /// The agent knows these channels.
    pub fn knows(&mut self, channels: impl Iterator<Item = (usize, ChannelId)>, now: u64) {
        for key in channels {
            if let Some(channel) = self.channels.get_mut(&key).filter(|channel| !channel.late) {
                channel.known.get_or_insert(now);
            }
        }
    }

    pub fn disable_call(
        &mut self,
        gpu: usize,
        list: &[ChannelId],
        order: u64,
        now: u64,
        drawn: u64,
    ) {
        self.gpus[gpu].calls.push((now, drawn));
        for channel in list {
            if let Some(channel) = self.channels.get_mut(&(gpu, *channel)) {
                channel.asked_off = true;
            }
        }
        let ran = list.iter().any(|channel| {
            self.channels
                .get(&(gpu, *channel))
                .is_some_and(|c| c.disabled_since.is_none())
        });
        // A swap stops a job while online has nothing on the GPU.
        let online = !self.turns || self.gpus.iter().any(Gpu::busy);
        if ran && online && self.controlled && self.last_preemption != order {
            self.last_preemption = order;
            self.figures.preemptions += 1;
        }
    }

    /// An order of the agent enables channels; a soft landing or a reconciling start does not
    /// come here.
    fn enable_call(&mut self, gpu: usize, list: &[ChannelId], order: u64, now: u64) {
        let sleeps = list.iter().any(|channel| {
            self.channels
                .get(&(gpu, *channel))
                .is_some_and(|c| c.disabled_since.is_some())
        });
        let mut job = None;
        for channel in list {
            if let Some(channel) = self.channels.get_mut(&(gpu, *channel)) {
                (channel.called, channel.asked_off) = (now, false);
                channel.known.get_or_insert(now);
                job = Some(channel.job);
            }
        }
        if !sleeps {
            return;
        }
        let had = core::mem::replace(&mut self.gpus[gpu].had, job);
        if self.turns && had.is_some() && had != job {
            if self.controlled && self.last_wake != order {
                self.figures.swaps += 1;
            }
            self.last_wake = order;
        }
        self.woke(gpu, order, now);
    }

    /// An order lets a job run again.
    pub fn woke(&mut self, gpu: usize, order: u64, now: u64) {
        if !self.controlled {
            return;
        }
        if self.last_wake != order {
            self.last_wake = order;
            self.figures.wakes += 1;
        }
        let book = &self.gpus[gpu];
        if book.busy() {
            return self.violated(now, &format!("offline woke on GPU {gpu} beside online"));
        }
        let on = |gpus: u8| of_mask(gpus).any(|used| used == gpu);
        let told = self.requests.iter().find(|(_, open)| {
            let since = open.told.filter(|_| !open.spoiled && on(open.gpus));
            since.is_some_and(|since| since + HEARD < now)
        });
        if let Some((pid, _)) = told {
            let text = format!("offline woke on GPU {gpu} within a request of process {pid}");
            return self.violated(now, &text);
        }
        let mut silent = self.silent.values();
        let needed = if !silent.any(|(gpus, since)| on(*gpus) && since + NEWCOMERS < now) {
            0
        } else if book.gaps < WARM_UP {
            LONGEST_COOLDOWN
        } else {
            (2 * book.longest).clamp(SHORTEST_COOLDOWN, LONGEST_COOLDOWN)
        };
        let idle = now - book.idle_since;
        if idle + self.slack < needed && book.idle_since > 0 {
            let text = format!(
                "offline woke on GPU {gpu} after {} us of idle, not {} us",
                idle / US,
                needed / US
            );
            self.violated(now, &text);
        }
    }

    fn channel_up(&mut self, key: (usize, ChannelId), job: u32, late: bool) {
        let channel = Channel {
            job,
            late,
            ..Channel::default()
        };
        self.channels.insert(key, channel);
    }

    /// Channels that should not be disabled any more, now that all is quiet.
    fn left(&self, now: u64) -> usize {
        let disabled = |channel: &&Channel| channel.disabled_since.is_some();
        if !self.turns {
            return self.channels.values().filter(disabled).count();
        }
        let late = |channel: &&Channel| {
            channel
                .disabled_since
                .is_some_and(|since| since + LONGEST_WAIT < now)
        };
        self.channels.values().filter(late).count()
    }

    /// A GPU on which nobody is enabled, although a job on it could have all of its GPUs.
    fn idle_gpu(&self, now: u64) -> Option<usize> {
        let on = |gpu: usize| self.channels.iter().filter(move |(key, _)| key.0 == gpu);
        let taken = |gpu: usize, job: u32| {
            on(gpu).any(|(_, channel)| channel.job != job && channel.disabled_since.is_none())
        };
        (0..self.gpus.len()).find(|&gpu| {
            let quiet = |(_, channel): (_, &Channel)| {
                channel
                    .disabled_since
                    .is_some_and(|since| since + SWAP < now)
            };
            let could = |job: u32| {
                let own = self
                    .channels
                    .iter()
                    .filter(|(_, channel)| channel.job == job);
                own.map(|(key, _)| key.0).all(|gpu| !taken(gpu, job))
            };
            on(gpu).next().is_some()
                && on(gpu).all(quiet)
                && on(gpu).any(|(_, channel)| could(channel.job))
        })
    }

    fn channel_down(&mut self, gpu: usize, channel: ChannelId) {
        self.channels.remove(&(gpu, channel));
    }

    pub fn close(mut self, now: u64) -> (Vec<String>, Figures) {
        let left = self.left(now);
        if let Some(gpu) = self.idle_gpu(now).filter(|_| self.turns) {
            self.violated(
                now,
                &format!("GPU {gpu} left to itself although all is quiet"),
            );
        }
        if left > 0 {
            self.violated(
                now,
                &format!("{left} channels left disabled although all is quiet"),
            );
        }
        self.figures.total_ns = now * u64::try_from(self.gpus.len()).unwrap_or(1);
        (self.violations, self.figures)
    }
}
