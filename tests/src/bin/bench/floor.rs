//! What one wake-up costs on this machine, and two in a row.
//!
//! An edge reaches the driver over threads that sleep: the agent's control thread and the thread of the GPU. On a
//! virtual machine most of the time in between is the hypervisor's, waking cores that halted. This is the same relay
//! with nothing in it, under the same scheduling and at the same rhythm: how far any agent that sleeps between edges
//! could come down here, and how far one whose edges take two hops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use tidegate_agent::sys::{futex_wait, futex_wake, schedule_fifo};
use tidegate_tests::monotonic_ns;

/// As the agent's control thread and its issue threads.
pub const TWO: &[i32] = &[20, 10];
/// As an issue thread.
pub const ONE: &[i32] = &[10];

struct Shared {
    /// Raised for each thread.
    bells: Vec<AtomicU32>,
    /// When the last thread ran.
    arrived_ns: AtomicU64,
    over: AtomicBool,
}

/// Threads that sleep until the relay is started.
pub struct Relay {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Starts them, under SCHED_FIFO of these priorities where that is allowed.
    pub fn start(priorities: &[i32]) -> Self {
        let shared = Arc::new(Shared {
            bells: priorities.iter().map(|_| AtomicU32::new(0)).collect(),
            arrived_ns: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let threads = priorities
            .iter()
            .enumerate()
            .map(|(place, &priority)| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let _ = schedule_fifo(priority);
                    pass_on(&shared, place);
                })
            })
            .collect();
        Self { shared, threads }
    }

    /// Nanoseconds from just before the first bell to the last thread running.
    pub fn run(&self) -> u64 {
        self.shared.arrived_ns.store(0, Ordering::Release);
        let start = monotonic_ns();
        ring(&self.shared.bells[0]);
        loop {
            let arrived = self.shared.arrived_ns.load(Ordering::Acquire);
            if arrived != 0 {
                return arrived.saturating_sub(start);
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.bells.iter().for_each(ring);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::AcqRel);
    futex_wake(bell);
}

fn pass_on(shared: &Shared, place: usize) {
    let mut heard = 0;
    loop {
        let bell = &shared.bells[place];
        while bell.load(Ordering::Acquire) == heard {
            let _ = futex_wait(bell, heard, None);
        }
        heard = bell.load(Ordering::Acquire);
        if shared.over.load(Ordering::Acquire) {
            return;
        }
        match shared.bells.get(place + 1) {
            Some(next) => ring(next),
            None => shared.arrived_ns.store(monotonic_ns(), Ordering::Release),
        }
    }
}
