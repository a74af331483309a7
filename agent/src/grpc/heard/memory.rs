//! Messages about memory, as the shell takes and gives them. Lists are bounded here by what a GPU can hold, before
//! they reach the control thread.

use tidegate_node::memory::{Blocker, HeldBlocks, KvRegistered, MemoryOrder, MemorySaid, Usage};
use tidegate_node::text::Text;
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, KvId, LogSeq, ReclaimId, RequestId, StripeId, Tokens,
};
use tidegate_policy::layout::{Layout, MAX_BLOCKS};
use tidegate_policy::reclaim::{Answer, Direction};
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::{
    parts,
    v1::{self, MemoryResult},
};

/// What a process says of its memory; none: it is about something else.
pub(super) fn said(event: Event) -> Option<MemorySaid> {
    Some(match event {
        Event::KvRegistered(kv) => MemorySaid::KvRegistered(KvRegistered {
            kv: KvId(kv.kv),
            slot: kv.slot,
            elastic: kv.elastic,
            stripes: stripes(&kv),
            fixed: Bytes(kv.fixed_bytes),
            refused: Text::name(&kv.refused),
        }),
        Event::KvGone(gone) => MemorySaid::KvGone { kv: KvId(gone.kv) },
        Event::Checked(said) => checked(&said),
        Event::Reclaimed(done) => {
            let answer = answer(done.result());
            moved(done.seq, answer, done.stripes, done.log_seq)
        }
        Event::Restored(done) => {
            let answer = answer(done.result());
            moved(done.seq, answer, done.stripes, 0)
        }
        Event::Requests(requests) => MemorySaid::Requests {
            snapshot: requests.snapshot,
            set: requests.set.into_iter().map(held).collect(),
            forgotten: requests.forgotten.into_iter().map(RequestId).collect(),
        },
        Event::Withheld(withheld) => MemorySaid::Withheld {
            log: LogSeq(withheld.log_seq),
        },
        Event::Usage(said) => MemorySaid::Usage {
            slot: said.slot,
            usage: usage(&said),
        },
        Event::Demand(demand) => MemorySaid::Demand {
            ask: AskId(demand.ticket),
            slot: demand.slot,
            kv: (demand.kv != 0).then_some(KvId(demand.kv)),
            bytes: Bytes(demand.bytes),
            mapped: demand.mapped_bytes.map(Bytes),
            ahead: demand.ahead,
            usage: demand.usage.as_ref().map(usage),
        },
        Event::Mapped(mapped) => MemorySaid::Mapped {
            kv: KvId(mapped.kv),
            mapped: Bytes(mapped.mapped_bytes),
            seq: mapped.seq,
        },
        Event::Pressure(pressure) => MemorySaid::Pressure {
            kv: KvId(pressure.kv),
            used: Bytes(pressure.used_bytes),
        },
        _ => return None,
    })
}

fn usage(said: &v1::MemoryUsage) -> Usage {
    let unregistered = Bytes(said.unregistered_bytes);
    let counted = Bytes(said.plain_bytes).plus(unregistered);
    Usage {
        counted,
        unregistered,
        held: counted.plus(Bytes(said.kv_bytes)),
    }
}

fn checked(said: &v1::Checked) -> MemorySaid {
    let result = said.result();
    MemorySaid::Checked {
        reclaim: ReclaimId(said.seq),
        answer: answer(result),
        blocker: match result {
            MemoryResult::Ok => Blocker::None,
            MemoryResult::ThreadInside => Blocker::Inside(Text::name(&said.inside)),
            MemoryResult::Cancelled => Blocker::Refused(Text::name("the order came too late")),
            other => Blocker::Refused(Text::name(&format!("it answered {}", other.as_str_name()))),
        },
    }
}

fn moved(seq: u64, answer: Answer, stripes: Vec<u32>, log: u64) -> MemorySaid {
    MemorySaid::Moved {
        reclaim: ReclaimId(seq),
        answer,
        stripes: stripes.into_iter().map(StripeId).collect(),
        log: LogSeq(log),
    }
}

