//! Memory between the policy and the processes: messages in, orders out.
//!
//! Nothing is decided here. What a process says of its memory becomes an event of the policy; an
//! order of the policy becomes a command to the process, or, where nobody is there to take it, an
//! answer that says so. What an online engine uses is read from its page, at every round and when it
//! says that it is under pressure.

use super::Control;
use super::session::{Held, Hindrance, Session, Slot};
use crate::config::Role;
use crate::events::Happening;
use crate::inbox::Tell;
use crate::plain;
use std::sync::atomic::Ordering::Acquire;
use tidegate_policy::effect::{Effect, Granted};
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, GpuId, KvId, LogSeq, ReclaimId, RequestId, SessionId, StripeId, Tokens,
};
use tidegate_policy::layout::{Layout, MAX_BLOCKS};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::reclaim::{Answer, Direction};
use tidegate_policy::time::Instant;
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event as Said;
use tidegate_proto::v1::{self, MemoryResult};

/// An elastic cache whose use is read from a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    session: u64,
    slot: usize,
    kv: KvId,
    used: u64,
    /// Number of the latest order about what is mapped.
    ordered: u64,
}

impl Control {
    /// Steps the policy with one event about memory, and with all that follows from it.
    pub(super) fn feed_memory(&mut self, event: MemoryEvent<'_>) {
        if !self.may_step() {
            return;
        }
        self.shares_stale = true;
        let mut effects = std::mem::take(&mut self.effects);
        effects.clear();
        let now = Instant::from_nanos(self.now);
        let event = event.into();
        self.node.step(event, now, &mut effects);
        if let Some(recorder) = &mut self.recorder {
            recorder.stepped(&event, now, &effects);
        }
        self.carry_out_all(effects);
        self.drain();
    }

    /// Says how much of each GPU is shared out.
    pub(super) fn share_pools(&mut self, bytes: u64) {
        for gpu in 0..self.gpus.len() {
            self.share_pool(super::gpu_id(gpu), bytes);
        }
    }

    /// The same of one.
    pub(super) fn share_pool(&mut self, gpu: GpuId, bytes: u64) {
        let bytes = Bytes(bytes);
        self.feed_memory(MemoryEvent::Pool { gpu, bytes });
    }

