//! Whether an offline process has work. The library checks this while the agent asks, and the agent asks while several
//! jobs share a GPU.
//!
//! It works like the prober of an online process, but in a thread of its own: a query of the driver may wait behind a
//! lock that the application holds while its channels are disabled, and the prober must acknowledge gate words
//! meanwhile. Work that was launched and has not ended counts, whether it may run or not.
//!
//! Launches do not ring for this: the thread finds the busy edge at its next look.

use super::gate;
use super::prober::{Watch, relax, round};
use crate::process::{self, Hand, Process};
use crate::real::driver;
use crate::sys;
use crate::threads::{BlockSignals, spawn};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use tidegate_abi::page::{ACTIVITY_BUSY, DEVICES, Page};
use tidegate_core::gate::Role;

/// Whatever the agent says, no oftener.
const SHORTEST_NS: u64 = 1_000_000;
/// And no more seldom, so that the thread soon knows that it is asked no longer.
const LONGEST_NS: u64 = 1_000_000_000;

/// Starts the thread if the agent asks and it does not run. By the prober only.
pub fn begin(process: &'static Process, page: &Page) {
    let asked = page.agent.work_probe_ns.load(Acquire) != 0;
    if !asked || process.waits.looks.swap(true, AcqRel) {
        return;
    }
    let quiet = BlockSignals::new();
    spawn("tidegate-work", move || run(process));
    drop(quiet);
}

/// Looks until it is asked no longer.
fn run(process: &'static Process) {
    let mut watches = [Watch::default(); DEVICES];
    let mut told = [0; DEVICES];
    let mut relaxed = false;
    loop {
        let page = process.hold_page(Hand::Work);
        let every = page.agent.work_probe_ns.load(Acquire);
        if every == 0 || process.role() != Role::Offline {
            process.let_go(Hand::Work);
            process.waits.looks.store(false, Release);
            return;
        }
        // No question while memory moves.
        if let (Some(driver), false) = (driver::driver(), gate::held(process)) {
            if !relaxed {
                relaxed = relax(driver);
            }
            for device in process.seen_devices() {
                // Rings an idle edge itself.
                round(process, driver, page, device, &mut watches[device]);
                let word = page.devices[device].activity.load(Acquire);
                if core::mem::replace(&mut told[device], word) != word && word & ACTIVITY_BUSY != 0
                {
                    process::ring(page);
                }
            }
        }
        sys::sleep_ns(every.clamp(SHORTEST_NS, LONGEST_NS));
    }
}
