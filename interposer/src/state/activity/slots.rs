//! A thread's own counts, and the few instructions that a launch costs while its device is busy.
//!
//! A slot belongs to one thread and one device. The thread finds its current slot in one initial-exec thread-local
//! word, which a stable compiler gives a cdylib only by assembly (`thread_local!` would call `__tls_get_addr` on every
//! launch). All slots are in one array that a forked child finds zeroed. There `last_stream` matches nothing, so the
//! child takes the slow path and starts over before it can touch its parent's page.
//!
//! A launch is on the hot path if the thread's slot is for this stream. Then the device is known, and the stream is
//! already in the slot's list of touched streams. Streams are named as the driver names them, with 0 replaced by what
//! it stands for (1 legacy, 2 per thread).

use crate::sys::{self, Membarrier};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tidegate_abi::page::{
    DEVICES, DeviceWords, GateWords, Page, TALLIES, TALLY_COUNT, TALLY_DEVICE, Tallies,
};
use tidegate_core::activity::{Counts, enter_if_busy};
use tidegate_core::capture::Announce;
use tidegate_core::witness::Witness;

/// Threads that get a slot of their own, times devices they use.
pub const SLOTS: usize = 1024;
/// Streams a slot can tell apart.
pub const STREAMS: usize = 8;
/// Rows of the table, from the first on, whose calls a thread counts in its own slot.
pub const HOT_ROWS: usize = 110;

/// The page launches look at.
pub static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
/// Captures and the prober.
pub static ANNOUNCE: Announce<AtomicU64> = Announce::new(AtomicU64::new(0), AtomicU64::new(0));

/// One thread on one device.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Slot {
    /// Launches.
    pub counts: Counts<AtomicU64>,
    /// The stream the hot path knows; 0: none.
    pub last_stream: AtomicU64,
    /// Byte offset of the device's [`DeviceWords`] in the page.
    pub words_at: AtomicU64,
    /// The graph last launched.
    pub graph: AtomicU64,
    /// The owner's thread pointer: who it is, without a system call.
    pub thread: AtomicU64,
    /// Thread id; 0: free.
    pub owner: AtomicU32,
    /// Device ordinal.
    pub device: AtomicU32,
    /// More streams than the list holds.
    pub all_streams: AtomicU32,
    /// A touched stream may wait for the host.
    pub waits_on_host: AtomicU32,
    /// Byte offset in the page of the word that shows the agent its launches.
    pub tally_at: AtomicU64,
    /// What that word has beside them: the device, and the launches of those that had the slot before.
    pub tally_base: AtomicU64,
    /// Launches into the thread's own default stream, and how many of them were seen done.
    pub thread_stream: Counts<AtomicU64>,
    /// What says it besides.
    pub witness: Witness<AtomicU64>,
    /// When the last synchronising call returned, and `entered` at that time.
    pub sync_ns: AtomicU64,
    /// See `sync_ns`.
    pub sync_entered: AtomicU64,
    /// Touched streams.
    pub streams: [AtomicU64; STREAMS],
    /// Calls per row of the table.
    pub calls: [AtomicU64; HOT_ROWS],
}

/// Every slot. The last [`DEVICES`] are shared by threads that found no other.
#[repr(C)]
#[derive(Debug)]
pub struct Slots {
    /// 0: not built, 1: being built, 2: ready.
    pub state: AtomicU32,
    /// Slots below this may be in use.
    pub high: AtomicU32,
    /// Slots of one thread each.
    pub own: [Slot; SLOTS],
    /// One per device, for everybody else.
    pub shared: [Slot; DEVICES],
}

static ALL: AtomicPtr<Slots> = AtomicPtr::new(core::ptr::null_mut());

/// Every slot, once the process is known.
pub fn all() -> Option<&'static Slots> {
    // SAFETY: null or a mapping that is never unmapped and valid when zeroed.
    unsafe { ALL.load(Ordering::Acquire).as_ref() }
}

/// Every slot, mapped with the first call; `None`: memory is refused.
pub fn mapped() -> Option<&'static Slots> {
    if let Some(slots) = all() {
        return Some(slots);
    }
    let fresh = sys::map_private(size_of::<Slots>())?.cast::<Slots>();
    let wiped = sys::wipe_on_fork(fresh.cast(), size_of::<Slots>(), wipe);
    let stored = if wiped {
        sys::publish(&ALL, fresh)
    } else {
        core::ptr::null_mut()
    };
    if stored != fresh {
        // SAFETY: mapped above with this size and shown to nobody.
        unsafe { libc::munmap(fresh.cast(), size_of::<Slots>()) };
    }
    // SAFETY: as in `all`.
    unsafe { stored.as_ref() }
}

/// Runs in a forked child where the kernel does not wipe: the one thread there is has every slot to itself.
unsafe extern "C" fn wipe() {
    let slots = ALL.load(Ordering::Acquire);
    if !slots.is_null() {
        // SAFETY: a mapping of this size, and valid when zeroed.
        unsafe { sys::map_anew(slots.cast(), size_of::<Slots>()) };
    }
}

/// In a forked child nobody captures and nobody probes.
pub fn announce_anew() {
    while ANNOUNCE.capturing() {
        ANNOUNCE.capture_ended();
    }
    while ANNOUNCE.probing() {
        ANNOUNCE.probe_ended();
    }
}

core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl tidegate_slot_of_thread",
    ".hidden tidegate_slot_of_thread",
    ".type tidegate_slot_of_thread, @object",
    ".size tidegate_slot_of_thread, 8",
    "tidegate_slot_of_thread:",
    ".zero 8",
    ".popsection",
);

