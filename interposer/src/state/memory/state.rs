//! What the library knows about the process' memory.
//!
//! Locks, in this order: [`Memory::state`], which is held during calls of the driver; then the small ones, which never
//! are. No launch takes any of them.

use super::backed::{Backed, Range};
use super::created::Created;
use super::heard::Heard;
use super::iterations::Beats;
use super::keeper::{Ask, Readers};
use super::kv::{Kv, Kvs};
use super::marks::Marks;
use super::order::{Open, Order};
use super::placed::Arenas;
use super::shown::Sizes;
use crate::{log, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tidegate_abi::page::{DEVICES, Page};
use tidegate_core::elastic::Elastic;
use tidegate_core::hold::Changing;
use tidegate_core::joblog::{Member, Reader, Refused};
use tidegate_proto::v1::{self, client_event::Event};

/// An elastic cache's device, and its blocks.
pub(crate) type Growing = (usize, Arc<Mutex<Elastic>>);

/// Allocations and caches that exist.
#[derive(Debug, Default)]
pub struct State {
    /// Allocations made in a KV scope.
    pub backed: Backed,
    /// Caches registered on them.
    pub kvs: Kvs,
    /// Numbers given to caches.
    pub(crate) kvs_made: u32,
    /// The driver's own allocations that are counted: device and bytes.
    pub plain: BTreeMap<u64, (usize, u64)>,
    /// What the application made by handle.
    pub created: Created,
}

/// The state of the reader of losses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Polled {
    /// There is none.
    #[default]
    Never,
    /// It has read nothing yet.
    Begun,
    /// The step for which it last read losses.
    At(u64),
}

/// The job to which this process belongs, as it reported.
#[derive(Debug, Default)]
pub struct Membership {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) reader: Reader,
    pub(crate) polled: Polled,
    /// Whether this process reads losses, once it has tried. A process that was refused stays refused.
    pub(crate) reads: Option<bool>,
    /// The way to the keeper of the job's memory, which decides who reads losses; set once a job is joined.
    pub(crate) joined: Option<Readers>,
}

/// One request's blocks, as published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) tokens: u32,
    pub(crate) blocks: Vec<u32>,
}

/// Requests, and which of them the agent does not know yet.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) all: BTreeMap<u64, Held>,
    pub(crate) changed: BTreeMap<u64, ()>,
}

/// Memory of one process.
#[derive(Debug, Default)]
pub struct Memory {
    /// See [`State`].
    pub state: Mutex<State>,
    /// Threads inside calls that may hold the driver's locks.
    pub marks: Marks,
    /// Messages to the agent, in order.
    pub(crate) outbox: Mutex<Vec<Event>>,
    pub(crate) inbox: Inbox,
    /// State of the service thread.
    pub(crate) changing: Changing<AtomicU64>,
    pub(crate) shown: Shown,
    pub(crate) growth: Growth,
    /// The last value of `tg_requests_in_flight`, plus one; written into every new page.
    pub in_flight: AtomicU64,
    pub(crate) leased: Leased,
    /// The page of iterations.
    pub(crate) beats: Beats,
    /// See [`Arenas`].
    pub(crate) arenas: Mutex<Arenas>,
    pub(crate) work: Work,
    pub(crate) job: Job,
    pub(crate) demands: Demands,
}

/// The agent's orders.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) orders: Mutex<VecDeque<Order>>,
    /// Futex: incremented with every order.
    pub(crate) ordered: AtomicU32,
    /// Orders of earlier sessions than this one are void.
    pub(crate) session: AtomicU64,
    pub(crate) cancelled: Mutex<Vec<u64>>,
    /// Orders without an answer.
    pub(crate) open: Mutex<Vec<Open>>,
    /// A thread is carrying them out.
    pub(crate) service: AtomicBool,
}

/// What the application sees of each device's memory.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) sizes: Sizes,
    /// Its allocations changed, and the agent does not know yet.
    pub(crate) usage_changed: AtomicBool,
}

/// Caches that grow.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Elastic caches and their devices.
    pub(crate) elastic: Mutex<BTreeMap<u32, Growing>>,
    /// What an engine that waits for memory knows about its agent.
    pub(crate) heard: Mutex<Heard>,
    /// `tg_usage` has reported that the mapped memory runs out.
    pub(crate) pressed: AtomicBool,
}

/// Units that a trainer offers and runs.
#[derive(Debug, Default)]
pub(crate) struct Leased {
    /// The last `tg_unit`, as the page has it; written into every new page, like the next one.
    pub(crate) unit: AtomicU64,
    /// How long one such unit takes, ns.
    pub(crate) unit_ns: AtomicU64,
    /// For each device: the lease under which a unit runs, plus one (0: none), and its session.
    pub(crate) under: [(AtomicU64, AtomicU64); DEVICES],
}

