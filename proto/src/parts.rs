//! How a library sends what may be long: in parts, or by what repeats.
//!
//! An agent decodes no message above 1 MiB, and closes a stream if one message costs more than it accepts at once. What
//! a process has is not bounded in this way. So each part is far below both limits, however much there is, and every
//! part except the first of a snapshot is an ordinary change.

use crate::v1::{KvRegistered, RequestBlocks, Requests, RmEvent, RmEvents, StripeKind};
use prost::Message as _;
use std::collections::BTreeMap;

/// Bytes of a part, unless one item alone has more.
pub const BYTES: usize = 128 << 10;
/// Requests, or changes of RM objects, in a part.
pub const ITEMS: usize = 1_024;
/// Bytes that each item takes beside its own.
const FRAME: usize = 6;
/// Blocks of one request that are said: the first ones. They are two million tokens of sixteen to a block.
pub const BLOCKS: usize = 1 << 17;

/// Requests as they are said. Without any, nothing is.
#[must_use]
pub fn requests(snapshot: bool, set: Vec<RequestBlocks>, forgotten: &[u64]) -> Vec<Requests> {
    let mut parts: Vec<Requests> = Vec::new();
    let mut bytes = 0;
    for mut held in set {
        held.blocks.truncate(BLOCKS);
        let more = held.encoded_len() + FRAME;
        match parts.last_mut() {
            Some(part) if part.set.len() < ITEMS && bytes + more <= BYTES => {
                part.set.push(held);
                bytes += more;
            }
            _ => {
                parts.push(Requests {
                    set: vec![held],
                    ..Requests::default()
                });
                bytes = more;
            }
        }
    }
    parts.extend(forgotten.chunks(ITEMS).map(|part| Requests {
        forgotten: part.to_vec(),
        ..Requests::default()
    }));
    if let Some(first) = parts.first_mut() {
        first.snapshot = snapshot;
    }
    parts
}

/// Changes of RM objects as they are said. A snapshot is said if it is empty, too.
#[must_use]
pub fn changes(snapshot: bool, events: Vec<RmEvent>) -> Vec<RmEvents> {
    let mut parts: Vec<RmEvents> = events
        .chunks(ITEMS)
        .map(|part| RmEvents {
            snapshot: false,
            events: part.to_vec(),
        })
        .collect();
    if parts.is_empty() && snapshot {
        parts.push(RmEvents::default());
    }
    if let Some(first) = parts.first_mut() {
        first.snapshot = snapshot;
    }
    parts
}

/// A cache by the kinds of its stripes, for an agent that understands them ([`crate::v1::Welcome::memory`]).
#[must_use]
pub fn by_kinds(mut said: KvRegistered) -> KvRegistered {
    let mut known = BTreeMap::new();
    let mut before = 0_u32;
    let sizes = said.blocks.iter().zip(&said.handles);
    for (first, (blocks, handles)) in said.first_block.iter().zip(sizes) {
        let kind = (first.wrapping_sub(before), *blocks, *handles);
        before = *first;
        let fresh = u32::try_from(said.stripe_kinds.len()).unwrap_or(u32::MAX);
        let index = *known.entry(kind).or_insert(fresh);
        if index == fresh {
            let (step, blocks, handles) = kind;
            said.stripe_kinds.push(StripeKind {
                step,
                blocks,
                handles,
            });
        }
        said.stripe_kind.push(index);
    }
    (said.first_block, said.blocks, said.handles) = Default::default();
    said
}

