//! The page that an agent shares with one preloaded process.
//!
//! The agent makes it (a sealed memfd of [`BYTES`]), sends it with the greeting, and reads what the process wrote as
//! hostile input: it never follows a value out of the page, and drops the page of a client that rings beyond a rate.
//! Every word has exactly one writer, named below. Words of different writers never share a cache line.
//!
//! Version rules: `major` changes when a word moves or changes its meaning. Peers with different majors work without a
//! page; edges then travel on the gRPC stream. `minor` grows when a word is added in what was padding. A peer that does
//! not know the word leaves it zero.
//!
//! Times are `CLOCK_MONOTONIC` nanoseconds of the process, whose clock may differ from the agent's (in a time
//! namespace). The process reports its time when it attaches, and the agent converts. Times that the agent writes are
//! heartbeats: the process only looks whether they change, and compares them with no clock. Futex words are shared
//! (never `FUTEX_PRIVATE_FLAG`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// `TIDEPAGE`, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEPAGE");
/// See the version rules above.
pub const MAJOR: u32 = 1;
/// See the version rules above.
pub const MINOR: u32 = 5;
/// Size of the page, also the size of its memfd.
pub const BYTES: usize = 4096;
/// Devices one process can use with a page: places in [`Page::devices`]. The index is the
/// process' own CUDA ordinal; which GPU that is, the process says on its stream.
pub const DEVICES: usize = 16;

/// Bit 0 of an activity word: busy. The rest is the generation, which grows with every edge.
pub const ACTIVITY_BUSY: u64 = 1;

/// The page. `repr(C)`; offsets are pinned below.
#[repr(C, align(4096))]
#[derive(Debug, Default)]
pub struct Page {
    /// Written by the agent before the page is sent, constant afterwards.
    pub header: Header,
    /// Written by the agent.
    pub agent: AgentWords,
    /// Written by the process.
    pub process: ProcessWords,
    /// Written by the process; index = CUDA ordinal in that process.
    pub devices: [DeviceWords; DEVICES],
    /// Written by the agent; index as in `devices`.
    pub gates: [GateWords; DEVICES],
    /// Written by the process; index as in `devices`. Since minor 1.
    pub memory: [MemoryWords; DEVICES],
    /// Written by the process. Since minor 2.
    pub tallies: Tallies,
}

impl Page {
    /// Launches on a device since the process' first context: the sum of the prober's rounds or the sum of the threads'
    /// own counts, whichever is larger. A thread counts before it calls the driver, so this includes everything that a
    /// killed process had launched. Launches of threads without a place are only in the prober's sums.
    #[must_use]
    pub fn launches(&self, device: usize) -> u64 {
        let counted = (0..TALLIES)
            .filter_map(|nth| self.tallies.word(nth))
            .map(|word| word.load(Ordering::Relaxed))
            .filter(|word| word >> TALLY_DEVICE == device as u64)
            .fold(0_u64, |sum, word| sum.saturating_add(word & TALLY_COUNT));
        let words = self.devices.get(device);
        words.map_or(0, |words| words.total.load(Ordering::Relaxed).max(counted))
    }
}

/// What the page is.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`MAJOR`].
    pub major: AtomicU32,
    /// [`MINOR`].
    pub minor: AtomicU32,
    /// [`BYTES`].
    pub bytes: AtomicU32,
    /// [`DEVICES`].
    pub devices: AtomicU32,
    /// The agent's number for this session.
    pub session: AtomicU64,
    /// Generation of the agent that made the page: grows by one with every agent of a node.
    pub agent_generation: AtomicU64,
}

/// The agent's heartbeat.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AgentWords {
    /// Time of the control thread's last tick. Unchanged for 500 ms by the clock of the process: the agent is gone.
    pub heartbeat_ns: AtomicU64,
    /// Time at which an agent that was asked to step aside wrote it; 0 otherwise.
    pub handing_over_ns: AtomicU64,
    /// How often an offline process checks whether its devices have work, ns; 0: never. While it checks, it rings the
    /// doorbell when it finds an edge. Since minor 3; the agent sets it only for a process that knows it.
    pub work_probe_ns: AtomicU64,
}

/// Words of the whole process.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ProcessWords {
    /// Futex. Raised by one with every edge of any device; the agent and the prober wait on it.
    pub doorbell: AtomicU32,
    /// Futex. Raised by the process when it acknowledges a gate word.
    pub acked: AtomicU32,
    /// Time of the prober's last round. A frozen process stops raising it.
    pub prober_ns: AtomicU64,
    /// The generation of the agent after whose loss the process enabled its channels (fail-open release); 0 = never.
    pub released: AtomicU64,
    /// Number of online requests in flight that the engine reports, plus one; 0 = it does not report them. The process
    /// rings the doorbell when the first one begins and when the last one ends. Since minor 1.
    pub in_flight: AtomicU64,
    /// Useful units of work that the process reports to have done since it has this page. Since minor 3.
    pub units: AtomicU64,
    /// The unit that a trainer could run next: `most << 48 | backward << 47 | tokens`. `most` is how many such units
    /// could follow one another; zero: the process takes no lease. Since minor 5, like the next one.
    pub unit: AtomicU64,
    /// How long one such unit takes alone, as the trainer reports it, ns; zero: it reports nothing.
    pub unit_ns: AtomicU64,
}

