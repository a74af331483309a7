//! Calls that may hold the driver's locks, a thread that changes mappings, and an agent that dies.

use crate::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use tidegate_abi::gate::{Gate, is_held, set};
use tidegate_abi::page::GATE_HELD;
use tidegate_core::hold::{Changing, may_enter};
use tidegate_core::word::Word as _;

struct Process {
    gate: Cell,
    changing: Changing<Cell>,
    mark: Cell,
    /// What really is so.
    moves: AtomicU64,
    inside: AtomicU64,
}

/// How a call decides whether it may go in.
type Enters = fn(&Process) -> bool;

fn ordered(process: &Process) -> bool {
    is_held(process.gate.load(Ordering::Acquire))
}

const AS_SHIPPED: Enters = |process| {
    may_enter(
        &process.changing,
        || fence(Ordering::SeqCst),
        || ordered(process),
    )
};

/// An order is carried out while a call comes and the gate word is replaced, as it is when the agent dies.
fn an_agent_dies(enters: Enters, mover: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let process = Arc::new(Process {
            gate: Cell::new(4 | GATE_HELD),
            changing: Changing::new(Cell::new(0)),
            mark: Cell::new(0),
            moves: AtomicU64::new(0),
            inside: AtomicU64::new(0),
        });
        let call = {
            let process = Arc::clone(&process);
            thread::spawn(move || {
                process.mark.store(1, Ordering::SeqCst);
                if enters(&process) {
                    process.inside.store(1, Ordering::SeqCst);
                    let moves = process.moves.load(Ordering::SeqCst);
                    assert_eq!(moves, 0, "a call is inside while mappings move");
                    process.inside.store(0, Ordering::SeqCst);
                }
                process.mark.store(0, Ordering::Release);
            })
        };
        let owner = {
            let process = Arc::clone(&process);
            thread::spawn(move || {
                let _ = set(&process.gate, Gate::Closed);
            })
        };
        let clear = || ordered(&process) && process.mark.load(Ordering::Acquire) == 0;
        if process.changing.begins_to_move(mover, clear) {
            process.moves.store(1, Ordering::SeqCst);
            let inside = process.inside.load(Ordering::SeqCst);
            assert_eq!(inside, 0, "a call is inside while mappings move");
            process.moves.store(0, Ordering::SeqCst);
            process.changing.rests();
        }
        call.join().unwrap();
        owner.join().unwrap();
        assert!(!process.changing.changes());
    });
}

fn fenced() {
    fence(Ordering::SeqCst);
}

/// P-MEMORY-4: an agent's death in the middle of a move lets no call into the driver before the move has ended.
#[test]
fn no_call_goes_in_while_mappings_move_whoever_replaces_the_gate_word() {
    an_agent_dies(AS_SHIPPED, fenced);
}

#[test]
#[should_panic(expected = "a call is inside while mappings move")]
fn a_hold_that_only_the_agents_word_keeps_ends_with_the_agent() {
    an_agent_dies(
        |process| {
            fence(Ordering::SeqCst);
            !ordered(process)
        },
        fenced,
    );
}

#[test]
#[should_panic(expected = "a call is inside while mappings move")]
fn a_call_that_does_not_fence_may_miss_that_mappings_move() {
    an_agent_dies(
        |process| may_enter(&process.changing, || {}, || ordered(process)),
        fenced,
    );
}

#[test]
#[should_panic(expected = "a call is inside while mappings move")]
fn a_move_that_does_not_fence_may_miss_a_call() {
    an_agent_dies(AS_SHIPPED, || {});
}
