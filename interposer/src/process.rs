//! What the library knows about the process in which it runs, and how a forked child starts over.
//!
//! The state of each folder is defined there, by a file that knows nothing about the process
//! ([`crate::state::activity::registry`], [`crate::state::objects`], [`crate::state::memory::state`]). It is put
//! together here, and what acts on it takes the [`Process`].
//!
//! The slots lie in memory that fork wipes, so a child sees at its first call that nothing is built, whether or not it
//! ran atfork handlers. It then builds everything anew and *leaks* what it inherited: dropping its parent's runtime
//! would act on file descriptions that both share, and a thread that does not exist in the child may hold any of the
//! old locks.
//!
//! A process that makes no CUDA context pays only two mappings for this, and a process that opens no driver file
//! nothing.

use crate::elf;
use crate::state::activity::registry::Contexts;
use crate::state::activity::slots::{self, PAGE};
use crate::state::activity::streams::StreamDevices;
use crate::state::activity::turns::Turns;
use crate::state::memory::state::Memory;
use crate::state::objects::Rm;
use crate::{clock, env, sys};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::Mutex;
use tidegate_abi::page::{
    ACTIVITY_BUSY, DEVICES, GATE_CLOSED, GATE_OPEN, LEASE_GIVEN, LEASE_NONE, LEASE_NUMBER,
    LEASE_WITHDRAWN, Page,
};
use tidegate_core::activity::Counts;
use tidegate_core::gate::{LaunchGate, Role};
use tidegate_proto::v1;

/// One process' state.
#[derive(Debug)]
pub struct Process {
    role: AtomicU32,
    /// How it began.
    pub start: Started,
    pub pages: Pages,
    /// How it stands with its agent.
    pub link: Link,
    /// Devices in use, one bit each.
    pub devices: AtomicU32,
    /// Iterations too close for the prober.
    pub turns: [Turns; DEVICES],
    /// What threads launched that are gone.
    pub retired: Retired,
    /// Contexts and streams.
    pub contexts: Mutex<Contexts>,
    /// The devices of those streams, for launches.
    pub stream_devices: StreamDevices,
    /// RM objects, and what the agent has not been told yet.
    pub rm: Mutex<Rm>,
    /// Wakes the reporter.
    pub bell: sys::Bell,
    /// Figures the agent sent.
    pub limits: Limits,
    /// What offline launches wait for.
    pub waits: Waits,
    /// Panics caught at the library's edges.
    pub panics: AtomicU64,
    /// KV memory.
    pub memory: Memory,
}

/// The pages of a process beside the one that launches look at.
#[derive(Debug)]
pub struct Pages {
    /// The page between agents; its gates say what holds without one.
    pub private: &'static Page,
    /// Those that threads have in their hands ([`Process::hold_page`]).
    hands: [AtomicPtr<Page>; HANDS],
}

/// How a process began.
#[derive(Debug)]
pub struct Started {
    /// What the environment wished for.
    pub wished: Role,
    /// Threads were started.
    pub threads: AtomicBool,
    /// A channel was made before any hooked call: whatever leads this program to the driver does not lead through the hooks,
    /// and its launches are not seen.
    pub unseen: AtomicBool,
    /// Counts are plain words; otherwise atomic adds.
    pub membarrier: bool,
}

/// How a process stands with its agent.
#[derive(Debug, Default)]
pub struct Link {
    /// Whether an agent's stream stands.
    pub attached: AtomicBool,
    /// Whether an agent was ever attached.
    pub ever: AtomicBool,
    /// Edges travel on the stream, because the agent's page did not come.
    pub stream_lane: AtomicBool,
}

/// Launches of threads that are gone.
#[derive(Debug, Default)]
pub struct Retired {
    /// Sums of their slots.
    pub counts: [Counts<AtomicU64>; DEVICES],
    /// Begins and ends of moving a slot's launches there: odd meanwhile.
    pub moves: AtomicU64,
}

/// Offline launches that wait.
#[derive(Debug, Default)]
pub struct Waits {
    /// Those that wait on the gate at this moment.
    pub waiting: AtomicU32,
    /// A thread looks whether there is work.
    pub looks: AtomicBool,
    /// When a launch first found no agent; 0: none has.
    pub without_agent_ns: AtomicU64,
}

