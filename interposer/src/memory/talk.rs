//! What the reporter passes between the agent and the service thread.
//!
//! It never waits for the memory state, which the service thread may hold while it waits for the driver. What it cannot
//! read now, it sends later. So it can report in time that an order is late.

use super::lease::Told;
use super::service::{Done, answer, serve};
use super::work::Work;
use crate::outbox::say;
use crate::process::Process;
use crate::state::memory::keeper::Ask;
use crate::state::memory::order::{Open, Order, What};
use crate::state::memory::state::Memory;
use crate::{clock, log, sys};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;
use tidegate_proto::parts;
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::{self, MemoryResult, client_event::Event};

/// What the library can do, as `Hello.memory` counts it.
pub const VERSION: u32 = 1;

/// `Welcome.memory` of an agent that understands stripes by their kinds.
const KINDS: u32 = 1;

/// An order without a deadline of its own.
const DEADLINE_NS: u64 = 20_000_000;
/// Usage and requests are sent at most this often.
const EVERY_NS: u64 = 25_000_000;
const USAGE_EVERY_NS: u64 = 100_000_000;
/// Time between two checks for processes of the job that have ended, because a process that ends wakes nobody.
const LOOK_EVERY_NS: u64 = 1_000_000_000;

/// Messages that an agent may refuse, however often they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// The stripes of a cache.
    Stripes,
    /// Who holds which blocks.
    Requests,
}

impl Unheard {
    /// What a message is about, if it may be left out.
    pub const fn of(event: &Event) -> Option<Self> {
        match event {
            Event::KvRegistered(_) => Some(Self::Stripes),
            Event::Requests(_) => Some(Self::Requests),
            _ => None,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The reason, for the agent and for log lines.
    const fn why(self) -> &'static str {
        match self {
            Self::Stripes => {
                "the agent does not hear of a cache with so many stripes: nothing of it is taken"
            }
            Self::Requests => {
                "the agent does not hear of so many requests: it takes memory whoever holds it"
            }
        }
    }
}

/// The reporter's side.
#[derive(Debug, Default)]
pub struct Talk {
    /// What the agent understands about memory, as `Welcome.memory` says. None: it has not said so yet.
    agent: Option<u32>,
    /// What the library no longer sends to such an agent ([`Unheard`]): `agent` was what it understands.
    unheard: u8,
    unheard_by: u32,
    /// The caches have not been described in this session.
    undescribed: bool,
    delivered_ns: u64,
    usage_at_ns: u64,
    requests_at_ns: u64,
    usage: Vec<v1::MemoryUsage>,
    withheld: u64,
    looked_ns: u64,
    work: Work,
    leases: Told,
    /// The page of iterations was sent in this session.
    beats: bool,
}

impl Talk {
    /// A new session: the next [`Self::deliver`] sends everything that exists, each later one what has changed.
    pub fn attach(&mut self, process: &Process) {
        self.void(process);
        *self = Self {
            undescribed: true,
            unheard: self.unheard,
            unheard_by: self.unheard_by,
            work: Work::attach(process),
            ..Self::default()
        };
        process.memory.changed();
    }

    /// The agent has said what it understands of memory. Nothing is sent to it before.
    pub fn welcome(&mut self, memory: u32) {
        self.agent = Some(memory);
        // A later one may hear what an earlier one did not.
        if memory > self.unheard_by {
            self.unheard = 0;
        }
    }

    /// The agent closed the stream because of `what`, and would do so again.
    pub fn unheard(&mut self, what: Unheard) {
        if self.unheard & what.bit() == 0 {
            self.unheard |= what.bit();
            self.unheard_by = self.agent.unwrap_or(0);
            log::debug(|| what.why().to_owned());
        }
    }

    const fn leaves_out(&self, what: Unheard) -> bool {
        self.unheard & what.bit() != 0
    }

    /// A message as the agent understands it. None: it is left out.
    fn shaped(&self, event: Event) -> Option<Event> {
        match event {
            Event::KvRegistered(kv) if self.leaves_out(Unheard::Stripes) => {
                Some(Event::KvRegistered(without_stripes(kv)))
            }
            Event::KvRegistered(kv) if self.agent.is_some_and(|memory| memory >= KINDS) => {
                Some(Event::KvRegistered(parts::by_kinds(kv)))
            }
            Event::Requests(_) if self.leaves_out(Unheard::Requests) => None,
            event => Some(event),
        }
    }