/// What the application reports of its work.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Useful units of work, from `tg_progress`.
    pub(crate) units: AtomicU64,
    /// The last `tg_trainer`, and how many there were.
    pub(crate) training: Mutex<(u64, Option<v1::Training>)>,
    /// How many of them are on their way to the agent.
    pub(crate) training_sent: AtomicU64,
}

/// What the process shares with the others of its job.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) membership: Mutex<Membership>,
    pub(crate) log: AtomicPtr<Member<'static>>,
    pub(crate) requests: Mutex<Requests>,
}

/// Demands for memory.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    pub(crate) tickets: AtomicU64,
    /// Those that a thread waits for, by ticket, with their answers.
    pub(crate) awaited: Mutex<BTreeMap<u64, Option<bool>>>,
    /// Futex: raised with every answer.
    pub(crate) answers: AtomicU32,
}

impl Memory {
    /// The job's log, and what this process counts in it, if it joined one.
    pub(crate) fn log(&self) -> Option<&'static Member<'static>> {
        // SAFETY: null or leaked.
        unsafe { self.job.log.load(Acquire).as_ref() }
    }

    /// Replaces it.
    pub(crate) fn set_log(&self, member: Member<'static>) {
        self.job.log.store(Box::leak(Box::new(member)), Release);
    }

    /// Entries of the job's log that the engine withholds.
    pub(crate) fn withheld(&self) -> u64 {
        self.log().map_or(0, |log| log.shared().withheld())
    }

    /// Shows in a page how many requests are in flight.
    pub fn show_in_flight(&self, page: &Page) {
        copy(&self.in_flight, &page.process.in_flight);
    }

    /// Shows in a page the unit that could run next.
    pub fn show_unit(&self, page: &Page) {
        copy(&self.leased.unit_ns, &page.process.unit_ns);
        copy(&self.leased.unit, &page.process.unit);
    }

    /// What a device's usage is now.
    pub(crate) fn changed(&self) {
        self.shown.usage_changed.store(true, Release);
    }

    /// Whether a mapping is being changed.
    pub fn is_changing(&self) -> bool {
        // A change that began before this looks at what the caller wrote before, and ends itself.
        fence(SeqCst);
        self.changing.changes()
    }

    /// Nothing changes any more: calls that may hold the driver's locks go on.
    pub(crate) fn rests(&self) {
        self.changing.rests();
        let (word, _) = self.changing.sleeps_on();
        sys::futex_wake(sys::low_half(word));
    }

    /// Sleeps while mappings move, but asks again after so long.
    pub(crate) fn wait_while_moving(&self, limit_ns: u64) {
        let (word, low) = self.changing.sleeps_on();
        sys::futex_wait(sys::low_half(word), low, limit_ns);
    }

    /// Waits until no mapping is being changed. What changes them stops after the range it is at, once the
    /// agent is gone; only a driver that does not answer takes longer than that.
    pub fn settle(&self) {
        while self.is_changing() {
            sys::sleep_ns(200_000);
        }
    }
}

/// Copies a word into a page. Whoever changes it meanwhile copies it afterwards, or the change is seen here.
fn copy(word: &AtomicU64, shown: &AtomicU64) {
    loop {
        let value = word.load(SeqCst);
        shown.store(value, SeqCst);
        if word.load(SeqCst) == value {
            return;
        }
    }
}

impl State {
    /// As the agent is told.
    pub fn usage(&self, device: usize) -> v1::MemoryUsage {
        self.usage_where(device, |_| true)
    }

    /// As an agent is told that has not heard of any cache: what may be reclaimed later counts as memory of no cache. A
    /// registration then moves it. Elastic caches are counted by their own message alone.
    pub fn usage_unregistered(&self, device: usize) -> v1::MemoryUsage {
        self.usage_where(device, |kv| kv.elastic.is_some())
    }

    fn usage_where(&self, device: usize, registered: impl Fn(&Kv) -> bool) -> v1::MemoryUsage {
        let mut usage = v1::MemoryUsage {
            slot: u32::try_from(device).unwrap_or(0),
            ..v1::MemoryUsage::default()
        };
        usage.plain_bytes = self.counted_bytes(device) + self.backed.page_bytes(device);
        for range in self.backed.all().filter(|range| range.device == device) {
            let own = range.own_bytes();
            usage.quarantined_bytes += range.bytes - own;
            let mut kvs = self.kvs.values().filter(|kv| registered(kv));
            if kvs.any(|kv| kv.bases.contains(&range.base)) {
                usage.kv_bytes += own;
            } else {
                usage.unregistered_bytes += own;
            }
        }
        let elastic = self.kvs.values().filter(|kv| kv.device == device);
        for elastic in elastic.filter_map(|kv| kv.elastic.as_ref()) {
            let elastic = sys::lock(elastic);
            usage.mapped_bytes += elastic.mapped_bytes();
            usage.reserved_bytes += elastic.reserved_bytes();
        }
        usage
    }