    pub(super) fn hear_memory(&mut self, id: u64, said: Said) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let slot_of = |slot: u32| session.slots.get(slot as usize).and_then(|slot| slot.gpu);
        let (role, job) = (session.role, session.job);
        let session = SessionId(id);
        match said {
            Said::KvRegistered(kv) => {
                let Some(gpu) = slot_of(kv.slot) else { return };
                self.register(session, role, gpu, kv);
            }
            Said::KvGone(gone) => {
                let kv = KvId(gone.kv);
                self.watched.retain(|w| (w.session, w.kv) != (id, kv));
                self.feed_memory(MemoryEvent::KvGone { session, kv });
            }
            Said::Prepared(prepared) => {
                let (reclaim, result) = (ReclaimId(prepared.seq), prepared.result());
                let hindrance = match result {
                    MemoryResult::Ok => Hindrance::None,
                    MemoryResult::ThreadInside => Hindrance::Inside(plain::name(&prepared.inside)),
                    result => Hindrance::Refused(result),
                };
                if let Some((asked, found)) = self
                    .sessions
                    .get_mut(&id)
                    .and_then(|known| known.hindrance.as_mut())
                    && *asked == reclaim
                {
                    *found = hindrance;
                }
                let answer = answer(result);
                self.feed_memory(MemoryEvent::Prepared {
                    reclaim,
                    session,
                    answer,
                });
            }
            Said::Reclaimed(done) => self.moved(
                session,
                done.seq,
                done.result(),
                &done.stripes,
                done.log_seq,
            ),
            Said::Restored(done) => {
                self.moved(session, done.seq, done.result(), &done.stripes, 0);
            }
            // Only the job's own processes say who holds its blocks.
            Said::Requests(requests) if job.is_some() => {
                if requests.snapshot {
                    let request = None;
                    self.feed_memory(MemoryEvent::Forgotten { session, request });
                }
                for held in requests.set {
                    let blocks: Vec<BlockId> = held.blocks.iter().copied().map(BlockId).collect();
                    self.feed_memory(MemoryEvent::Published {
                        session,
                        request: RequestId(held.request),
                        tokens: Tokens(held.tokens.into()),
                        blocks: &blocks,
                    });
                }
                for request in requests.forgotten {
                    let request = Some(RequestId(request));
                    self.feed_memory(MemoryEvent::Forgotten { session, request });
                }
            }
            Said::Withheld(withheld) => {
                let log = LogSeq(withheld.log_seq);
                self.feed_memory(MemoryEvent::Withheld { session, log });
            }
            Said::Usage(usage) => {
                let Some(gpu) = slot_of(usage.slot) else {
                    return;
                };
                let unregistered = Bytes(usage.unregistered_bytes);
                let bytes = Bytes(usage.plain_bytes).plus(unregistered);
                if let Some(known) = self.sessions.get_mut(&id) {
                    known.slots[usage.slot as usize].unregistered = unregistered;
                }
                self.feed_memory(MemoryEvent::Counted {
                    session,
                    gpu,
                    bytes,
                });
            }
            Said::Demand(demand) => {
                let ask = AskId(demand.ticket);
                let Some(gpu) = slot_of(demand.slot).filter(|_| role == Role::Online) else {
                    return self.answer_ask(session, ask, Granted::No);
                };
                self.feed_memory(MemoryEvent::Asked {
                    session,
                    ask,
                    gpu,
                    kv: (demand.kv != 0).then_some(KvId(demand.kv)),
                    bytes: Bytes(demand.bytes),
                    mapped: demand.mapped_bytes.map(Bytes),
                });
            }
            Said::Mapped(mapped) => self.feed_memory(MemoryEvent::Mapped {
                session,
                kv: KvId(mapped.kv),
                mapped: Bytes(mapped.mapped_bytes),
                last: self
                    .watched
                    .iter()
                    .all(|w| (w.session, w.kv.0) != (id, mapped.kv) || w.ordered <= mapped.seq),
            }),
            Said::Pressure(pressure) => {
                let (kv, used) = (KvId(pressure.kv), pressure.used_bytes);
                // It may be over: the page is compared with what was said, not with what it held
                // before, or the policy would go on with a use that is no more.
                let mut watched = self.watched.iter_mut();
                if let Some(watched) = watched.find(|w| (w.session, w.kv) == (id, kv)) {
                    watched.used = used;
                }
                self.feed_memory(MemoryEvent::Usage {
                    session,
                    kv,
                    used: Bytes(used),
                });
            }
            _ => {}
        }
    }

    fn register(&mut self, session: SessionId, role: Role, gpu: GpuId, said: v1::KvRegistered) {
        let kv = KvId(said.kv);
        let Some((layout, backed)) = stripes(&said) else {
            return self.tell_of(session, "kv_refused", "its stripes make no sense");
        };
        let sum = |which: &dyn Fn(usize) -> bool| -> Bytes {
            (0u32..)
                .take(layout.len())
                .filter(|nth| which(*nth as usize))
                .map(|nth| layout.bytes(StripeId(nth)))
                .sum()
        };
        let fixed = Bytes(said.fixed_bytes);
        let held = sum(&|nth| backed[nth]).plus(fixed);
        // Until it was registered it was counted with what no cache has.
        let mut counted = Bytes::ZERO;
        if let Some(slot) = self
            .sessions
            .get_mut(&session.0)
            .and_then(|known| known.slots.get_mut(said.slot as usize))
        {
            counted = held.min(slot.unregistered);
            slot.unregistered = slot.unregistered.minus(counted);
        }
        let owner = self.sessions.get(&session.0);
        match owner.and_then(|owner| owner.job) {
            Some(job) => {
                if !said.refused.is_empty() {
                    let why = plain::name(&said.refused);
                    self.tell_of(session, "kv_not_reclaimable", &why);
                }
                self.feed_memory(MemoryEvent::KvRegistered {
                    session,
                    job,
                    gpu,
                    kv,
                    layout: &layout,
                    backed: &backed,
                    fixed,
                    reclaimable: said.refused.is_empty() && !said.elastic,
                    counted,
                });
            }
            None if role == Role::Online && said.elastic => {
                let slot = said.slot as usize;
                self.watched
                    .retain(|w| (w.session, w.kv) != (session.0, kv));
                self.watched.push(Watched {
                    session: session.0,
                    slot,
                    kv,
                    used: 0,
                    ordered: 0,
                });
                let mapped = sum(&|nth| backed[nth]);
                let most = sum(&|_| true);
                let handle = layout.handle();
                let stripes = (0u32..).take(layout.len()).map(StripeId);
                let stripe = stripes.map(|nth| layout.bytes(nth)).max();
                let stripe = stripe.unwrap_or(handle);
                self.feed_memory(MemoryEvent::ElasticRegistered {
                    session,
                    gpu,
                    kv,
                    mapped,
                    fixed,
                    most,
                    handle,
                    stripe,
                });
            }
            None => {}
        }
    }

    fn moved(
        &mut self,
        session: SessionId,
        seq: u64,
        result: MemoryResult,
        stripes: &[u32],
        log: u64,
    ) {
        let stripes: Vec<StripeId> = stripes.iter().copied().map(StripeId).collect();
        self.feed_memory(MemoryEvent::Moved {
            reclaim: ReclaimId(seq),
            session,
            answer: answer(result),
            stripes: &stripes,
            log: LogSeq(log),
        });
        self.note_move(session, self.node.is_moving(session));
    }

    /// Writes down for a successor whether the process may be in the middle of changing mappings.
    fn note_move(&self, session: SessionId, moving: bool) {
        let Some(known) = self.sessions.get(&session.0) else {
            return;
        };
        for place in known.channels.iter().filter_map(|held| held.place) {
            if moving {
                self.journal
                    .begin_move(place, known.process.pid.cast_unsigned());
            } else {
                self.journal.end_move(place);
            }
        }
    }

    /// What engines use, from their pages.
    pub(super) fn read_usage(&mut self) {
        for place in 0..self.watched.len() {
            let watched = self.watched[place];
            let page = self.sessions.get(&watched.session);
            let page = page.and_then(|session| session.page.as_ref());
            let Some(words) = page.and_then(|page| page.memory.get(watched.slot)) else {
                continue;
            };
            let version = words.version.load(Acquire);
            let used = words.used.load(Acquire);
            let torn = version % 2 == 1 || words.version.load(Acquire) != version;
            if !torn && used != watched.used {
                self.watched[place].used = used;
                self.feed_memory(MemoryEvent::Usage {
                    session: SessionId(watched.session),
                    kv: watched.kv,
                    used: Bytes(used),
                });
            }
        }
    }

    /// Tells offline processes what their share of each GPU has become.
    pub(super) fn tell_shares(&mut self) {
        if !std::mem::take(&mut self.shares_stale) {
            return;
        }
        let node = &self.node;
        let offline = |session: &&mut Session| session.job.is_some() && session.takes_memory;
        for session in self.sessions.values_mut().filter(offline) {
            for at in 0..session.slots.len() {
                let Slot {
                    gpu, share: told, ..
                } = session.slots[at];
                let share = gpu.and_then(|gpu| node.share(SessionId(session.id), gpu));
                let Some(bytes) = share.filter(|_| share != told) else {
                    continue;
                };
                let slot = u32::try_from(at).unwrap_or(u32::MAX);
                let total_bytes = bytes.0;
                let command = Command::Share(v1::Share { slot, total_bytes });
                if session.tell(Tell::Memory(Box::new(command))) {
                    session.slots[at].share = share;
                }
            }
        }
    }

    /// An order about memory goes to its process.
    pub(super) fn order_memory(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare {
                reclaim,
                session,
                until,
            } => {
                let prepare = Command::Prepare(v1::Prepare {
                    seq: reclaim.0,
                    deadline_ns: until.as_nanos(),
                });
                let known = self.sessions.get(&session.0);
                let stoppable = known.is_some_and(|known| {
                    let uses = known.gpus().next().is_some();
                    !known.launch_gated && all_stoppable(&known.channels, uses)
                });
                let told = stoppable && self.tell_memory(session, prepare);
                if let Some(known) = self.sessions.get_mut(&session.0) {
                    let hindrance = if told {
                        Hindrance::Silent
                    } else {
                        Hindrance::Unstoppable
                    };
                    known.hindrance = Some((reclaim, hindrance));
                }
                if !told {
                    self.unanswerable.push((reclaim, session));
                }
            }
            Effect::Move {
                reclaim,
                session,
                kv,
                direction,
                until,
            } => {
                self.note_move(session, true);
                let stripes = self.node.stripes(reclaim).iter();
                let stripes = stripes.map(|stripe| stripe.0).collect();
                let (seq, kv, deadline_ns) = (reclaim.0, kv.0, until.as_nanos());
                // A process that does not listen may be anywhere in an earlier order: it is waited
                // for until it is gone.
                self.tell_memory(
                    session,
                    match direction {
                        Direction::Take => Command::Reclaim(v1::Reclaim {
                            seq,
                            kv,
                            stripes,
                            deadline_ns,
                        }),
                        Direction::GiveBack => Command::Restore(v1::Restore {
                            seq,
                            kv,
                            stripes,
                            deadline_ns,
                        }),
                    },
                );
            }
            Effect::CancelMove { reclaim, session } => {
                let seq = reclaim.0;
                self.tell_memory(session, Command::CancelReclaim(v1::CancelReclaim { seq }));
            }
            Effect::Map { session, kv, bytes } => {
                self.map_orders += 1;
                let same = |w: &&mut Watched| (w.session, w.kv) == (session.0, kv);
                if let Some(watched) = self.watched.iter_mut().find(same) {
                    watched.ordered = self.map_orders;
                }
                let target = v1::MapTarget {
                    seq: self.map_orders,
                    kv: kv.0,
                    bytes: bytes.0,
                };
                self.tell_memory(session, Command::MapTarget(target));
            }
            Effect::AnswerAsk {
                session,
                ask,
                granted,
            } => self.answer_ask(session, ask, granted),
            _ => {}
        }
    }

    fn answer_ask(&mut self, session: SessionId, ask: AskId, granted: Granted) {
        let answer = v1::DemandAnswer {
            ticket: ask.0,
            granted: granted == Granted::Yes,
        };
        self.tell_memory(session, Command::DemandAnswer(answer));
    }

    fn tell_memory(&mut self, session: SessionId, command: Command) -> bool {
        let session = self.sessions.get_mut(&session.0);
        session.is_some_and(|session| {
            session.takes_memory && session.tell(Tell::Memory(Box::new(command)))
        })
    }

    fn tell_of(&self, session: SessionId, kind: &'static str, text: &str) {
        self.tell(Happening {
            kind,
            session: session.0,
            text: text.to_owned(),
            ..Happening::default()
        });
    }

    /// Answers for processes that nobody could ask.
    pub(super) fn answer_for_the_deaf(&mut self) -> bool {
        let Some((reclaim, session)) = self.unanswerable.pop() else {
            return false;
        };
        self.feed_memory(MemoryEvent::Prepared {
            reclaim,
            session,
            answer: Answer::Refused,
        });
        true
    }
}