    /// Ends a session: its orders are void, and a thread that waits for an answer continues without one.
    pub fn void(&self, process: &Process) {
        let memory = &process.memory;
        memory.inbox.session.fetch_add(1, AcqRel);
        memory.beats.unwanted();
        sys::lock(&memory.inbox.orders).clear();
        sys::lock(&memory.inbox.open).clear();
        // What happened without an agent is told to the next; what stands is described anew.
        sys::lock(&memory.outbox).retain(|event| matches!(event, Event::Note(_)));
        sys::lock(&memory.inbox.cancelled).clear();
        memory.demands.answers.fetch_add(1, AcqRel);
        sys::futex_wake(&memory.demands.answers);
    }

    /// Sends what other threads left, and that an order is late. The agent has been told of the devices
    /// in use before: a cache on one that it does not know is nobody's.
    pub fn deliver(&mut self, process: &Process, send: &mut impl FnMut(Event)) {
        let mut said = Vec::new();
        self.tell(process, &mut said);
        let shaped = said.into_iter().filter_map(|event| self.shaped(event));
        shaped.for_each(send);
    }

    fn tell(&mut self, process: &Process, said: &mut Vec<Event>) {
        let memory = &process.memory;
        let now = clock::now_ns();
        self.delivered_ns = now;
        if self.agent.is_none() {
            return;
        }
        let send = &mut |event| said.push(event);
        if self.undescribed
            && let Ok(state) = memory.state.try_lock()
        {
            self.undescribed = false;
            // The agent promises what is free as soon as it hears of a cache: it must know of all else by then.
            for device in process.seen_devices() {
                send(Event::Usage(state.usage_unregistered(device)));
            }
            self.usage.clear();
            memory.shown.usage_changed.store(true, Release);
            let membership = sys::lock(&memory.job.membership);
            for kv in state.kvs.values() {
                send(Event::KvRegistered(membership.describe(kv)));
            }
            drop(membership);
            // Said twice, it would be told what to map between the two, and taken for one that was not.
            sys::lock(&memory.outbox)
                .retain(|event| !matches!(event, Event::KvRegistered(_) | Event::Usage(_)));
            if self.leaves_out(Unheard::Requests) {
                let text = Unheard::Requests.why().to_owned();
                let kind = "requests_unheard".to_owned();
                send(Event::Note(v1::Note { kind, text }));
            }
            self.snapshot(process, send);
        }
        if self.undescribed {
            return;
        }
        let said = std::mem::take(&mut *sys::lock(&memory.outbox));
        said.into_iter().for_each(&mut *send);
        if memory.log().is_some() && now.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS {
            self.looked_ns = now;
            let joined = sys::lock(&memory.job.membership).joined.clone();
            let _ = joined.map(|joined| joined.send(Ask::Look));
        }
        let withheld = memory.withheld();
        if withheld != self.withheld {
            self.withheld = withheld;
            send(Event::Withheld(v1::Withheld { log_seq: withheld }));
        }
        let mut open = sys::lock(&memory.inbox.open);
        for entry in open.iter_mut() {
            if !entry.late && now >= entry.order.deadline_ns {
                entry.late = true;
                send(answer(&entry.order, Done::nothing(MemoryResult::Late)));
            }
        }
        drop(open);
        self.requests(process, now, send);
        self.usages(process, now, send);
        self.work.deliver(process, now, send);
        self.leases.deliver(process, send);
        if !self.beats
            && let Some(fd) = memory.beats.offered()
        {
            self.beats = true;
            send(Event::BeatPage(v1::BeatPage { fd }));
        }
    }

    /// Every request, after the caches whose blocks they hold.
    fn snapshot(&mut self, process: &Process, send: &mut impl FnMut(Event)) {
        let mut requests = sys::lock(&process.memory.job.requests);
        requests.changed.clear();
        let all = requests.all.iter();
        let set = all.map(|(id, held)| held.message(*id)).collect::<Vec<_>>();
        drop(requests);
        let parts = parts::requests(true, set, &[]);
        parts.into_iter().map(Event::Requests).for_each(send);
    }

    fn requests(&mut self, process: &Process, now: u64, send: &mut impl FnMut(Event)) {
        if now.saturating_sub(self.requests_at_ns) < EVERY_NS {
            return;
        }
        let mut requests = sys::lock(&process.memory.job.requests);
        let changed = std::mem::take(&mut requests.changed);
        if changed.is_empty() {
            return;
        }
        let (mut set, mut forgotten) = (Vec::new(), Vec::new());
        for id in changed.into_keys() {
            match requests.all.get(&id) {
                Some(held) => set.push(held.message(id)),
                None => forgotten.push(id),
            }
        }
        drop(requests);
        self.requests_at_ns = now;
        let parts = parts::requests(false, set, &forgotten);
        parts.into_iter().map(Event::Requests).for_each(send);
    }