fn held(set: v1::RequestBlocks) -> HeldBlocks {
    let mut blocks = set.blocks;
    blocks.truncate(parts::BLOCKS);
    // Here, where nobody's preemption waits: what is in order already takes policy a look each.
    blocks.sort_unstable();
    blocks.dedup();
    HeldBlocks {
        request: RequestId(set.request),
        tokens: Tokens(set.tokens.into()),
        blocks: blocks.into_iter().map(BlockId).collect(),
    }
}

/// Requests in parts of `most`, since policy settles after each of them; anything else as it is.
pub(super) fn slices(said: MemorySaid, most: usize) -> Vec<MemorySaid> {
    let MemorySaid::Requests {
        snapshot,
        set,
        forgotten,
    } = said
    else {
        return vec![said];
    };
    let mut parts = Vec::new();
    let mut part = |set, forgotten| {
        parts.push(MemorySaid::Requests {
            snapshot: snapshot && parts.is_empty(),
            set,
            forgotten,
        });
    };
    let mut set = set.into_iter();
    loop {
        let some: Vec<HeldBlocks> = set.by_ref().take(most).collect();
        if some.is_empty() {
            break;
        }
        part(some, Vec::new());
    }
    for some in forgotten.chunks(most) {
        part(Vec::new(), some.to_vec());
    }
    if parts.is_empty() {
        parts.push(MemorySaid::Requests {
            snapshot,
            set: Vec::new(),
            forgotten: Vec::new(),
        });
    }
    parts
}

const fn answer(result: MemoryResult) -> Answer {
    match result {
        MemoryResult::Ok => Answer::Done,
        MemoryResult::Late => Answer::Late,
        MemoryResult::Cancelled => Answer::Missed,
        _ => Answer::Refused,
    }
}

/// An order as the protocol says it.
pub fn command(order: MemoryOrder) -> Command {
    match order {
        MemoryOrder::Check {
            reclaim,
            deadline_ns,
        } => Command::Check(v1::Check {
            seq: reclaim.0,
            deadline_ns,
        }),
        MemoryOrder::Move {
            reclaim,
            kv,
            direction,
            stripes,
            deadline_ns,
        } => {
            let (seq, kv) = (reclaim.0, kv.0);
            let stripes = stripes.into_iter().map(|stripe| stripe.0).collect();
            match direction {
                Direction::Reclaim => Command::Reclaim(v1::Reclaim {
                    seq,
                    kv,
                    stripes,
                    deadline_ns,
                }),
                Direction::Restore => Command::Restore(v1::Restore {
                    seq,
                    kv,
                    stripes,
                    deadline_ns,
                }),
            }
        }
        MemoryOrder::Cancel { reclaim } => {
            let seq = reclaim.0;
            Command::CancelReclaim(v1::CancelReclaim { seq })
        }
        MemoryOrder::Map { seq, kv, bytes } => Command::MapTarget(v1::MapTarget {
            seq,
            kv: kv.0,
            bytes: bytes.0,
        }),
        MemoryOrder::Answer { ask, granted } => Command::DemandAnswer(v1::DemandAnswer {
            ticket: ask.0,
            granted,
        }),
        MemoryOrder::Share {
            slot,
            bytes,
            yields,
        } => Command::Share(v1::Share {
            slot,
            total_bytes: bytes.unwrap_or_default().0,
            yields_bytes: yields.0,
            limited: bytes.is_some(),
        }),
    }
}

/// Least size of a handle: `cuMemGetAllocationGranularity` of every GPU that has virtual memory
/// management says 2 MiB.
const LEAST_HANDLE: u64 = 2 << 20;
/// Most bytes a cache may lie on: more than any GPU has.
const MOST_BYTES: u64 = 1 << 40;