/// Starts the library's threads, unless they run. Whoever calls a room gives it this: the rooms do not know
/// what runs above them.
pub type Start = fn(&'static Process);

/// Threads that use a page for longer than a launch does, and write what is of that page alone.
#[derive(Clone, Copy, Debug)]
pub enum Hand {
    /// The prober.
    Prober,
    /// The thread that looks whether there is work.
    Work,
}

const HANDS: usize = 2;

/// What the agent wants of the library, in nanoseconds.
#[derive(Debug)]
pub struct Limits {
    /// Prober period while busy.
    pub probe_interval: AtomicU64,
    /// Busy without a launch for this long is a suspect.
    pub busy_suspect: AtomicU64,
    /// Longest hold of a schedule call.
    pub schedule_hold: AtomicU64,
}

impl Process {
    /// The role as known now.
    #[inline]
    pub fn role(&self) -> Role {
        Role::from_word(self.role.load(Acquire))
    }

    /// Takes the role the agent gave.
    pub fn set_role(&self, role: Role) {
        self.role.store(role.to_word(), Release);
    }

    /// The page launches look at.
    pub fn page(&self) -> &'static Page {
        // SAFETY: set before the process value was published; a page is there for ever, though another may take its
        // place once no launch looks at it.
        unsafe { &*PAGE.load(Acquire) }
    }

    /// The page launches look at. No other takes its place until the thread with that hand takes the next, or lets go.
    pub fn hold_page(&self, hand: Hand) -> &'static Page {
        loop {
            let page = self.page();
            self.pages.hands[hand as usize].store(core::ptr::from_ref(page).cast_mut(), Relaxed);
            // Who looks for a place has made launches look elsewhere before it looks here.
            fence(SeqCst);
            if core::ptr::eq(page, self.page()) {
                return page;
            }
        }
    }

    /// The thread with that hand has no page any more.
    pub fn let_go(&self, hand: Hand) {
        self.pages.hands[hand as usize].store(core::ptr::null_mut(), Release);
    }

    /// The pages whose place no other may take.
    pub fn pages_in_use(&self) -> [*const Page; 1 + HANDS] {
        fence(SeqCst);
        let [prober, work] = [Hand::Prober, Hand::Work].map(|hand| {
            let page = self.pages.hands[hand as usize].load(Acquire);
            page.cast_const()
        });
        [core::ptr::from_ref(self.page()), prober, work]
    }

    /// The devices in use.
    pub fn seen_devices(&self) -> impl Iterator<Item = usize> + use<> {
        let seen = self.devices.load(Acquire);
        (0..DEVICES).filter(move |device| seen & (1 << device) != 0)
    }

    /// Notes a device; `true` the first time.
    pub fn see_device(&self, device: usize) -> bool {
        let bit = 1 << device;
        self.devices.fetch_or(bit, AcqRel) & bit == 0
    }

    /// Makes launches look at `page`.
    ///
    /// Its devices start busy: the agent then hears of no idle edge that was not proven on this very page. The old
    /// page is rung too, for who sleeps on it.
    pub fn swap_page(&self, page: &'static Page) {
        let now = clock::now_ns();
        if self.role() != Role::Ignore {
            for device in self.seen_devices() {
                let words = &page.devices[device];
                words.busy_since_ns.store(now, Relaxed);
                words.activity.fetch_or(ACTIVITY_BUSY, AcqRel);
            }
        }
        self.show(page);
        let old = PAGE.swap(core::ptr::from_ref(page).cast_mut(), SeqCst);
        // It may have changed before the page was shown.
        self.show(page);
        ring(page);
        // SAFETY: as in `page`.
        let old = unsafe { &*old };
        slots::carry_tallies(old, page);
        sys::futex_wake(&old.process.doorbell);
        for gate in &old.gates {
            sys::futex_wake(sys::low_half(&gate.gate));
        }
    }

    fn show(&self, page: &Page) {
        self.memory.show_in_flight(page);
        self.memory.show_unit(page);
    }

    /// Sets the lease of a device in the page between agents, which a process obeys whose agent's page did not come.
    pub fn set_private_lease(&self, device: usize, lease: &v1::Lease) {
        let Some(words) = self.pages.private.gates.get(device) else {
            return;
        };
        let (number, state) = match (lease.lease, lease.withdrawn) {
            (0, _) => (words.lease.load(Relaxed) >> LEASE_NUMBER, LEASE_NONE),
            (number, true) => (number, LEASE_WITHDRAWN),
            (number, false) => (number, LEASE_GIVEN),
        };
        let resident = lease
            .resident_layers
            .map_or(0, |layers| layers.saturating_add(1));
        words.lease_until_ns.store(lease.until_ns, Release);
        words.lease_units.store(lease.units, Release);
        words.lease_tokens.store(lease.tokens, Release);
        words.resident_layers.store(resident, Release);
        words.lease.store(number << LEASE_NUMBER | state, Release);
        sys::futex_wake(sys::low_half(&words.lease));
    }

    /// Forgets the leases of an agent that is gone: the next one numbers its own from the same number on.
    pub fn forget_private_leases(&self) {
        for (device, memory) in self.pages.private.memory.iter().enumerate() {
            self.set_private_lease(device, &v1::Lease::default());
            memory.leased.store(0, Release);
        }
    }

    /// Sets the gates of the page between agents, and of a process whose agent's page did not come.
    pub fn set_private_gates(&self, state: LaunchGate) {
        for device in 0..self.pages.private.gates.len() {
            self.set_private_gate(device, state);
        }
    }

    /// Sets one of them.
    pub fn set_private_gate(&self, device: usize, state: LaunchGate) {
        let Some(gate) = self.pages.private.gates.get(device) else {
            return;
        };
        let low = match state {
            LaunchGate::Open => GATE_OPEN,
            LaunchGate::Closed => GATE_CLOSED,
        };
        let next = (gate.gate.load(Relaxed) & !3).wrapping_add(4) | low;
        gate.gate.store(next, Release);
        sys::futex_wake(sys::low_half(&gate.gate));
    }
}

