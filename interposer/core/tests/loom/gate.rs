//! The gate word: an agent sets it, a launch of an offline process waits on it, the process' prober
//! says that it is obeyed.

use crate::cell::{Cell, Fenced};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use tidegate_abi::gate::{Gate, is_held, set, sleeps_on, waits};
use tidegate_abi::page::{GATE_CLOSED, GATE_HELD};
use tidegate_core::activity::{Counts, enter_if_busy};
use tidegate_core::gate::{enter, obeyed};
use tidegate_core::word::{Fences, Word as _};

fn model(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(what);
}

/// A gate word with the kernel's queue of those who sleep on it.
struct Futex {
    gate: Cell,
    /// Whether somebody sleeps.
    queue: Mutex<bool>,
}

impl Futex {
    fn new(word: u64) -> Arc<Self> {
        Arc::new(Self {
            gate: Cell::new(word),
            queue: Mutex::new(false),
        })
    }

    fn wait(&self, expected: u32) {
        let mut sleeps = self.queue.lock().unwrap();
        *sleeps = self.gate.load(Ordering::Relaxed) & 0xffff_ffff == u64::from(expected);
    }

    fn wake(&self) {
        *self.queue.lock().unwrap() = false;
    }
}

/// Somebody waits on the gate word `from` as long as `keeps` says; an agent does its part meanwhile.
/// Who was woken looks again, which is where this begins.
fn a_wait(from: u64, keeps: fn(u64) -> bool, sleeps: Sleeps, agent: fn(&Futex)) {
    let futex = Futex::new(from);
    let waiter = {
        let futex = Arc::clone(&futex);
        thread::spawn(move || {
            if let Some(low) = sleeps(&futex.gate, keeps) {
                futex.wait(low);
            }
        })
    };
    agent(&futex);
    waiter.join().unwrap();
    let asleep = *futex.queue.lock().unwrap();
    assert!(
        !asleep || keeps(futex.gate.load(Ordering::Relaxed)),
        "asleep on a word that it does not wait for"
    );
}

/// How one decides on what to sleep.
type Sleeps = fn(&Cell, fn(u64) -> bool) -> Option<u32>;

const AS_SHIPPED: Sleeps = |gate, keeps| sleeps_on(gate, keeps);

fn sets(futex: &Futex, gate: Gate) {
    if set(&futex.gate, gate) {
        futex.wake();
    }
}

fn closes_and_opens(futex: &Futex) {
    sets(futex, Gate::Closed);
    sets(futex, Gate::Open);
}

/// P-GATE-5: nobody sleeps on an open gate.
#[test]
fn a_launch_never_sleeps_through_the_opening_of_its_gate() {
    model(|| a_wait(4, waits, AS_SHIPPED, closes_and_opens));
    model(|| a_wait(0, waits, AS_SHIPPED, closes_and_opens));
}

#[test]
fn who_waits_for_the_end_of_a_reclaim_is_woken_though_the_gate_stays_closed() {
    model(|| {
        a_wait(4 | GATE_HELD, is_held, AS_SHIPPED, |futex| {
            sets(futex, Gate::Closed);
        });
    });
}

#[test]
#[should_panic(expected = "asleep on a word that it does not wait for")]
fn a_wake_before_the_word_is_written_leaves_a_launch_asleep() {
    model(|| {
        a_wait(4 | GATE_CLOSED, waits, AS_SHIPPED, |futex| {
            futex.wake();
            let _ = set(&futex.gate, Gate::Open);
        });
    });
}

#[test]
#[should_panic(expected = "asleep on a word that it does not wait for")]
fn a_launch_that_sleeps_on_whatever_it_finds_sleeps_on_an_open_gate() {
    let looks_twice: Sleeps = |gate, keeps| {
        keeps(gate.load(Ordering::Acquire))
            .then(|| sleeps_on(gate, |_| true))
            .flatten()
    };
    model(move || a_wait(4 | GATE_CLOSED, waits, looks_twice, closes_and_opens));
}

/// An offline process under an open gate.
struct Process {
    gate: Cell,
    ack: Cell,
    counts: Counts<Cell>,
    /// The agent has read the acknowledgement of the word that it closed the gate with.
    believed: AtomicU64,
}

/// No fence on either side.
struct Unfenced;

impl Fences for Unfenced {
    fn light() {}
    fn heavy(&self) {}
}

/// The ways into the driver.
#[derive(Clone, Copy)]
enum Launch {
    Hot,
    Slow,
    Shared,
    /// Looks at the gate, then says that it is inside.
    LooksFirst,
}

/// The gate closes while a launch begins; the prober acknowledges, and the agent believes it.
fn an_acknowledged_close<F: Fences + 'static>(fences: F, launch: Launch) {
    let process = Arc::new(Process {
        gate: Cell::new(4),
        ack: Cell::new(4),
        counts: Counts::default(),
        believed: AtomicU64::new(0),
    });
    let launching = {
        let process = Arc::clone(&process);
        thread::spawn(move || {
            let passes = || !waits(process.gate.load(Ordering::Acquire));
            let counts = &process.counts;
            let inside = match launch {
                Launch::Hot => enter_if_busy::<_, F>(counts, &Cell::new(3), &process.gate),
                Launch::Slow => enter::<_, F>(counts, false, passes),
                Launch::Shared => enter::<_, F>(counts, true, passes),
                Launch::LooksFirst => passes() && enter::<_, F>(counts, false, || true),
            };
            if inside {
                assert_eq!(
                    process.believed.load(Ordering::SeqCst),
                    0,
                    "a launch is inside the driver under an acknowledged close"
                );
                counts.add_returned();
            }
        })
    };
    let agent = {
        let process = Arc::clone(&process);
        thread::spawn(move || {
            let _ = set(&process.gate, Gate::Closed);
            if process.ack.load(Ordering::Acquire) == 8 | GATE_CLOSED {
                process.believed.store(1, Ordering::SeqCst);
            }
        })
    };
    let seen = process.gate.load(Ordering::Acquire);
    if let (true, _) = obeyed(&fences, seen, || core::iter::once(&process.counts)) {
        process.ack.store(seen, Ordering::Release);
    }
    launching.join().unwrap();
    agent.join().unwrap();
}

/// P-GATE-5: no launch is inside the driver once its close is acknowledged.
#[test]
fn no_launch_is_inside_the_driver_once_the_close_of_its_gate_is_acknowledged() {
    for launch in [Launch::Hot, Launch::Slow, Launch::Shared] {
        model(move || an_acknowledged_close(Fenced, launch));
    }
}

#[test]
#[should_panic(expected = "under an acknowledged close")]
fn without_the_fences_a_launch_is_overlooked() {
    model(|| an_acknowledged_close(Unfenced, Launch::Slow));
}

#[test]
#[should_panic(expected = "under an acknowledged close")]
fn a_launch_that_looks_before_it_counts_is_overlooked() {
    model(|| an_acknowledged_close(Fenced, Launch::LooksFirst));
}