/// The stripes of a cache, however they are said: first block, blocks, handles. None: it contradicts itself.
#[must_use]
pub fn stripes(said: &KvRegistered) -> Option<Vec<(u32, u32, u32)>> {
    let listed = said.first_block.len();
    if said.blocks.len() != listed || said.handles.len() != listed {
        return None;
    }
    if said.stripe_kind.is_empty() {
        let sizes = said.blocks.iter().zip(&said.handles);
        let all = said.first_block.iter().zip(sizes);
        return Some(
            all.map(|(first, (blocks, handles))| (*first, *blocks, *handles))
                .collect(),
        );
    }
    if listed != 0 {
        return None;
    }
    let mut first = 0_u32;
    let stripe = |index: &u32| {
        let kind = said.stripe_kinds.get(usize::try_from(*index).ok()?)?;
        first = first.wrapping_add(kind.step);
        Some((first, kind.blocks, kind.handles))
    };
    said.stripe_kind.iter().map(stripe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(stripes: u32, blocks: impl Fn(u32) -> (u32, u32)) -> KvRegistered {
        let all: Vec<(u32, u32)> = (0..stripes).map(blocks).collect();
        KvRegistered {
            first_block: all.iter().map(|(first, _)| *first).collect(),
            blocks: all.iter().map(|(_, blocks)| *blocks).collect(),
            handles: (0..stripes).map(|nth| 1 + nth % 2).collect(),
            ..KvRegistered::default()
        }
    }

    #[test]
    fn a_cache_said_by_kinds_is_the_same_cache() {
        // Blocks of 3/7 of a handle: each stripe shares one with the next, or does not.
        let uneven = |nth: u32| {
            let (first, last) = (nth * 7 / 3, ((nth + 1) * 7 - 1) / 3);
            (first, last - first + 1)
        };
        for listed in [
            cache(0, |nth| (nth, 1)),
            cache(20_000, |nth| (nth, 1)),
            cache(20_000, uneven),
            cache(3, |nth| (9 - 3 * nth, 2)),
        ] {
            let short = by_kinds(listed.clone());
            assert_eq!(stripes(&short), stripes(&listed));
            assert!(
                short.stripe_kinds.len() <= 13,
                "{}",
                short.stripe_kinds.len()
            );
            assert!(
                short.first_block.is_empty() && short.blocks.is_empty() && short.handles.is_empty()
            );
        }
    }

    #[test]
    fn a_description_that_contradicts_itself_is_none() {
        let right = by_kinds(cache(4, |nth| (nth, 1)));
        let beyond = KvRegistered {
            stripe_kind: vec![0, 99],
            ..right.clone()
        };
        let both = KvRegistered {
            first_block: vec![0],
            blocks: vec![1],
            handles: vec![1],
            ..right.clone()
        };
        let shorter = KvRegistered {
            handles: Vec::new(),
            ..cache(4, |nth| (nth, 1))
        };
        assert!(stripes(&right).is_some());
        for wrong in [beyond, both, shorter] {
            assert_eq!(stripes(&wrong), None);
        }
    }

    #[test]
    fn parts_say_in_order_all_that_one_message_would() {
        let held = |request: u64| RequestBlocks {
            request,
            tokens: 16,
            blocks: (0..u32::try_from(request).unwrap_or(0) % 5_000).collect(),
        };
        let set: Vec<_> = (0..3_000).map(held).collect();
        let forgotten: Vec<u64> = (5_000..8_000).collect();
        for snapshot in [false, true] {
            let parts = requests(snapshot, set.clone(), &forgotten);
            assert!(parts.iter().all(|part| part.encoded_len() <= BYTES + 64));
            let first = parts.iter().map(|part| part.snapshot);
            assert!(first.eq((0..parts.len()).map(|nth| snapshot && nth == 0)));
            assert!(
                parts
                    .iter()
                    .flat_map(|part| part.set.clone())
                    .eq(set.clone())
            );
            assert!(
                parts
                    .iter()
                    .flat_map(|part| part.forgotten.clone())
                    .eq(forgotten.clone())
            );
        }
        assert!(requests(true, Vec::new(), &[]).is_empty());
        let parts = changes(true, vec![RmEvent::default(); 5_000]);
        assert_eq!(
            parts.iter().map(|part| part.events.len()).sum::<usize>(),
            5_000
        );
        assert_eq!(parts.iter().filter(|part| part.snapshot).count(), 1);
        assert!(parts[0].snapshot);
        assert_eq!(changes(true, Vec::new()).len(), 1);
        assert!(changes(false, Vec::new()).is_empty());
    }
}