/// The calling thread's current slot, or null.
#[inline(always)]
pub fn current() -> *const Slot {
    let slot: *const Slot;
    // SAFETY: reads the calling thread's own word, whose offset the loader put into the GOT.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + tidegate_slot_of_thread@GOTTPOFF]",
            "mov {at}, qword ptr fs:[{at}]",
            at = out(reg) slot,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    slot
}

/// Makes `slot` the calling thread's current one; null: the next launch takes the slow path.
pub fn set_current(slot: *const Slot) {
    // SAFETY: writes the calling thread's own word.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + tidegate_slot_of_thread@GOTTPOFF]",
            "mov qword ptr fs:[{at}], {slot}",
            at = out(reg) _,
            slot = in(reg) slot,
            options(nostack, preserves_flags),
        );
    }
}

impl Slot {
    /// Whether the calling thread owns it. A slot that a forked child inherited is nobody's, or one
    /// that another thread of the child claimed.
    pub fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0
            && self.thread.load(Ordering::Relaxed) == thread_pointer()
    }

    /// Gives the slot, which is the `nth`, a word of the page for its launches on a device. One that shows launches on
    /// another device stays as it is; the launches are then in the prober's sums only, as of slots beyond the words.
    pub fn take_tally(&self, nth: usize, device: usize) {
        let base = self.tally_base.load(Ordering::Relaxed);
        let fits = base & TALLY_COUNT == 0 || base >> TALLY_DEVICE == device as u64;
        let place = if fits { nth.min(TALLIES) } else { TALLIES };
        if base & TALLY_COUNT == 0 {
            let tag = (device as u64) << TALLY_DEVICE;
            self.tally_base.store(tag, Ordering::Relaxed);
        }
        self.tally_at
            .store(Tallies::offset(place) as u64, Ordering::Relaxed);
    }

    /// Keeps the launches of an owner that is gone in the word.
    pub fn keep_tally(&self, launches: u64) {
        if self.tally_at.load(Ordering::Relaxed) != Tallies::offset(TALLIES) as u64 {
            self.tally_base.fetch_add(launches, Ordering::Relaxed);
        }
    }

    /// Shows the agent the launches of the thread, which calls it.
    ///
    /// # Safety
    /// The slot was given a word by [`Self::take_tally`], and `page` is a page.
    #[inline(always)]
    pub unsafe fn show(&self, page: *const Page) {
        let at = self.tally_at.load(Ordering::Relaxed) as usize;
        let launches = self.counts.entered.load(Ordering::Relaxed);
        let base = self.tally_base.load(Ordering::Relaxed);
        // SAFETY: the offset is that of a word of the page's.
        let word = unsafe { &*page.byte_add(at).cast::<AtomicU64>() };
        word.store(base.wrapping_add(launches), Ordering::Relaxed);
    }
}

/// Shows in a new page what threads have launched until then. A thread that launches meanwhile is ahead.
pub fn carry_tallies(old: &Page, new: &Page) {
    for nth in 0..TALLIES {
        if let (Some(old), Some(new)) = (old.tallies.word(nth), new.tallies.word(nth)) {
            new.fetch_max(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    for (old, new) in old.devices.iter().zip(&new.devices) {
        new.total
            .fetch_max(old.total.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The calling thread's pointer, different from that of every other thread alive.
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: the first word of the thread's control block is its own address (x86-64 psABI).
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    at
}

/// Makes the calling thread's next launch take the slow path: its stream may mean another device.
pub fn forget_stream() {
    // SAFETY: null or into the array, which is never unmapped.
    match unsafe { current().as_ref() } {
        Some(slot) if slot.is_own() => slot.last_stream.store(0, Ordering::Relaxed),
        _ => set_current(core::ptr::null()),
    }
}

/// Names the stream 0 by what it stands for.
#[inline(always)]
pub const fn named<const THREAD: bool>(stream: usize) -> u64 {
    if stream != 0 {
        stream as u64
    } else if THREAD {
        2
    } else {
        1
    }
}

/// From a device's words to its gate.
pub const GATE_FROM_DEVICE: usize = DEVICES * size_of::<DeviceWords>();
const _: () = assert!(size_of::<GateWords>() == size_of::<DeviceWords>());
const _: () = assert!(
    core::mem::offset_of!(Page, gates) == core::mem::offset_of!(Page, devices) + GATE_FROM_DEVICE
);

/// Begins a launch on the hot path; `None`: nothing was begun, take the slow one.
#[inline(always)]
pub fn enter(stream: u64, row: usize) -> Option<&'static Slot> {
    // SAFETY: a thread's slot pointer is null or into the array, which is never unmapped.
    let slot = unsafe { current().as_ref() }?;
    if slot.last_stream.load(Ordering::Relaxed) != stream || ANNOUNCE.capturing() {
        return None;
    }
    let page = PAGE.load(Ordering::Acquire);
    let at = slot.words_at.load(Ordering::Relaxed) as usize;
    // SAFETY: `last_stream` is set only after the page pointer and `words_at` were, the latter to the
    // offset of one of the page's `DEVICES` device words; pages are never unmapped.
    let (activity, gate) = unsafe {
        let words = page.byte_add(at).cast::<DeviceWords>();
        let gates = page.byte_add(at + GATE_FROM_DEVICE).cast::<GateWords>();
        (&(*words).activity, &(*gates).gate)
    };
    if !enter_if_busy::<_, Membarrier>(&slot.counts, activity, gate) {
        return None;
    }
    if let Some(calls) = slot.calls.get(row) {
        calls.store(
            calls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }
    // SAFETY: `last_stream` is set only after the slot had its word; pages as above.
    unsafe { slot.show(page) };
    Some(slot)
}
