//! Every byte is somewhere, once.

use proptest::prelude::*;
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
    let bytes = prop_oneof![4 => 0u64..400, 1 => any::<u64>()];
    prop_oneof![
        12 => (owner.clone(), place.clone(), place.clone(), bytes.clone())
            .prop_map(|(o, f, t, b)| Op::Shift(o, f, t, b)),
        3 => (owner.clone(), place, bytes.clone()).prop_map(|(o, p, b)| Op::Adopt(o, p, b)),
        3 => (owner.clone(), bytes).prop_map(|(o, b)| Op::Used(o, b)),
        1 => owner.prop_map(Op::Close),
    ]
}

/// The same books as one flat list of bytes: (owner, place), nobody's first.
fn flat(ledger: &Ledger) -> Vec<(SessionId, Place, Bytes)> {
    ledger
        .accounts()
        .flat_map(|(owner, account)| Place::ALL.map(|place| (owner, place, account.at(place))))
        .filter(|entry| !entry.2.is_zero())
        .collect()
}

proptest! {
    #[test]
    fn every_byte_is_in_exactly_one_place_whatever_is_reported(
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let mut ledger = Ledger::new(POOL);
        for op in ops {
            let before = ledger.clone();
            match op {
                Op::Shift(owner, from, to, bytes) => {
                    let owner = SessionId(owner);
                    let had = |ledger: &Ledger, place| match place {
                        Place::Free => ledger.free(),
                        place => ledger.account(owner).at(place),
                    };
                    let moved = ledger.shift(owner, from, to, Bytes(bytes));
                    let due = if from.leads_to(to) { Bytes(bytes).min(had(&before, from)) } else { Bytes::ZERO };
                    prop_assert_eq!(moved, due);
                    if from != to {
                        prop_assert_eq!(had(&ledger, from), had(&before, from).minus(moved));
                        prop_assert_eq!(had(&ledger, to), had(&before, to).plus(moved));
                    }
                    let others = |ledger: &Ledger| {
                        let mut all = flat(ledger);
                        all.retain(|e| e.0 != owner || (e.1 != from && e.1 != to));
                        all
                    };
                    prop_assert_eq!(others(&ledger), others(&before));
                }
                Op::Adopt(owner, place, bytes) => {
                    let taken = ledger.adopt(SessionId(owner), place, Bytes(bytes));
                    prop_assert_eq!(ledger.free(), before.free().minus(taken));
                    prop_assert!(taken <= Bytes(bytes));
                }
                Op::Used(owner, bytes) => {
                    let owner = SessionId(owner);
                    let used = ledger.set_used(owner, Bytes(bytes));
                    let mapped = before.account(owner).mapped();
                    prop_assert_eq!(ledger.account(owner).mapped(), mapped);
                    prop_assert_eq!(used, Bytes(bytes).min(mapped));
                }
                Op::Close(owner) => {
                    let freed = ledger.close(SessionId(owner));
                    prop_assert_eq!(freed, before.account(SessionId(owner)).sum());
                    prop_assert_eq!(ledger.free(), before.free().plus(freed));
                }
            }
            prop_assert_eq!(ledger.totals().sum(), POOL);
            prop_assert_eq!(ledger.totals().free, ledger.free());
        }
    }
}

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