    fn usages(&mut self, process: &Process, now: u64, send: &mut impl FnMut(Event)) {
        let memory = &process.memory;
        if now.saturating_sub(self.usage_at_ns) < USAGE_EVERY_NS
            || !memory.shown.usage_changed.load(Acquire)
        {
            return;
        }
        let Ok(state) = memory.state.try_lock() else {
            return;
        };
        memory.shown.usage_changed.store(false, Release);
        self.usage_at_ns = now;
        let usages = process.seen_devices().map(|device| state.usage(device));
        let usages: Vec<v1::MemoryUsage> = usages.collect();
        // What was registered until now is no longer in the figures: that is said first.
        let said = std::mem::take(&mut *sys::lock(&memory.outbox));
        drop(state);
        said.into_iter().for_each(&mut *send);
        for usage in &usages {
            if !self.usage.contains(usage) {
                send(Event::Usage(*usage));
            }
        }
        self.usage = usages;
    }

    /// How long the reporter may sleep before it has something to deliver by itself.
    pub fn wake_in(&self, process: &Process) -> Option<Duration> {
        let memory = &process.memory;
        let now = clock::now_ns();
        let open = sys::lock(&memory.inbox.open);
        let late = open.iter().filter(|entry| !entry.late);
        let deadline = late.map(|entry| entry.order.deadline_ns).min();
        drop(open);
        let unsaid = self.undescribed
            || memory.shown.usage_changed.load(Acquire)
            || !sys::lock(&memory.job.requests).changed.is_empty()
            || memory.withheld() != self.withheld
            || self.work.is_unsaid(process)
            || self.leases.is_unsaid(process);
        // A job's log is shared memory: no process can wake another's reporter.
        let poll = unsaid || memory.log().is_some();
        // Since the last time, not from here on: what else wakes the reporter must not put it off.
        let wakes = [deadline, poll.then(|| self.delivered_ns + EVERY_NS)];
        let next = wakes.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(now).max(100_000)))
    }

    /// Takes an order of the agent.
    pub fn command(&mut self, process: &'static Process, command: Command) {
        let memory = &process.memory;
        match command {
            Command::Check(check) => {
                order(process, check.seq, check.deadline_ns, What::Check);
            }
            Command::Reclaim(reclaim) => {
                let what = What::Reclaim(reclaim.kv, reclaim.stripes);
                order(process, reclaim.seq, reclaim.deadline_ns, what);
            }
            Command::Restore(restore) => {
                let what = What::Restore(restore.kv, restore.stripes);
                order(process, restore.seq, restore.deadline_ns, what);
            }
            Command::MapTarget(target) => {
                let what = What::Map(target.kv, target.bytes);
                order(process, target.seq, u64::MAX, what);
            }
            Command::CancelReclaim(cancel) => {
                let mut cancelled = sys::lock(&memory.inbox.cancelled);
                const KEPT: usize = 64;
                if cancelled.len() >= KEPT {
                    cancelled.remove(0);
                }
                cancelled.push(cancel.seq);
            }
            Command::Share(share) => {
                let slot = usize::try_from(share.slot).unwrap_or(usize::MAX);
                let is_share = share.limited || share.total_bytes != 0;
                let bytes = is_share.then_some(share.total_bytes);
                memory.shown.sizes.set(slot, bytes, share.yields_bytes);
            }
            Command::BeatsWanted(_) => memory.beats.want(memory.inbox.session.load(Acquire)),
            Command::DemandAnswer(answer) => {
                // Nobody waits for what was asked ahead of need.
                if let Some(place) = sys::lock(&memory.demands.awaited).get_mut(&answer.ticket) {
                    *place = Some(answer.granted);
                }
                memory.demands.answers.fetch_add(1, AcqRel);
                sys::futex_wake(&memory.demands.answers);
            }
            _ => {}
        }
    }
}