/// Where [`ProcessWords::unit`] holds how many units follow one another.
pub const UNIT_MOST: u32 = 48;
/// [`ProcessWords::unit`]: a backward unit.
pub const UNIT_BACKWARD: u64 = 1 << 47;
/// [`ProcessWords::unit`]: the tokens of its window.
pub const UNIT_TOKENS: u64 = UNIT_BACKWARD - 1;

/// Activity of one device as the process sees it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct DeviceWords {
    /// `generation << 1 | busy`. Changed by compare-and-swap only.
    pub activity: AtomicU64,
    /// When the last busy edge rang.
    pub busy_since_ns: AtomicU64,
    /// When the work before the last idle edge was known to be done: the return of the sync call that proved it, or
    /// else the last probe that still saw the device busy.
    pub idle_since_ns: AtomicU64,
    /// Launches of the busy period that ended with the last idle edge.
    pub launches: AtomicU64,
    /// The graph that was launched last in that period, 0 if none. It is the exec's address, used only as a name.
    pub graph: AtomicU64,
    /// Launches since the process' first context, for status.
    pub total: AtomicU64,
    /// The last gate word this process saw and obeys.
    pub gate_ack: AtomicU64,
    /// Why the device counts as busy without launches (`BusyReason` of the protocol), 0 = no reason.
    pub suspect: AtomicU64,
}

/// An engine's use of its KV cache on one device. Bytes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct MemoryWords {
    /// Incremented before and after the words below change: odd while they change.
    pub version: AtomicU64,
    /// In blocks that hold content.
    pub used: AtomicU64,
    /// In blocks that the engine may use.
    pub reserved: AtomicU64,
    /// With memory behind them; `mapped - reserved` is the headroom.
    pub mapped: AtomicU64,
    /// About activity, not memory ([`DeviceWords`] has no word left): iterations of a graph, in the busy period that
    /// ended with the last idle edge, that followed each other so closely that no round of the prober saw the device
    /// idle between them. Only iterations between two rounds no further apart than `apart_ns` count. Since minor 4,
    /// like the next two.
    pub turns: AtomicU64,
    /// Launches of that period up to the end of its first iteration, if that launched a graph; 0: no iteration ended.
    /// [`NO_GRAPH`]: the first iteration launched no graph.
    pub first_turn: AtomicU64,
    /// The longest time between two rounds around one of `turns`.
    pub apart_ns: AtomicU64,
    /// Not about memory either: what the trainer did under a lease, `number << 21 | over << 20 | units`. `number` is
    /// that of [`GateWords::lease`]. `over` means that nothing of the trainer runs any more. The trainer rings the
    /// doorbell when it sets `over`. Since minor 5.
    pub leased: AtomicU64,
}

/// Where [`MemoryWords::leased`] holds the number of the lease.
pub const LEASED_NUMBER: u32 = 21;
/// [`MemoryWords::leased`]: the lease is over.
pub const LEASED_OVER: u64 = 1 << 20;
/// [`MemoryWords::leased`]: the units that ran.
pub const LEASED_UNITS: u64 = LEASED_OVER - 1;

/// [`MemoryWords::first_turn`] of a busy period whose first iteration launched no graph.
pub const NO_GRAPH: u64 = u64::MAX;

/// Lines of [`Tallies`].
const TALLY_LINES: usize = 13;
/// Words of a line.
const TALLIES_A_LINE: usize = 8;
/// Places of threads. Behind them is one more word, which many threads write and nobody reads.
pub const TALLIES: usize = TALLY_LINES * TALLIES_A_LINE - 1;
/// A tally is `device << TALLY_DEVICE | launches`.
pub const TALLY_DEVICE: u32 = 56;
/// The launches of a tally.
pub const TALLY_COUNT: u64 = (1 << TALLY_DEVICE) - 1;

/// Launches, thread by thread: `device << 56 | launches`. Each word counts the launches of one thread on one device,
/// and of the threads that had its place before it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Tallies {
    lines: [[AtomicU64; TALLIES_A_LINE]; TALLY_LINES],
}

impl Tallies {
    /// The word of a place; the one behind them all is [`TALLIES`]. The first places are in lines of their own.
    #[must_use]
    pub fn word(&self, nth: usize) -> Option<&AtomicU64> {
        let line = self.lines.get(nth % TALLY_LINES)?;
        line.get(nth / TALLY_LINES)
    }

