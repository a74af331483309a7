//! A trainer's leases: what it could run next, the wait before a unit, and its report after one.
//!
//! [`tidegate_core::lease`] decides. The words are in the page, also in a process that has no page of an agent. The
//! reporter then writes them into the page that is used between agents, and sends on the stream what they say.

use super::answered::answered;
use crate::activity::gate;
use crate::clock;
use crate::process::{Process, ring};
use crate::sys::{self, Waited};
use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use tidegate_abi::page::{
    DEVICES, LEASED_NUMBER, LEASED_OVER, LEASED_UNITS, Page, UNIT_BACKWARD, UNIT_TOKENS,
};
use tidegate_core::gate::{Admission, LaunchGate, RECHECK_NS, Role};
use tidegate_core::lease::{self, Lent, Next, Seen};
use tidegate_proto::v1::{self, client_event::Event};

/// Of `tg_leased`: nothing is said.
const UNSAID: u32 = u32::MAX;

/// `tg_leased`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    until_ns: u64,
    tokens: u64,
    units: u32,
    resident_layers: u32,
}
const _: () = assert!(size_of::<Leased>() == 24);

impl Leased {
    /// What may run; `lent` is `None` where no lease is needed.
    fn new(lent: Option<Lent>, resident: u64) -> Self {
        let least = |value: u64| u32::try_from(value).unwrap_or(UNSAID);
        Self {
            until_ns: lent.map_or(0, |lent| lent.until_ns),
            tokens: lent.map_or(0, |lent| lent.tokens),
            units: lent.map_or(UNSAID, |lent| least(lent.units)),
            resident_layers: resident.checked_sub(1).map_or(UNSAID, least),
        }
    }
}

/// What one device of a process is asked and says.
struct Device {
    process: &'static Process,
    page: &'static Page,
    at: usize,
}

impl Device {
    fn of(process: &'static Process, device: u32) -> Result<Self, c_int> {
        let at = usize::try_from(device).unwrap_or(usize::MAX);
        if at >= DEVICES {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            process,
            page: process.page(),
            at,
        })
    }

    fn seen(&self) -> Option<Seen> {
        Seen::of(&self.page.gates[self.at])
    }

    fn leased(&self) -> &'static AtomicU64 {
        &self.page.memory[self.at].leased
    }

    fn under(&self) -> &'static (AtomicU64, AtomicU64) {
        &self.process.memory.leased.under[self.at]
    }

    fn unit_ns(&self) -> u64 {
        self.process.memory.leased.unit_ns.load(Acquire)
    }

    /// Says that the lease is over.
    fn over(&self, word: u64) {
        self.leased().store(word, SeqCst);
        ring(self.page);
        if self.process.link.stream_lane.load(Acquire) {
            self.process.bell.ring();
        }
    }
}

/// Says the unit in the page that launches look at.
fn show(process: &Process, unit: u64) -> u64 {
    let before = process.memory.leased.unit.swap(unit, SeqCst);
    // A page that is shown from now on takes it from there.
    process.memory.show_unit(process.page());
    before
}

/// `tg_unit`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_unit(
    device: u32,
    backward: u32,
    tokens: u64,
    most: u32,
    unit_ns: u64,
) -> c_int {
    answered(|process| {
        let device = Device::of(process, device)?;
        process.memory.leased.unit_ns.store(unit_ns, SeqCst);
        let before = show(process, lease::unit(backward != 0, tokens, most));
        if (lease::most(before) == 0) != (most == 0) {
            ring(device.page);
            if process.link.stream_lane.load(Acquire) {
                process.bell.ring();
            }
        }
        if most == 0
            && let Some(seen) = device.seen()
            && let Some(word) = lease::given_back(&seen, device.leased().load(Acquire))
        {
            device.over(word);
        }
        Ok(())
    })
}

/// `tg_lease`.
///
/// # Safety
/// `lease` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_lease(
    device: u32,
    wait_ms: u32,
    lease: *mut Leased,
    size: usize,
) -> c_int {
    answered(|process| {
        if lease.is_null() || size < size_of::<Leased>() {
            return Err(libc::EINVAL);
        }
        let leased = waited(process, device, wait_ms)?;
        // SAFETY: this function's contract; a later header's struct begins as this one.
        unsafe { lease.write_unaligned(leased) };
        Ok(())
    })
}

