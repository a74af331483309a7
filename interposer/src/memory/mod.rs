//! KV memory: backed by handles, taken and given back under a running engine, grown ahead of need.
//!
//! * [`backed`], [`vmm`]: allocations with a handle behind each piece.
//! * [`answers`]: how such an allocation answers the application, and what is only counted.
//! * [`kv`]: the caches an engine registered, by stripe.
//! * [`hold`]: calls that may hold the driver's locks.
//! * [`service`]: the thread that changes mappings, at the agent's word.
//! * [`talk`]: what the reporter carries between it and the agent.
//! * [`job`], [`abi`]: the job's shared memory, and the C functions engines call.
//!
//! Locks, in this order: [`Memory::state`], which is held over calls of the driver; then the small
//! ones, which never are. No launch takes any of them.

pub mod abi;
pub mod answers;
pub mod backed;
pub mod hold;
mod job;
mod kv;
mod service;
pub mod talk;
mod vmm;

use crate::process::Process;
use crate::start;
use crate::sys;
use backed::Backed;
use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use hold::Marks;
use kv::Kvs;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tidegate_abi::page::DEVICES;
use tidegate_core::elastic::Elastic;
use tidegate_core::joblog::{Reader, Shared};
use tidegate_proto::v1::{self, client_event::Event};

/// An elastic cache's device, and its blocks.
type Growing = (usize, Arc<Mutex<Elastic>>);

/// What stands: allocations and caches.
#[derive(Debug, Default)]
pub struct State {
    /// Allocations made in a KV scope.
    pub backed: Backed,
    /// Caches registered on them.
    pub kvs: Kvs,
    /// Numbers given to caches.
    kvs_made: u32,
    /// The driver's own allocations that are counted: device and bytes.
    pub plain: BTreeMap<u64, (usize, u64)>,
}

/// The job this process said it belongs to.
#[derive(Debug, Default)]
pub struct Membership {
    name: String,
    rank: u32,
    world: u32,
    reader: Reader,
    joined: bool,
}

/// One request's blocks, as published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    tokens: u32,
    blocks: Vec<u32>,
}

/// Requests, and which of them the agent has not been told of.
#[derive(Debug, Default)]
struct Requests {
    all: BTreeMap<u64, Held>,
    changed: BTreeMap<u64, ()>,
}

/// Memory of one process.
#[derive(Debug)]
pub struct Memory {
    /// See [`State`].
    pub state: Mutex<State>,
    /// Threads inside calls that may hold the driver's locks.
    pub marks: Marks,
    /// To the agent, in order.
    outbox: Mutex<Vec<Event>>,
    orders: Mutex<VecDeque<service::Order>>,
    /// Futex: raised with every order.
    ordered: AtomicU32,
    /// Orders of sessions before this one are void.
    session: AtomicU64,
    cancelled: Mutex<Vec<u64>>,
    /// Orders that have not been answered.
    open: Mutex<Vec<service::Open>>,
    service: AtomicBool,
    /// The service thread is changing mappings.
    changing: AtomicBool,
    /// What the application is shown as all there is; 0: what the driver says.
    share: [AtomicU64; DEVICES],
    usage_changed: AtomicBool,
    /// Elastic caches and their devices.
    elastic: Mutex<BTreeMap<u32, Growing>>,
    /// `tg_usage` has said that the mapped memory runs out.
    pressed: AtomicBool,
    /// What `tg_requests_in_flight` said last, plus one; written into every new page.
    pub in_flight: AtomicU64,
    membership: Mutex<Membership>,
    log: AtomicPtr<Shared>,
    requests: Mutex<Requests>,
    tickets: AtomicU64,
    /// Demands that a thread waits for, by ticket, with their answers.
    awaited: Mutex<BTreeMap<u64, Option<bool>>>,
    /// Futex: raised with every answer to a demand.
    answers: AtomicU32,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            marks: Marks::default(),
            outbox: Mutex::default(),
            orders: Mutex::default(),
            ordered: AtomicU32::new(0),
            session: AtomicU64::new(0),
            cancelled: Mutex::default(),
            open: Mutex::default(),
            service: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            share: [const { AtomicU64::new(0) }; DEVICES],
            usage_changed: AtomicBool::new(false),
            elastic: Mutex::default(),
            pressed: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            membership: Mutex::default(),
            log: AtomicPtr::new(core::ptr::null_mut()),
            requests: Mutex::default(),
            tickets: AtomicU64::new(0),
            awaited: Mutex::default(),
            answers: AtomicU32::new(0),
        }
    }
}

thread_local! {
    /// Size of handles in the KV scope the thread is in, and how deep it is in scopes.
    static SCOPE: Cell<(u32, u64, bool)> = const { Cell::new((0, 0, false)) };
}

/// The calling thread's scope: size of handles, and whether it begins without memory.
fn scope() -> Option<(u64, bool)> {
    let (depth, handle_bytes, bare) = SCOPE.get();
    (depth > 0).then_some((handle_bytes, bare))
}

impl Memory {
    /// The job's log, if this process joined one.
    fn log(&self) -> Option<&'static Shared> {
        // SAFETY: null or a mapping that is never unmapped.
        unsafe { self.log.load(Acquire).as_ref() }
    }

    /// What the application may have of a device; `None`: what the driver says.
    fn share_of(&self, device: usize) -> Option<u64> {
        let share = self.share.get(device)?.load(Relaxed);
        (share != 0).then_some(share)
    }

    /// What a device's usage is now.
    fn changed(&self) {
        self.usage_changed.store(true, Release);
    }
}

impl State {
    /// As the agent is told.
    pub fn usage(&self, device: usize) -> v1::MemoryUsage {
        let mut usage = v1::MemoryUsage {
            slot: u32::try_from(device).unwrap_or(0),
            ..v1::MemoryUsage::default()
        };
        let plain = self.plain.values().filter(|(at, _)| *at == device);
        usage.plain_bytes =
            plain.map(|(_, bytes)| bytes).sum::<u64>() + self.backed.page_bytes(device);
        for range in self.backed.all().filter(|range| range.device == device) {
            let own = range.own_bytes();
            usage.quarantined_bytes += range.bytes - own;
            if self.kvs.values().any(|kv| kv.bases.contains(&range.base)) {
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

    /// Bytes that the application believes it has on a device.
    pub fn held_bytes(&self, device: usize) -> u64 {
        let plain = self.plain.values().filter(|(at, _)| *at == device);
        let backed = self.backed.all().filter(|range| range.device == device);
        plain.map(|(_, bytes)| bytes).sum::<u64>() + backed.map(|range| range.bytes).sum::<u64>()
    }
}

/// Leaves something for the agent.
fn say(process: &Process, event: Event) {
    sys::lock(&process.memory.outbox).push(event);
    process.bell.ring();
}

/// Starts the service thread with the first order or allocation that needs it.
fn serve(process: &'static Process) {
    if !process.memory.service.swap(true, AcqRel) {
        start::spawn_service(move || service::run(process));
    }
}

/// Whether a mapping is being changed.
pub fn is_changing(process: &Process) -> bool {
    process.memory.changing.load(Acquire)
}

/// Waits until no mapping is being changed. What changes them stops after the range it is at, once the agent
/// is gone; only a driver that does not answer takes longer than that.
pub fn settle(process: &Process) {
    while is_changing(process) {
        sys::sleep_ns(200_000);
    }
}