/// Stripes as a process lists them; `None` if the lists contradict each other or no GPU has so much.
/// They stay the runs that they are said as: a stripe, which takes a byte of a message at least, takes some fifty here,
/// however many blocks it has. How many a tenant may describe, `grpc/budget.rs` says.
fn stripes(said: &v1::KvRegistered) -> Option<(Layout, Vec<bool>)> {
    let listed = parts::stripes(said)?;
    let handles: u64 = listed.iter().map(|(.., handles)| u64::from(*handles)).sum();
    let fits = said.handle_bytes >= LEAST_HANDLE
        && handles.checked_mul(said.handle_bytes)? <= MOST_BYTES
        && said.block_count <= MAX_BLOCKS;
    if !fits {
        return None;
    }
    let bit = |nth: usize| {
        let byte = said.backed.get(nth / 8).copied().unwrap_or(0);
        byte >> (nth % 8) & 1 == 1
    };
    let backed = (0..listed.len()).map(bit).collect();
    let stripe = |(first, blocks, handles): (u32, u32, u32)| {
        let fits = first.checked_add(blocks)? <= said.block_count && handles != 0;
        fits.then_some((handles, BlockId(first), blocks))
    };
    let stripes = listed.into_iter().map(stripe).collect::<Option<Vec<_>>>()?;
    Some((Layout::of_runs(stripes, Bytes(said.handle_bytes)), backed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> v1::KvRegistered {
        v1::KvRegistered {
            kv: 1,
            handle_bytes: 1 << 21,
            block_count: 8,
            first_block: vec![0, 3],
            blocks: vec![4, 5],
            handles: vec![2, 3],
            backed: vec![0b10],
            ..v1::KvRegistered::default()
        }
    }

    #[test]
    fn stripes_are_read_as_listed_and_handles_numbered_on() {
        let (layout, backed) = stripes(&said()).expect("they make sense");
        assert_eq!(backed, [false, true]);
        assert_eq!(layout.stripe_of_handle(4), Some(StripeId(1)));
        assert_eq!(layout.bytes(StripeId(1)), Bytes::mib(6));
        assert_eq!(layout.stripes_of(BlockId(3)).count(), 2, "at the border");
        assert_eq!(stripes(&parts::by_kinds(said())), stripes(&said()));
    }

    #[test]
    fn lists_that_contradict_each_other_are_refused() {
        let shorter = v1::KvRegistered {
            handles: vec![1],
            ..said()
        };
        let beyond = v1::KvRegistered {
            block_count: 7,
            ..said()
        };
        let huge = v1::KvRegistered {
            blocks: vec![u32::MAX, 1],
            ..said()
        };
        let many = v1::KvRegistered {
            handles: vec![u32::MAX, u32::MAX],
            ..said()
        };
        let small = v1::KvRegistered {
            handle_bytes: 1 << 20,
            ..said()
        };
        let empty = v1::KvRegistered {
            handles: vec![2, 0],
            ..said()
        };
        let unknown = v1::KvRegistered {
            stripe_kind: vec![0, 7],
            ..parts::by_kinds(said())
        };
        for wrong in [shorter, beyond, huge, many, small, empty, unknown] {
            assert_eq!(stripes(&wrong), None);
        }
    }

    #[test]
    fn a_stripe_of_every_block_takes_no_more_room_than_one_of_a_few() {
        let whole = v1::KvRegistered {
            block_count: MAX_BLOCKS,
            first_block: vec![0],
            blocks: vec![MAX_BLOCKS],
            handles: vec![1 << 19],
            ..said()
        };
        let (layout, _) = stripes(&whole).expect("a GPU of 1 TiB may have it");
        assert_eq!(layout.room(), 1 + 2 + 1, "a cut, two runs and a segment");
        assert_eq!(layout.blocks(StripeId(0)), u64::from(MAX_BLOCKS));
        assert_eq!(layout.bytes(StripeId(0)), Bytes(1 << 40));
    }
}
