//! Every byte is somewhere, once.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidegate_policy::ids::{Bytes, SessionId};
use tidegate_policy::ledger::{Ledger, Place};

const POOL: Bytes = Bytes(1_000);

#[derive(Clone, Copy, Debug)]
enum Op {
    Shift(u64, Place, Place, u64),
    Adopt(u64, Place, u64),
    Used(u64, u64),
    Close(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let (owner, place) = (0u64..4, prop::sample::select(Place::ALL.to_vec()));
    let bytes = prop_oneof![4 => 0u64..400, 1 => 0u64..1 << 40];
    prop_oneof![
        12 => (owner.clone(), place.clone(), place.clone(), bytes.clone())
            .prop_map(|(o, f, t, b)| Op::Shift(o, f, t, b)),
        3 => (owner.clone(), place, bytes.clone()).prop_map(|(o, p, b)| Op::Adopt(o, p, b)),
        3 => (owner.clone(), bytes).prop_map(|(o, b)| Op::Used(o, b)),
        1 => owner.prop_map(Op::Close),
    ]
}

proptest! {
    /// The model holds for every process what it really has, also beyond the pool.
    /// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
    #[test]
    fn every_byte_is_in_exactly_one_place_whatever_is_reported(
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let mut ledger = Ledger::new(POOL);
        let mut held: BTreeMap<(SessionId, Place), Bytes> = BTreeMap::new();
        for op in ops {
            let before = ledger.clone();
            let at = |held: &BTreeMap<_, Bytes>, key| held.get(&key).copied().unwrap_or_default();
            match op {
                Op::Shift(owner, from, to, bytes) => {
                    let owner = SessionId(owner);
                    let had = match from {
                        Place::Free => before.free(),
                        from => at(&held, (owner, from)),
                    };
                    let due = if from.leads_to(to) { Bytes(bytes).min(had) } else { Bytes::ZERO };
                    prop_assert_eq!(ledger.shift(owner, from, to, Bytes(bytes)), due);
                    if from != Place::Free {
                        held.insert((owner, from), had.minus(due));
                    }
                    if to != Place::Free {
                        held.insert((owner, to), at(&held, (owner, to)).plus(due));
                    }
                }
                Op::Adopt(owner, place, bytes) => {
                    let owner = SessionId(owner);
                    let taken = ledger.adopt(owner, place, Bytes(bytes));
                    prop_assert_eq!(ledger.free(), before.free().minus(taken));
                    if place != Place::Free {
                        prop_assert_eq!(taken, before.free().min(Bytes(bytes)));
                        held.insert((owner, place), at(&held, (owner, place)).plus(Bytes(bytes)));
                    }
                }
                Op::Used(owner, bytes) => {
                    let owner = SessionId(owner);
                    let real = before.account(owner).online;
                    ledger.set_used(owner, Bytes(bytes));
                    let (more, less) = (Bytes(bytes).minus(real), real.minus(Bytes(bytes)));
                    let (headroom, online) = ((owner, Place::Headroom), (owner, Place::Online));
                    let up = more.min(at(&held, headroom));
                    let moved = (at(&held, headroom).minus(up).plus(less), at(&held, online).plus(up).minus(less));
                    held.insert(headroom, moved.0);
                    held.insert(online, moved.1);
                }
                Op::Close(owner) => {
                    let owner = SessionId(owner);
                    prop_assert_eq!(ledger.close(owner), before.account(owner).sum());
                    held.retain(|key, _| key.0 != owner);
                }
            }
            prop_assert_eq!(ledger.totals().sum(), POOL);
            prop_assert_eq!(ledger.totals().free, ledger.free());
            let known: Bytes = held.values().copied().sum();
            prop_assert_eq!(ledger.totals().sum().minus(ledger.free()).plus(ledger.excess()), known);
            prop_assert!(ledger.free().is_zero() || ledger.excess().is_zero());
        }
    }
}

/// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
#[test]
fn nothing_is_promised_before_it_is_free_and_nothing_is_taken_twice() {
    let (offline, online) = (SessionId(1), SessionId(2));
    let mut ledger = Ledger::new(POOL);
    ledger.adopt(offline, Place::Offline, POOL);
    assert_eq!(
        ledger.shift(online, Place::Free, Place::InFlight, Bytes(10)),
        Bytes::ZERO
    );
    assert_eq!(
        ledger.shift(offline, Place::Offline, Place::Quarantined, Bytes(30)),
        Bytes(30)
    );
    // Quarantined is not free: online still gets nothing.
    assert_eq!(
        ledger.shift(online, Place::Free, Place::InFlight, Bytes(10)),
        Bytes::ZERO
    );
    assert_eq!(
        ledger.shift(offline, Place::Quarantined, Place::Free, Bytes(30)),
        Bytes(30)
    );
    assert_eq!(
        ledger.shift(offline, Place::Quarantined, Place::Free, Bytes(30)),
        Bytes::ZERO
    );
    assert_eq!(
        ledger.shift(online, Place::Free, Place::InFlight, Bytes(40)),
        Bytes(30)
    );
    assert_eq!(
        ledger.shift(online, Place::InFlight, Place::Headroom, Bytes(30)),
        Bytes(30)
    );
    assert_eq!(ledger.account(online).mapped(), Bytes(30));
}

/// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
#[test]
fn nothing_is_free_while_somebody_holds_more_than_the_pool_knew_of() {
    let (offline, online) = (SessionId(1), SessionId(2));
    let mut ledger = Ledger::new(POOL);
    ledger.adopt(offline, Place::Offline, Bytes(700));
    // Said twice for a while: as what it allocated, and as what it registered.
    assert_eq!(
        ledger.adopt(offline, Place::Offline, Bytes(700)),
        Bytes(300)
    );
    assert_eq!(ledger.excess(), Bytes(400));
    ledger.shift(offline, Place::Offline, Place::Free, Bytes(700));
    assert_eq!((ledger.free(), ledger.excess()), (Bytes(300), Bytes::ZERO));
    assert_eq!(ledger.account(offline).offline, Bytes(700));
    // What one gives up goes to the other first.
    ledger.adopt(online, Place::Headroom, Bytes(350));
    ledger.shift(offline, Place::Offline, Place::Quarantined, Bytes(60));
    ledger.shift(offline, Place::Quarantined, Place::Free, Bytes(60));
    assert_eq!((ledger.free(), ledger.excess()), (Bytes(10), Bytes::ZERO));
    assert_eq!(ledger.account(online).mapped(), Bytes(350));
}