    /// Where in the page the word of a place is.
    #[must_use]
    pub const fn offset(nth: usize) -> usize {
        let word = nth % TALLY_LINES * TALLIES_A_LINE + nth / TALLY_LINES;
        core::mem::offset_of!(Page, tallies) + word * size_of::<AtomicU64>()
    }
}

/// What the agent orders for one device of this process.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct GateWords {
    /// `generation << 2 | state`: [`GATE_OPEN`], [`GATE_CLOSED`] or [`GATE_HELD`]. The low half is
    /// the futex an offline launch waits on.
    pub gate: AtomicU64,
    /// `number << 2 | state`: [`LEASE_NONE`], [`LEASE_GIVEN`] or [`LEASE_WITHDRAWN`]. The low half is the futex a
    /// trainer waits on before a unit. Written after the words below. Since minor 5, as all that follow.
    pub lease: AtomicU64,
    /// When the lease ends, on the clock of the process.
    pub lease_until_ns: AtomicU64,
    /// Units that may run under the lease.
    pub lease_units: AtomicU64,
    /// Tokens of a window that fits into the lease; zero: the trainer chooses.
    pub lease_tokens: AtomicU64,
    /// Frozen layers that may stay in memory, plus one; zero: the agent sets no limit.
    pub resident_layers: AtomicU64,
}

/// State in the low bits of [`GateWords::lease`]: no lease is needed, because leases are off or the gate is open.
pub const LEASE_NONE: u64 = 0;
/// State in the low bits of [`GateWords::lease`]: units may begin.
pub const LEASE_GIVEN: u64 = 1;
/// State in the low bits of [`GateWords::lease`]: no unit may begin; a unit that runs may end. The state stays after a
/// lease is over, until the next lease is given or none is needed. It is also the state before the first lease, with
/// number 0.
pub const LEASE_WITHDRAWN: u64 = 2;
/// Mask of the state bits.
pub const LEASE_STATE: u64 = 3;
/// Where [`GateWords::lease`] holds the number.
pub const LEASE_NUMBER: u32 = 2;

/// State in the low bits of [`GateWords::gate`]: launches pass.
pub const GATE_OPEN: u64 = 0;
/// State in the low bits of [`GateWords::gate`]: offline launches wait.
pub const GATE_CLOSED: u64 = 1;
/// State in the low bits of [`GateWords::gate`]: a reclaim is under way. Offline launches wait, and so do calls that
/// may hold the driver's locks while they wait for the GPU. A library of minor 0 reads it as closed.
pub const GATE_HELD: u64 = 2;
/// Mask of the state bits.
pub const GATE_STATE: u64 = 3;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Page>() == BYTES);
    assert!(offset_of!(Page, header) == 0);
    assert!(offset_of!(Page, agent) == 64);
    assert!(offset_of!(Page, process) == 128);
    assert!(offset_of!(Page, devices) == 192);
    assert!(size_of::<DeviceWords>() == 64);
    assert!(offset_of!(Page, gates) == 192 + DEVICES * 64);
    assert!(size_of::<GateWords>() == 64);
    assert!(offset_of!(Page, memory) == 192 + DEVICES * 128);
    assert!(size_of::<MemoryWords>() == 64);
    assert!(offset_of!(Page, tallies) == 192 + DEVICES * 192);
    assert!(Tallies::offset(TALLIES) == BYTES - 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_word_of_its_own_and_the_device_the_sum_of_its_threads() {
        let page = Page::default();
        let base = core::ptr::from_ref(&page).addr();
        let mut places: [usize; TALLIES + 1] = core::array::from_fn(Tallies::offset);
        for nth in 0..=TALLIES {
            let word = page.tallies.word(nth).expect("a place");
            let at = core::ptr::from_ref(word).addr();
            assert_eq!(at, base + Tallies::offset(nth));
            let device = (nth % 2) as u64;
            word.store(device << TALLY_DEVICE | (nth as u64 + 1), Ordering::Relaxed);
        }
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
        let of = |device: usize| {
            (0..TALLIES)
                .filter(move |nth| nth % 2 == device)
                .map(|nth| nth as u64 + 1)
        };
        assert_eq!(page.launches(0), of(0).sum());
        assert_eq!(page.launches(1), of(1).sum());
        assert_eq!(page.launches(2), 0);
        page.devices[1].total.store(1 << 40, Ordering::Relaxed);
        assert_eq!(
            page.launches(1),
            1 << 40,
            "rounds know of threads without a place"
        );
        let lying = page.tallies.word(0).expect("a place");
        lying.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(page.launches(0), of(0).sum::<u64>() - 1);
    }
}