/// Raises the doorbell of a page and wakes who sleeps on it.
pub fn ring(page: &Page) {
    page.process.doorbell.fetch_add(1, AcqRel);
    sys::futex_wake(&page.process.doorbell);
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
static DISABLED: AtomicU32 = AtomicU32::new(0);

const READY: u32 = 2;

/// Whether another copy of the library comes first in the search order: it has the application's calls.
fn is_second_copy() -> bool {
    // dlsym finds this library's own, since it is linked with -Bsymbolic.
    let other = elf::function(c"tidegate_hooks");
    !other.is_null() && elf::is_before_own(other)
}

/// Whether `TIDEGATE_DISABLE`, or another copy of it, keeps the library out.
pub fn disabled() -> bool {
    match DISABLED.load(Relaxed) {
        0 => {
            let disabled = env::disabled() || is_second_copy();
            DISABLED.store(1 + u32::from(disabled), Relaxed);
            disabled
        }
        known => known == 2,
    }
}

/// The process, if anything was built in it (not in its parent).
pub fn known() -> Option<&'static Process> {
    (slots::all()?.state.load(Acquire) == READY)
        // SAFETY: stored before READY was, and leaked.
        .then(|| unsafe { PROCESS.load(Acquire).as_ref() })
        .flatten()
}

/// The process, built if need be; `None` when the library is switched off or memory is refused.
pub fn process() -> Option<&'static Process> {
    match known() {
        Some(process) => Some(process),
        None if disabled() => None,
        None => build(),
    }
}

#[cold]
fn build() -> Option<&'static Process> {
    let slots = slots::mapped()?;
    loop {
        match slots.state.compare_exchange(0, 1, AcqRel, Acquire) {
            Ok(_) => break,
            Err(READY) => return known(),
            Err(_) => std::thread::yield_now(),
        }
    }
    let process = private_page().map(|private| {
        let wished = env::role();
        let process = Process {
            role: AtomicU32::new(match wished {
                Role::Offline => Role::Offline.to_word(),
                _ => Role::Unknown.to_word(),
            }),
            start: Started {
                wished,
                threads: AtomicBool::new(false),
                unseen: AtomicBool::new(false),
                membarrier: sys::Membarrier::register(),
            },
            pages: Pages {
                private,
                hands: [const { AtomicPtr::new(core::ptr::null_mut()) }; HANDS],
            },
            link: Link::default(),
            devices: AtomicU32::new(0),
            turns: Default::default(),
            retired: Retired::default(),
            contexts: Mutex::default(),
            stream_devices: StreamDevices::default(),
            rm: Mutex::default(),
            bell: sys::Bell::default(),
            limits: Limits {
                probe_interval: AtomicU64::new(500_000),
                busy_suspect: AtomicU64::new(5_000_000_000),
                schedule_hold: AtomicU64::new(tidegate_core::gate::SCHEDULE_HOLD_NS),
            },
            waits: Waits::default(),
            panics: AtomicU64::new(0),
            memory: Memory::default(),
        };
        process.set_private_gates(match wished {
            Role::Offline => LaunchGate::Closed,
            _ => LaunchGate::Open,
        });
        PAGE.store(core::ptr::from_ref(private).cast_mut(), Release);
        slots::announce_anew();
        &*Box::leak(Box::new(process))
    });
    match process {
        Some(process) => {
            PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
            slots.state.store(READY, Release);
        }
        None => slots.state.store(0, Release),
    }
    process
}

fn private_page() -> Option<&'static Page> {
    // SAFETY: a fresh anonymous mapping; no existing memory is named.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            size_of::<Page>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: page-aligned, zeroed, of this size and never unmapped; every field is an atomic.
    (at != libc::MAP_FAILED).then(|| unsafe { &*at.cast::<Page>() })
}

/// Runs `f`; a panic in it is counted and answered with `None`.
pub fn guarded<T>(f: impl FnOnce() -> T) -> Option<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    if result.is_err()
        && let Some(process) = known()
    {
        process.panics.fetch_add(1, Relaxed);
    }
    result.ok()
}