/// Whether a disable of a process' managed channels stops all of it. One that shows no channel, or one
/// whose client is not proven, would still write to memory that is taken from under it.
fn all_stoppable(channels: &[Held], uses_a_gpu: bool) -> bool {
    let managed = channels.iter().all(|held| held.place.is_some());
    managed && (!channels.is_empty() || !uses_a_gpu)
}

const fn answer(result: MemoryResult) -> Answer {
    match result {
        MemoryResult::Ok => Answer::Done,
        MemoryResult::Late => Answer::Late,
        MemoryResult::Cancelled => Answer::Missed,
        _ => Answer::Refused,
    }
}

/// Least size of a handle: `cuMemGetAllocationGranularity` of every GPU that has virtual memory
/// management says 2 MiB.
const LEAST_HANDLE: u64 = 2 << 20;
/// Most bytes a cache may lie on: more than any GPU has.
const MOST_BYTES: u64 = 1 << 40;

/// Stripes as a process lists them; `None` if the lists contradict each other or no GPU has so much.
/// They stay the runs that they are said as, so that a few bytes of a message never take megabytes here.
fn stripes(said: &v1::KvRegistered) -> Option<(Layout, Vec<bool>)> {
    let count = said.first_block.len();
    let handles: u64 = said.handles.iter().map(|handles| u64::from(*handles)).sum();
    let fits = said.handle_bytes >= LEAST_HANDLE
        && handles.checked_mul(said.handle_bytes)? <= MOST_BYTES
        && said.block_count <= MAX_BLOCKS;
    if said.blocks.len() != count || said.handles.len() != count || !fits {
        return None;
    }
    let mut stripes = Vec::with_capacity(count);
    for nth in 0..count {
        let blocks = (said.first_block[nth], said.blocks[nth]);
        let ends = blocks.0.checked_add(blocks.1)?;
        if ends > said.block_count || said.handles[nth] == 0 {
            return None;
        }
        stripes.push((said.handles[nth], BlockId(blocks.0), blocks.1));
    }
    let bit = |nth: usize| {
        let byte = said.backed.get(nth / 8).copied().unwrap_or(0);
        byte >> (nth % 8) & 1 == 1
    };
    let backed = (0..count).map(bit).collect();
    Some((Layout::of_runs(stripes, Bytes(said.handle_bytes)), backed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Channel;
    use crate::journal::Places;

    #[test]
    fn memory_is_taken_only_where_every_channel_can_be_stopped() {
        let channel = Channel {
            client: 1,
            channel: 2,
            tsg: 2,
            engine: tidegate_abi::class::Engine::Graphics,
            device_instance: Some(0),
            uuid: None,
            subdevice: 0,
        };
        let held = |place| Held {
            channel,
            gpu: Some(GpuId(0)),
            place,
        };
        let place = Places::without(&[]).take();
        assert!(place.is_some());
        let managed = held(place);
        assert!(all_stoppable(&[managed, managed], true));
        assert!(!all_stoppable(&[managed, held(None)], true));
        assert!(!all_stoppable(&[], true));
        assert!(all_stoppable(&[], false));
    }

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
        for wrong in [shorter, beyond, huge, many, small, empty] {
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
