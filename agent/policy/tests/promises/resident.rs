//! A trainer's layers beside online's cache, against trying it out.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::ids::Bytes;
use tidegate_policy::resident::{Demand, LEAST_LAYERS, loads, reserve, resident};

fn demand() -> impl Strategy<Value = Demand> {
    (
        0u64..20_000,
        0u64..20_000,
        1u64..50_000,
        0u32..300,
        1u64..200_000,
        1u64..2_000_000,
    )
        .prop_map(
            |(detect, release, per_token, requests, token, chunk)| Demand {
                detect: Duration::from_micros(detect),
                release: Duration::from_micros(release),
                per_token: Duration::from_micros(per_token),
                requests,
                token: Bytes(token),
                chunk: Bytes(chunk),
            },
        )
}

/// The most that online takes of the cache until memory comes: each request makes a token whenever it may.
fn taken(of: &Demand) -> u64 {
    let (mut at, mut bytes) = (Duration::ZERO, 0);
    while at < of.detect + of.release {
        bytes += u64::from(of.requests) * of.token.0;
        at += of.per_token;
    }
    bytes
}

/// Layers loaded until a step of `batches` is done, once what was there before it is forgotten, by going through them:
/// there is room for `room`, and the one used longest ago leaves.
fn gone_through(room: usize, layers: u32, batches: u32) -> u64 {
    let mut there: Vec<u32> = Vec::new();
    let mut loaded = 0;
    for batch in 0..=batches {
        for layer in (0..layers).chain((0..layers).rev()) {
            if let Some(at) = there.iter().position(|known| *known == layer) {
                there.remove(at);
            } else {
                loaded += u64::from(batch > 0);
                if there.len() == room {
                    there.remove(0);
                }
            }
            there.push(layer);
        }
    }
    loaded
}

/// The fewest loads that any choice of what leaves comes to: what is used again last does (Belady).
fn fewest(room: usize, layers: u32, batches: u32) -> u64 {
    let turn: Vec<u32> = (0..layers).chain((0..layers).rev()).collect();
    // Two turns more: what is used after the last one counted is still known.
    let order: Vec<u32> = turn.repeat(batches as usize + 3);
    let mut there: Vec<u32> = Vec::new();
    let mut loaded = 0;
    for (at, layer) in order[..turn.len() * (batches as usize + 1)]
        .iter()
        .enumerate()
    {
        if there.contains(layer) {
            continue;
        }
        loaded += u64::from(at >= turn.len());
        if there.len() == room {
            let next = |known: &u32| order[at..].iter().position(|used| used == known);
            let last = (0..there.len())
                .max_by_key(|nth| next(&there[*nth]))
                .expect("there is one");
            there.swap_remove(last);
        }
        there.push(*layer);
    }
    loaded
}

proptest! {
    /// P-TRAINER-11: what is kept free suffices until memory comes, and is no chunk more.
    #[test]
    fn the_reserve_suffices_and_is_no_chunk_more(demand in demand()) {
        let kept = reserve(demand).0;
        let wanted = taken(&demand);
        prop_assert!(kept >= wanted, "{kept} of {wanted}");
        prop_assert!(kept < wanted + demand.chunk.0);
        prop_assert_eq!(kept % demand.chunk.0, 0);
        // Of less than a token's time, each request may still want one.
        let at_once = Demand { detect: Duration::from_nanos(1), release: Duration::ZERO, ..demand };
        prop_assert!(reserve(at_once).0 >= u64::from(demand.requests) * demand.token.0);
    }

    /// P-TRAINER-11: the layers that stay fit beside the reserve, and one more would not.
    #[test]
    fn as_many_layers_stay_as_fit_and_never_fewer_than_the_machine_needs(
        free in 0u64..1_000_000,
        kept in 0u64..300_000,
        layer in 0u64..50_000,
        layers in 0u32..100,
    ) {
        let stay = resident(Bytes(free), Bytes(kept), Bytes(layer), layers);
        prop_assert!(stay <= layers && stay >= LEAST_LAYERS.min(layers));
        let fits = |count: u32| u64::from(count) * layer + kept <= free;
        prop_assert!(fits(stay) || stay <= LEAST_LAYERS);
        prop_assert!(stay == layers || !fits(stay + 1));
        // Online takes more, and no layer comes.
        let less = resident(Bytes(free / 2), Bytes(kept), Bytes(layer), layers);
        prop_assert!(less <= stay);
    }

    /// P-TRAINER-11: dropping what was used longest ago loads as few layers as any choice could.
    #[test]
    fn no_choice_of_what_leaves_loads_fewer_layers(
        layers in 2u32..12,
        room in 2u32..14,
        batches in 1u32..5,
    ) {
        let room = room.min(layers);
        let said = loads(room, layers, batches);
        prop_assert_eq!(gone_through(room as usize, layers, batches), said);
        prop_assert_eq!(fewest(room as usize, layers, batches), said);
    }
}

/// P-TRAINER-11: HARLI's load (section 8.5, Fig. 13): requests of 2,048 tokens, 8, 42, then 24 of them, beside
/// an 8B model that is trained in 16 GiB.
#[test]
fn with_the_published_load_layers_leave_and_come_back() {
    const LAYER: Bytes = Bytes(436_224_000);
    let kept = reserve(Demand {
        detect: Duration::from_micros(340),
        release: Duration::from_millis(8),
        per_token: Duration::from_millis(40),
        requests: 64,
        token: Bytes(131_072),
        chunk: Bytes::mib(128),
    });
    // As printed it would be 1.7 MiB. Each of 64 requests may want a token, which makes 8, and a chunk is the least.
    assert_eq!(kept, Bytes::mib(128));
    let free = |requests: u64| Bytes(16 << 30).minus(Bytes(requests * 2_048 * 131_072));
    let stay = [8, 42, 24].map(|requests| resident(free(requests), kept, LAYER, 32));
    assert_eq!(stay, [32, 13, 24]);
    assert_eq!(stay.map(|stay| loads(stay, 32, 1)), [0, 38, 16]);
}
