//! One gate before every allocation of device memory, whichever function makes it.
//!
//! An offline process gets no more than its share. If the driver has no memory, the library asks the agent, and the
//! thread waits. An online allocation is requested again while the driver refuses what the agent granted.

use super::talk;
use crate::activity::contexts;
use crate::activity::hold;
use crate::process::{guarded, known};
use crate::real::driver;
use crate::real::row::Row;
use crate::state::memory::created::Created;
use crate::{clock, sys};
use tidegate_abi::cuda::CUresult;
use tidegate_abi::page::DEVICES;
use tidegate_abi::vmm::{DEVICE, Properties};
use tidegate_core::gate::Role;

/// Where memory is to be.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// On the device of the thread's current context.
    Current,
    /// On the device of that number.
    Device(usize),
}

/// What an allocation asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    place: Place,
    bytes: u64,
    cache: bool,
}

impl Wants {
    /// Memory in the current context.
    pub const fn here(bytes: u64) -> Self {
        let place = Place::Current;
        Self {
            place,
            bytes,
            cache: false,
        }
    }

    /// A cache, from which may be taken.
    pub const fn cache(self, cache: bool) -> Self {
        Self { cache, ..self }
    }

    /// Its device, once it is known.
    fn device(self) -> Option<usize> {
        match self.place {
            Place::Current => contexts::current(driver::driver()?).map(|(_, device)| device),
            Place::Device(device) => Some(device),
        }
    }

    /// Whether an offline process' share has no room for it.
    fn is_beyond_share(self) -> bool {
        let beyond = || {
            let process = known().filter(|process| process.role() == Role::Offline)?;
            let device = self.device()?;
            let share = process.memory.shown.sizes.share_of(device)?;
            let state = sys::lock(&process.memory.state);
            // What was taken of a cache is others' now, and that is no reason to refuse an engine its workspace.
            let held = if self.cache {
                state.held_bytes(device)
            } else {
                state.own_bytes(device)
            };
            Some(held.saturating_add(self.bytes) > share)
        };
        guarded(|| sys::keeping_errno(beyond)).flatten() == Some(true)
    }
}

/// Makes an allocation. The call says how it went, and the room that it needs if that may be asked for.
pub fn through(
    row: &'static Row,
    wants: Wants,
    call: impl Fn() -> (CUresult, Option<u64>),
) -> CUresult {
    // Who waits for room is not inside of it: a reclaim may go on.
    let attempt = |granted: bool| {
        hold::around(row, || {
            if !granted && wants.is_beyond_share() {
                // A cache that is too large would only be taken from.
                let needs = Some(wants.bytes).filter(|_| !wants.cache);
                return (CUresult::OUT_OF_MEMORY, needs);
            }
            call()
        })
    };
    let mut patience = Patience::default();
    let mut answer = attempt(false);
    while let (CUresult::OUT_OF_MEMORY, Some(needs)) = answer {
        if !patience.is_granted(wants, needs) {
            break;
        }
        answer = attempt(true);
    }
    answer.0
}

/// How long an online process waits for memory that others have: longer than the agent has others give it up.
pub const fn online_patience_ns(bytes: u64) -> u64 {
    /// Longer than any reclaim, and short beside what an allocation that fails costs an engine.
    const LEAST_NS: u64 = 500_000_000;
    /// What is taken in many reclaims takes longer.
    const BYTES_A_NANOSECOND: u64 = 4;
    LEAST_NS.saturating_add(bytes / BYTES_A_NANOSECOND)
}

/// How long an allocation that the driver refuses is asked for.
#[derive(Default)]
struct Patience {
    until_ns: Option<u64>,
    pause_ns: u64,
}

impl Patience {
    /// Asks the agent, and waits; whether there is room.
    fn is_granted(&mut self, wants: Wants, bytes: u64) -> bool {
        let granted = guarded(|| sys::keeping_errno(|| self.ask(wants, bytes)));
        granted.flatten() == Some(true)
    }