    /// What is only counted.
    fn counted_bytes(&self, device: usize) -> u64 {
        let plain = self.plain.values().filter(|(at, _)| *at == device);
        plain.map(|(_, bytes)| bytes).sum::<u64>() + self.created.bytes(device)
    }

    /// Bytes that it really has there: what was taken of its caches is not among them.
    pub fn own_bytes(&self, device: usize) -> u64 {
        let backed = self.backed.all().filter(|range| range.device == device);
        self.counted_bytes(device) + backed.map(Range::own_bytes).sum::<u64>()
    }

    /// Bytes that the application believes it has on a device.
    pub fn held_bytes(&self, device: usize) -> u64 {
        let backed = self.backed.all().filter(|range| range.device == device);
        self.counted_bytes(device) + backed.map(|range| range.bytes).sum::<u64>()
    }
}

/// Before losses are read. One process at most does so for this rank: another engine in the same job would take its
/// steps for this one's.
pub(crate) fn begin_to_read(memory: &Memory) -> Result<(), c_int> {
    let membership = &memory.job.membership;
    let known = sys::lock(membership);
    match known.reads {
        Some(true) => return Ok(()),
        Some(false) => return Err(libc::EBUSY),
        None => {}
    }
    let (rank, joined) = (known.rank, known.joined.clone().ok_or(libc::ENOTCONN)?);
    // One that ends is waited for, and whoever talks to the agent wants the lock meanwhile.
    drop(known);
    let (answer_tx, answer_rx) = mpsc::channel();
    let reads =
        joined.send(Ask::Read(rank, answer_tx)).is_ok() && answer_rx.recv().unwrap_or(false);
    let mut known = sys::lock(membership);
    known.reads = Some(reads);
    if reads {
        drop(known);
        // What it promises itself as it begins is to end with it. It can do without.
        can_lose(memory, 1);
        return Ok(());
    }
    log::line(&format!(
        "tg_poll: another engine reads what rank {} of job '{}' loses: give each engine a TIDEGATE_JOB of its own",
        known.rank, known.name
    ));
    Err(libc::EBUSY)
}

/// Whether this process can count `blocks` of its own as lost, so that they end with it. Never waits for long.
pub(crate) fn can_lose(memory: &Memory, blocks: u32) -> bool {
    const WAIT: Duration = Duration::from_millis(50);
    let Some(log) = memory.log() else {
        return false;
    };
    if log.room() >= blocks as usize {
        return true;
    }
    let joined = sys::lock(&memory.job.membership).joined.clone();
    let (answer_tx, answer_rx) = mpsc::channel();
    let asked = joined.is_some_and(|joined| joined.send(Ask::Table(blocks, answer_tx)).is_ok());
    let Some(table) = answer_rx
        .recv_timeout(WAIT)
        .ok()
        .flatten()
        .filter(|_| asked)
    else {
        return false;
    };
    memory.set_log(table.member(log.shared()));
    true
}

/// Whether a process of the job hears what is lost. Never waits for long.
pub(crate) fn is_read(membership: &Mutex<Membership>) -> bool {
    const WAIT: Duration = Duration::from_millis(10);
    let known = sys::lock(membership);
    let (reads, joined) = (known.reads, known.joined.clone());
    drop(known);
    let (answer_tx, answer_rx) = mpsc::channel();
    let asks = |joined: Readers| {
        joined.send(Ask::IsRead(answer_tx)).is_ok() && answer_rx.recv_timeout(WAIT).unwrap_or(false)
    };
    reads == Some(true) || joined.is_some_and(asks)
}

impl Membership {
    /// Begins a reader before its first step: one that counts lower than the last is a scheduler more.
    pub(crate) fn read_from(&mut self, log: &Member<'_>, step: u64) -> Result<(), Refused> {
        let goes_on = match self.polled {
            Polled::Begun => true,
            Polled::At(last) => step >= last && step > 0,
            Polled::Never => false,
        };
        if !goes_on {
            self.reader = Reader::begin(log.shared(), self.rank, log.promised())?;
            self.polled = Polled::Begun;
        }
        Ok(())
    }

    /// What the agent is told of a cache.
    pub fn describe(&self, kv: &Kv) -> v1::KvRegistered {
        kv.describe(self.rank, self.world.max(1), &self.name)
    }
}

impl Held {
    /// As the agent is told.
    pub fn message(&self, request: u64) -> v1::RequestBlocks {
        v1::RequestBlocks {
            request,
            tokens: self.tokens,
            blocks: self.blocks.clone(),
        }
    }
}