/// A cache as one from which nothing can be taken: all of it stays.
fn without_stripes(said: v1::KvRegistered) -> v1::KvRegistered {
    let own = |nth: usize| {
        said.backed
            .get(nth / 8)
            .is_some_and(|byte| byte >> (nth % 8) & 1 == 1)
    };
    let handles = said.handles.iter().enumerate().filter(|(nth, _)| own(*nth));
    let handles: u64 = handles.map(|(_, handles)| u64::from(*handles)).sum();
    v1::KvRegistered {
        first_block: Vec::new(),
        blocks: Vec::new(),
        handles: Vec::new(),
        backed: Vec::new(),
        fixed_bytes: said.fixed_bytes + handles * said.handle_bytes,
        refused: Unheard::Stripes.why().to_owned(),
        ..said
    }
}

fn order(process: &'static Process, seq: u64, deadline_ns: u64, what: What) {
    let memory = &process.memory;
    let deadline_ns = if deadline_ns == 0 {
        clock::now_ns() + DEADLINE_NS
    } else {
        deadline_ns
    };
    let order = Order {
        seq,
        deadline_ns,
        session: memory.inbox.session.load(Acquire),
        what,
    };
    let mut orders = sys::lock(&memory.inbox.orders);
    if let What::Map(kv, _) = order.what {
        // Only the newest target counts.
        orders.retain(|old| !matches!(old.what, What::Map(other, _) if other == kv));
    } else {
        sys::lock(&memory.inbox.open).push(Open {
            order: order.clone(),
            late: false,
        });
    }
    orders.push_back(order);
    drop(orders);
    serve(process);
    memory.inbox.ordered.fetch_add(1, AcqRel);
    sys::futex_wake(&memory.inbox.ordered);
}

fn ticket(memory: &Memory) -> u64 {
    memory.demands.tickets.fetch_add(1, AcqRel) + 1
}

/// Asks for memory of a cache: which, and what is mapped of it. Does not wait; whether the engine does is `need`.
pub fn demand(process: &Process, device: usize, bytes: u64, cache: (u32, u64), need: Need) {
    let ticket = ticket(&process.memory);
    say_demand(process, (ticket, device), bytes, Some((cache, need)), None);
}

/// When memory of a cache is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// By a step that is being scheduled.
    Now,
    /// By requests that the engine has not come to.
    Ahead,
}

fn say_demand(
    process: &Process,
    (ticket, device): (u64, usize),
    bytes: u64,
    cache: Option<((u32, u64), Need)>,
    usage: Option<v1::MemoryUsage>,
) {
    say(
        process,
        Event::Demand(v1::Demand {
            ticket,
            slot: u32::try_from(device).unwrap_or(0),
            kv: cache.map_or(0, |((kv, _), _)| kv),
            bytes,
            mapped_bytes: cache.map(|((_, mapped), _)| mapped),
            ahead: cache.is_some_and(|(_, need)| need == Need::Ahead),
            usage,
        }),
    );
}

/// Whether a flag that an agent's coming raises is raised, after so long at most.
pub fn is_raised_within(flag: &AtomicBool, wait_ns: u64) -> bool {
    const LOOK_NS: u64 = 2_000_000;
    let end = clock::now_ns().saturating_add(wait_ns);
    while !flag.load(Acquire) {
        if clock::now_ns() >= end {
            return false;
        }
        sys::sleep_ns(LOOK_NS);
    }
    true
}

/// Asks for room for an allocation and waits at most this long; whether it was granted.
pub fn ask(process: &Process, device: usize, bytes: u64, patience_ns: u64) -> bool {
    let memory = &process.memory;
    if !process.link.attached.load(Acquire) {
        return false;
    }
    let session = memory.inbox.session.load(Acquire);
    let end = clock::now_ns() + patience_ns;
    let ticket = ticket(memory);
    sys::lock(&memory.demands.awaited).insert(ticket, None);
    let state = sys::lock(&memory.state);
    // Said under the lock: the usage that is said next is newer.
    let usage = state.usage(device);
    say_demand(process, (ticket, device), bytes, None, Some(usage));
    drop(state);
    // Rung while the state was held, the reporter may have put it off.
    process.bell.ring();
    let granted = loop {
        let seen = memory.demands.answers.load(Acquire);
        if let Some(granted) = sys::lock(&memory.demands.awaited)
            .get(&ticket)
            .copied()
            .flatten()
        {
            break granted;
        }
        let now = clock::now_ns();
        if now >= end || session != memory.inbox.session.load(Acquire) {
            break false;
        }
        sys::futex_wait(&memory.demands.answers, seen, end - now);
    };
    sys::lock(&memory.demands.awaited).remove(&ticket);
    granted
}
