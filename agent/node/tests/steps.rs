//! The shell allocates nothing in a turn once it has met its processes, jobs and GPUs: a decision never waits
//! for the allocator, nor does an order.

mod rig;

use rig::Rig;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tidegate_node::kinds::Role;
use tidegate_policy::config::Config;

struct Counting;

thread_local! {
    /// Calls of the allocator by this thread: the test runner's own thread allocates beside it.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GPUS: usize = 4;
const ONLINE: u64 = 3;

/// One busy period of `launches` of one process on one GPU, and its pause.
fn period(rig: &mut Rig, session: u64, gpu: usize, launches: u64, pause_ns: u64) {
    for busy in [true, false] {
        rig.edge(session, gpu, busy, launches);
        rig.rest();
        rig.pass(3_000_000);
    }
    for _ in 0..4 {
        rig.pass(pause_ns / 4);
        rig.probe();
        rig.rest();
    }
}

/// A request's decode iterations on every GPU, then a pause in which the gates open.
fn requests(rig: &mut Rig, count: u64) {
    for number in 0..count {
        let session = 1 + number % ONLINE;
        for iteration in 0..12 {
            for gpu in 0..GPUS {
                period(
                    rig,
                    session,
                    gpu,
                    10 + number % 2,
                    200_000 * (iteration % 3),
                );
            }
        }
        for _ in 0..40 {
            rig.pass(10_000_000);
            rig.probe();
            rig.rest();
        }
    }
}

/// P-LIBRARY-1: a decision of the agent allocates nothing, nor does an order.
#[test]
fn no_turn_allocates_once_its_processes_jobs_and_gpus_are_known() {
    let mut rig = Rig::new(GPUS, Config::default());
    for _ in 0..ONLINE {
        rig.attach(Role::Online, "");
    }
    for job in ["one", "other", "one"] {
        rig.attach(Role::Offline, job);
    }
    for gpu in &mut rig.gpus {
        gpu.keeps_orders = false;
    }
    requests(&mut rig, 6);
    let calls = |rig: &Rig| rig.gpus.iter().map(|gpu| gpu.calls).sum::<u64>();
    let (before, called) = (ALLOCATIONS.get(), calls(&rig));
    requests(&mut rig, 60);
    let allocated = ALLOCATIONS.get() - before;
    let called = calls(&rig) - called;
    assert!(called > 500, "an empty run: {called} calls");
    assert_eq!(allocated, 0);
}