/// Counts among those that wait at the gate while it lives.
struct Waiting(&'static Process);

impl Waiting {
    fn begins(process: &'static Process) -> Self {
        if process.waits.waiting.fetch_add(1, AcqRel) == 0 {
            process.bell.ring();
        }
        Self(process)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.0.waits.waiting.fetch_sub(1, AcqRel) == 1 {
            self.0.bell.ring();
        }
    }
}

/// Waits until a unit may begin.
fn waited(process: &'static Process, device: u32, wait_ms: u32) -> Result<Leased, c_int> {
    let end = match wait_ms {
        u32::MAX => u64::MAX,
        limit => clock::now_ns().saturating_add(u64::from(limit) * 1_000_000),
    };
    let mut waits = None;
    loop {
        let device = Device::of(process, device)?;
        let under = device.under();
        under.0.store(0, SeqCst);
        if process.role() != Role::Offline {
            return Ok(Leased::new(None, 0));
        }
        let Some(seen) = device.seen() else {
            core::hint::spin_loop();
            continue;
        };
        let now = clock::now_ns();
        match lease::next(&seen, device.leased().load(Acquire), device.unit_ns(), now) {
            Next::Free => return Ok(Leased::new(None, seen.resident)),
            Next::Run(lent) => {
                under
                    .1
                    .store(device.page.header.session.load(Acquire), SeqCst);
                under.0.store(lent.number + 1, SeqCst);
                return Ok(Leased::new(Some(lent), seen.resident));
            }
            Next::Over(word) => {
                device.over(word);
                continue;
            }
            Next::Wait => {}
        }
        // As a launch does, which would wait behind the same gate.
        match gate::without_agent(process) {
            Admission::Wait => {}
            Admission::Pass => {
                process.set_private_gates(LaunchGate::Open);
                continue;
            }
            Admission::Fail => return Ok(Leased::new(None, 0)),
        }
        if now >= end {
            return Err(libc::EAGAIN);
        }
        let limit = RECHECK_NS.min(end - now);
        let words = &device.page.gates[device.at];
        let sleeps = [(&words.lease, seen.lease), (&words.gate, seen.gate)];
        if sys::futex_wait_either(sleeps, limit) == Waited::Interrupted {
            return Err(libc::EINTR);
        }
        // Between two iterations of online nobody needs to know that it waits.
        if clock::now_ns().saturating_sub(now) >= RECHECK_NS {
            gate::say_why(process);
            waits = waits.or_else(|| Some(Waiting::begins(process)));
        }
    }
}

/// `tg_unit_done`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_unit_done(device: u32) -> c_int {
    answered(|process| {
        let device = Device::of(process, device)?;
        let left = lease::one_less(process.memory.leased.unit.load(Acquire));
        show(process, left);
        let under = device.under();
        let number = under.0.swap(0, SeqCst);
        let session = device.page.header.session.load(Acquire);
        if number == 0 || under.1.load(Acquire) != session {
            return Ok(());
        }
        let said = device.leased().load(Acquire);
        let (word, over) = lease::done(
            device.seen().as_ref(),
            said,
            number - 1,
            lease::most(left) > 0,
            device.unit_ns(),
            clock::now_ns(),
        );
        if over {
            device.over(word);
        } else {
            device.leased().store(word, SeqCst);
        }
        Ok(())
    })
}

/// What an agent without a page has been told.
#[derive(Debug, Default)]
pub(super) struct Told {
    unit: (u64, u64),
    over: [u64; DEVICES],
}

impl Told {
    fn unit(process: &Process) -> (u64, u64) {
        let memory = &process.memory;
        (
            memory.leased.unit.load(Acquire),
            memory.leased.unit_ns.load(Acquire),
        )
    }

    /// Sends what is new.
    pub(super) fn deliver(&mut self, process: &Process, send: &mut impl FnMut(Event)) {
        if !process.link.stream_lane.load(Acquire) {
            return;
        }
        let (unit, unit_ns) = Self::unit(process);
        if self.unit != (unit, unit_ns) {
            self.unit = (unit, unit_ns);
            send(Event::TrainingUnit(v1::TrainingUnit {
                most: u32::try_from(lease::most(unit)).unwrap_or(u32::MAX),
                backward: unit & UNIT_BACKWARD != 0,
                tokens: unit & UNIT_TOKENS,
                unit_ns,
            }));
        }
        for ((slot, told), words) in (0..).zip(&mut self.over).zip(&process.pages.private.memory) {
            let word = words.leased.load(Acquire);
            if word & LEASED_OVER != 0 && word != *told {
                *told = word;
                send(Event::LeaseOver(v1::LeaseOver {
                    slot,
                    lease: word >> LEASED_NUMBER,
                    units: word & LEASED_UNITS,
                }));
            }
        }
    }

    /// Whether something is new.
    pub(super) fn is_unsaid(&self, process: &Process) -> bool {
        process.link.stream_lane.load(Acquire) && self.unit != Self::unit(process)
    }
}
