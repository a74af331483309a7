//! The activity protocol under the C11 memory model, membarrier modelled as a sequentially
//! consistent fence on both sides: two launching threads, one prober.

use crate::cell::{Cell, Fenced};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::activity::{Begin, Counts, Published, begin, busy_edge, enter_if_busy};
use tidegate_core::capture::Announce;
use tidegate_core::word::{Fences as _, Word as _};

struct Process {
    activity: Cell,
    gate: Cell,
    counts: [Counts<Cell>; 2],
    /// Per thread: work given to the device, and work done.
    submitted: [AtomicU64; 2],
    done: [AtomicU64; 2],
    /// The idle word whose edge was rung last.
    rung: AtomicU64,
}

fn launch(process: &Process, thread: usize) {
    let counts = &process.counts[thread];
    if !enter_if_busy::<_, Fenced>(counts, &process.activity, &process.gate) {
        counts.raise_entered();
        Fenced::light();
        busy_edge(&process.activity);
    }
    process.submitted[thread].store(1, Ordering::SeqCst);
    counts.raise_returned();
    let rung = process.rung.load(Ordering::SeqCst);
    let word = process.activity.load(Ordering::SeqCst);
    assert!(
        rung == 0 || word != rung,
        "work is unfinished while a rung idle edge stands"
    );
    process.done[thread].store(1, Ordering::SeqCst);
}

fn probe(process: &Process) {
    let pairs = || process.counts.iter();
    let Begin::Quiet(quiet) = begin(&Fenced, &process.activity, pairs) else {
        return;
    };
    for thread in 0..2 {
        let submitted = process.submitted[thread].load(Ordering::SeqCst);
        if process.done[thread].load(Ordering::SeqCst) != submitted {
            return;
        }
    }
    if let Published::Idle { word } = quiet.publish(&Fenced, &process.activity, pairs) {
        process.rung.store(word, Ordering::SeqCst);
    }
}

/// P-GATE-4: idle is never rung while a launch is unfinished.
#[test]
fn no_launch_runs_under_a_rung_idle_edge() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let process = Arc::new(Process {
            activity: Cell::new(3),
            gate: Cell::new(0),
            counts: core::array::from_fn(|_| Counts {
                entered: Cell::new(0),
                returned: Cell::new(0),
            }),
            submitted: core::array::from_fn(|_| AtomicU64::new(0)),
            done: core::array::from_fn(|_| AtomicU64::new(0)),
            rung: AtomicU64::new(0),
        });
        let threads = [0, 1].map(|thread| {
            let process = Arc::clone(&process);
            loom::thread::spawn(move || launch(&process, thread))
        });
        probe(&process);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn the_prober_and_a_capture_never_overlap() {
    loom::model(|| {
        let announce = Arc::new(Announce::new(Cell::new(0), Cell::new(0)));
        let asking = Arc::new(AtomicU64::new(0));
        let capturer = {
            let (announce, asking) = (Arc::clone(&announce), Arc::clone(&asking));
            loom::thread::spawn(move || {
                announce.capture_begins();
                while announce.probing() {
                    loom::thread::yield_now();
                }
                assert_eq!(
                    asking.load(Ordering::SeqCst),
                    0,
                    "a capture began under a question"
                );
                announce.capture_ended();
            })
        };
        if announce.probe_begins() {
            asking.store(1, Ordering::SeqCst);
            asking.store(0, Ordering::SeqCst);
            announce.probe_ended();
        }
        capturer.join().unwrap();
    });
}
