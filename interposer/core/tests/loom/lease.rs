//! The words of a lease: an agent gives one and takes it away, a trainer looks whether it may begin a unit.

use crate::cell::{Cell, Unordered};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::Release;
use loom::thread;
use tidegate_abi::page::{GATE_CLOSED, GATE_OPEN, LEASE_GIVEN, LEASE_NONE, LEASE_NUMBER};
use tidegate_core::lease::{Next, Seen, next};
use tidegate_core::word::Word;

/// When the lease has to be over.
const UNTIL: u64 = 100;
const UNITS: u64 = 3;

#[derive(Default)]
struct Device<W> {
    gate: W,
    lease: W,
    rest: [W; 4],
}

/// In which order the agent writes gate and lease.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    AsShipped,
    GateFirst,
    LeaseAwayFirst,
}

fn an_agent_lends<W: Word + Default + Send + Sync + 'static>(order: Order) {
    let device = Arc::new(Device::<W>::default());
    device.gate.store(4 | GATE_CLOSED, Release);
    let agent = {
        let device = Arc::clone(&device);
        thread::spawn(move || {
            let give = || {
                device.rest[0].store(UNTIL, Release);
                device.rest[1].store(UNITS, Release);
                device.lease.store(1 << LEASE_NUMBER | LEASE_GIVEN, Release);
            };
            let open = || device.gate.store(8 | GATE_OPEN, Release);
            let take = || device.lease.store(1 << LEASE_NUMBER | LEASE_NONE, Release);
            let close = || device.gate.store(12 | GATE_CLOSED, Release);
            if order == Order::GateFirst {
                open();
                give();
            } else {
                give();
                open();
            }
            if order == Order::LeaseAwayFirst {
                take();
                close();
            } else {
                close();
                take();
            }
        })
    };
    let [until, units, tokens, resident] = &device.rest;
    let rest = [until, units, tokens, resident];
    if let Some(seen) = Seen::read(&device.gate, &device.lease, rest) {
        match next(&seen, 0, 0, 1) {
            Next::Free => panic!("took a lease for an open gate"),
            Next::Run(lent) => {
                assert_eq!((lent.units, lent.until_ns), (UNITS, UNTIL), "half a lease");
            }
            Next::Over(_) => panic!("half a lease"),
            Next::Wait => {}
        }
    }
    agent.join().unwrap();
}

fn model(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(what);
}

/// P-LEASE-1: a trainer never mistakes a gate that a lease opened for one that is open without.
#[test]
fn a_lease_is_seen_whole_and_never_as_an_open_gate() {
    model(|| an_agent_lends::<Cell>(Order::AsShipped));
}

#[test]
#[should_panic(expected = "took a lease for an open gate")]
fn a_gate_that_opens_before_its_lease_is_written_is_taken_for_open() {
    model(|| an_agent_lends::<Cell>(Order::GateFirst));
}

#[test]
#[should_panic(expected = "took a lease for an open gate")]
fn a_lease_that_goes_before_its_gate_closes_leaves_an_open_gate() {
    model(|| an_agent_lends::<Cell>(Order::LeaseAwayFirst));
}

#[test]
#[should_panic(expected = "lease")]
fn words_that_order_nothing_show_half_a_lease() {
    model(|| an_agent_lends::<Unordered>(Order::AsShipped));
}