    fn ask(&mut self, wants: Wants, bytes: u64) -> Option<bool> {
        /// Longer than the agent has others give up what they have too much.
        const OFFLINE_NS: u64 = 30_000_000_000;
        /// A program that allocates at once is attached later.
        const ATTACH_NS: u64 = 500_000_000;
        /// Between the driver's refusal of what was granted and the next demand; twice as long each time.
        const PAUSE_NS: u64 = 1_000_000;
        let process = known()?;
        let patience_ns = match process.role() {
            Role::Online => online_patience_ns(bytes),
            Role::Offline
                if self.until_ns.is_none()
                    && talk::is_raised_within(&process.link.attached, ATTACH_NS) =>
            {
                OFFLINE_NS
            }
            _ => return None,
        };
        let device = wants.device()?;
        let until_ns = match self.until_ns {
            Some(until_ns) => {
                sys::sleep_ns(self.pause_ns);
                self.pause_ns *= 2;
                until_ns
            }
            None => {
                self.pause_ns = PAUSE_NS;
                clock::now_ns().saturating_add(patience_ns)
            }
        };
        self.until_ns = Some(until_ns);
        let left_ns = until_ns.saturating_sub(clock::now_ns());
        (left_ns > 0).then(|| talk::ask(process, device, bytes, left_ns))
    }
}

/// `cuMemCreate`. Memory of the host is nobody's share.
pub fn create(
    row: &'static Row,
    handle: *mut u64,
    bytes: usize,
    properties: *const Properties,
    call: impl Fn() -> CUresult,
) -> CUresult {
    // SAFETY: null or the caller's properties, which the driver reads in the same call.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = location
        .filter(|location| location.kind == DEVICE)
        .and_then(|location| usize::try_from(location.id).ok())
        .filter(|device| *device < DEVICES);
    let Some(device) = device else {
        return call();
    };
    let bytes = bytes as u64;
    let wants = Wants {
        place: Place::Device(device),
        bytes,
        cache: false,
    };
    through(row, wants, || {
        let result = call();
        if result.is_ok() && !handle.is_null() {
            // SAFETY: the driver wrote it and reported success.
            let handle = unsafe { handle.read() };
            note(|created| created.made(handle, (device, bytes)));
        }
        (result, Some(bytes))
    })
}

fn note(f: impl FnOnce(&mut Created)) {
    guarded(|| {
        sys::keeping_errno(|| {
            if let Some(process) = known() {
                f(&mut sys::lock(&process.memory.state).created);
                process.memory.changed();
            }
        });
    });
}

/// A call that gives handles or mappings back: a number is another's as soon as the driver has it back.
fn giving_back(
    row: &'static Row,
    call: impl FnOnce() -> CUresult,
    f: impl FnOnce(&mut Created),
) -> CUresult {
    hold::around(row, || {
        let Some(process) = known() else {
            return call();
        };
        let mut state = sys::keeping_errno(|| sys::lock(&process.memory.state));
        let result = call();
        if result.is_ok() {
            sys::keeping_errno(|| {
                guarded(|| f(&mut state.created));
                drop(state);
                process.memory.changed();
            });
        }
        result
    })
}

/// `cuMemMap`, after it was made.
pub fn mapped(at: u64, bytes: usize, handle: u64, result: CUresult) -> CUresult {
    if result.is_ok() {
        note(|created| created.mapped(at, bytes as u64, handle));
    }
    result
}

/// `cuMemUnmap`.
pub fn unmap(
    row: &'static Row,
    at: u64,
    bytes: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    giving_back(row, call, |created| created.unmapped(at, bytes as u64))
}

/// `cuMemRelease`.
pub fn release(row: &'static Row, handle: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    giving_back(row, call, |created| created.released(handle))
}

/// `cuMemRetainAllocationHandle`, after the driver has given one for an address.
pub fn retained(handle: *mut u64, at: u64) {
    if !handle.is_null() {
        // SAFETY: the driver wrote it and reported success.
        let handle = unsafe { handle.read() };
        note(|created| created.retained(handle, at));
    }
}
