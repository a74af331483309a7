//! A process whose launches no hook sees, because something leads it to the driver past the hooks.
//!
//! Nobody can know when its devices are idle. An online process therefore counts as busy for as long as it has a
//! channel. An offline one is stopped by its channels, like any other.

use crate::clock;
use crate::process::{self, Process};
use crate::real::driver::Driver;
use crate::sys;
use core::sync::atomic::Ordering::{Acquire, Release};
use tidegate_abi::page::{DEVICES, Page};
use tidegate_core::activity::busy_edge;
use tidegate_core::gate::Role;

/// How often its devices are looked for.
pub const LOOK_NS: u64 = 5_000_000;
/// How long, before all that it can use count as its own.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What is looked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    begun_ns: u64,
}

/// Whether launches of the process are not seen.
pub fn is(process: &Process) -> bool {
    process.start.unseen.load(Acquire)
}

/// Whether such a process may have work on its devices.
pub fn may_work(process: &Process) -> bool {
    is(process) && !sys::lock(&process.rm).graph.owners().is_empty()
}

impl Search {
    /// Makes the devices of an online process busy while it has a channel; whether this has to be looked at again soon.
    pub fn look(&mut self, process: &Process, driver: &Driver, page: &Page) -> bool {
        if !is(process) || process.role() != Role::Online {
            return false;
        }
        if may_work(process) {
            let now = clock::now_ns();
            if process.devices.load(Acquire) == 0 {
                self.see(process, driver, now);
            }
            for device in process.seen_devices() {
                let words = &page.devices[device];
                if busy_edge(&words.activity).is_some() {
                    words.busy_since_ns.store(now, Release);
                    process::ring(page);
                }
            }
        }
        true
    }

    /// Notes the devices that it uses. The driver tells of primary contexts only: without one for so long, the program has
    /// made another.
    fn see(&mut self, process: &Process, driver: &Driver, now: u64) {
        if self.begun_ns == 0 {
            self.begun_ns = now;
        }
        let all = now.saturating_sub(self.begun_ns) >= PATIENCE_NS;
        let devices = (0..DEVICES).map_while(|at| has_context(driver, at).map(|has| (at, has)));
        for (device, _) in devices.filter(|(_, has)| all || *has) {
            process.see_device(device);
        }
        process.bell.ring();
    }
}

/// Whether the device has a primary context; none: there is no such device.
fn has_context(driver: &Driver, device: usize) -> Option<bool> {
    let (mut flags, mut active) = (0, 0);
    let device = i32::try_from(device).ok()?;
    // SAFETY: both out-parameters are live; the call needs no context.
    unsafe { (driver.primary_state)(device, &raw mut flags, &raw mut active) }
        .is_ok()
        .then_some(active != 0)
}
