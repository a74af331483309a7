//! The armed order under the C11 memory model: the shell, a GPU's issue thread, and an online process that rings.
//!
//! A test is a promise; one that `#[should_panic]`s does one step otherwise and shows that the promise needs it.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_abi::word::Word;
use tidegate_node::task::{TakenBack, Wanted, Wish};
use tidegate_policy::ids::Generation;

/// A word as loom has it. Loom takes a sequentially consistent access for acquire and release only.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Word for Cell {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0
            .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        fence(Ordering::SeqCst);
        let before = self.0.fetch_add(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before
    }
}

const RUNS: Generation = Generation(7);
const NEXT: Generation = Generation(8);

fn armed() -> Wanted<Cell> {
    let wanted = Wanted::new(Cell::default());
    assert_eq!(wanted.order(RUNS, Wish::EnableArmed), TakenBack::InTime);
    wanted
}

fn model(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(what);
}

/// The shell takes it back while the thread acts on it: what each found.
fn race(takes_back: fn(&Wanted<Cell>) -> TakenBack) -> (bool, TakenBack) {
    let wanted = Arc::new(armed());
    let acts = {
        let wanted = Arc::clone(&wanted);
        thread::spawn(move || wanted.fire(RUNS))
    };
    let taken = takes_back(&wanted);
    (acts.join().unwrap(), taken)
}

/// P-GATE-19: of thread and shell exactly one has the armed order, and both know which.
#[test]
fn an_armed_order_is_acted_on_or_taken_back() {
    for takes_back in [
        (|wanted| wanted.disarm()) as fn(&Wanted<Cell>) -> TakenBack,
        |wanted| wanted.order(NEXT, Wish::Disable),
        |wanted| wanted.order(NEXT, Wish::EnableArmed),
    ] {
        model(move || {
            let (acted, taken) = race(takes_back);
            assert_eq!(acted, taken == TakenBack::TooLate);
        });
    }
}

#[test]
#[should_panic(expected = "nobody knows")]
fn a_shell_that_looks_and_then_writes_does_not_know() {
    model(|| {
        let (acted, taken) = race(|wanted| {
            let stands = wanted.is_armed(RUNS);
            let _ = wanted.disarm();
            if stands {
                TakenBack::InTime
            } else {
                TakenBack::TooLate
            }
        });
        assert_eq!(acted, taken == TakenBack::TooLate, "nobody knows");
    });
}

/// An order is acted on once, and one that was replaced never.
#[test]
fn an_order_that_was_replaced_is_not_acted_on() {
    model(|| {
        let wanted = armed();
        assert!(!wanted.fire(NEXT));
        assert_eq!(wanted.order(NEXT, Wish::EnableArmed), TakenBack::InTime);
        assert!(!wanted.fire(RUNS));
        assert!(wanted.fire(NEXT));
        assert!(!wanted.fire(NEXT));
        assert_eq!(wanted.disarm(), TakenBack::TooLate);
        let last = Generation(9);
        assert_eq!(wanted.order(last, Wish::Enable), TakenBack::TooLate);
        assert_eq!(wanted.disarm(), TakenBack::InTime);
        assert!(!wanted.fire(last));
    });
}

/// A pair leaves the lists while the thread acts; `leaves` says whether its number may be another's from here on.
fn leaving(leaves: fn(&Wanted<Cell>) -> bool) {
    let (wanted, is_gone) = (Arc::new(armed()), Arc::new(AtomicU64::new(0)));
    let thread = {
        let (wanted, is_gone) = (Arc::clone(&wanted), Arc::clone(&is_gone));
        thread::spawn(move || {
            if wanted.fire(RUNS) {
                let gone = is_gone.load(Ordering::SeqCst);
                assert_eq!(gone, 0, "a call names who left");
            }
        })
    };
    if leaves(&wanted) {
        is_gone.store(1, Ordering::SeqCst);
    }
    thread.join().unwrap();
}

/// P-GATE-19: a pair that was let go of is in no call.
#[test]
fn no_call_names_a_pair_that_left() {
    model(|| leaving(|wanted| wanted.disarm() == TakenBack::InTime));
}

#[test]
#[should_panic(expected = "a call names who left")]
fn a_pair_that_leaves_whoever_came_first_is_named() {
    model(|| {
        leaving(|wanted| {
            let _ = wanted.disarm();
            true
        });
    });
}

/// A process' words, and the kernel's queue of those who sleep on its doorbell.
#[derive(Default)]
struct Process {
    activity: Cell,
    doorbell: Cell,
    sleeps: Mutex<bool>,
}

impl Process {
    fn rings(&self) {
        self.activity.store(ACTIVITY_BUSY, Ordering::Release);
        self.doorbell.fetch_add(1);
        *self.sleeps.lock().unwrap() = false;
    }

    fn wait(&self, rung: u64) {
        let mut sleeps = self.sleeps.lock().unwrap();
        *sleeps = self.doorbell.load(Ordering::Relaxed) == rung;
    }

    fn is_busy(&self) -> bool {
        self.activity.load(Ordering::Acquire) & ACTIVITY_BUSY != 0
    }
}

/// The thread looks and sleeps while the process rings; whoever is woken looks again, which is where this begins.
fn an_edge(sleeps: fn(&Process, &dyn Fn() -> bool)) {
    let process = Arc::new(Process::default());
    let wanted = armed();
    let rings = {
        let process = Arc::clone(&process);
        thread::spawn(move || process.rings())
    };
    let acts = || process.is_busy() && wanted.fire(RUNS);
    sleeps(&process, &acts);
    rings.join().unwrap();
    let asleep = *process.sleeps.lock().unwrap();
    assert!(!asleep, "asleep beside an edge");
}

/// P-GATE-19: no edge is slept through.
#[test]
fn a_thread_never_sleeps_beside_an_edge() {
    model(|| {
        an_edge(|process, acts| {
            let rung = process.doorbell.load(Ordering::Acquire);
            if !acts() {
                process.wait(rung);
            }
        });
    });
}

#[test]
#[should_panic(expected = "asleep beside an edge")]
fn a_thread_that_reads_the_doorbell_last_sleeps_beside_an_edge() {
    model(|| {
        an_edge(|process, acts| {
            if !acts() {
                process.wait(process.doorbell.load(Ordering::Acquire));
            }
        });
    });
}
