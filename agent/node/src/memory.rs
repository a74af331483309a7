//! Memory messages between policy and the processes.
//!
//! Nothing is decided here. A report of a process becomes an event of policy. An order of policy becomes an order to
//! the process; if the process is gone, it becomes an answer that says so. What an online engine uses is read from its
//! page, in every round, and when the process reports pressure.

use crate::adoption::Adoption;
use crate::kinds::Role;
use crate::latency::Latencies;
use crate::members::Members;
use crate::message::Tell;
pub use crate::message::memory::{
    Blocker, HeldBlocks, KvRegistered, MemoryOrder, MemorySaid, Usage,
};
use crate::request::{Context, Notice};
use crate::session::{Held, Session, Slot};
use std::sync::atomic::Ordering::Acquire;
use tidegate_policy::effect::{Effect, Granted};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{AskId, Bytes, GpuId, JobId, KvId, ReclaimId, SessionId, StripeId};
use tidegate_policy::layout::Layout;
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;
use tidegate_policy::reclaim::Answer;
use tidegate_policy::time::Instant;

/// The shell's state about memory.
#[derive(Debug)]
pub struct Memory {
    /// Elastic caches whose use is read from pages.
    watched: Vec<Watched>,
    /// Processes that could not be asked, by reclaim.
    unanswerable: Vec<(ReclaimId, SessionId)>,
    /// What offline processes see may have changed.
    pub(crate) shares_stale: bool,
    map_orders: u64,
    /// Time from the demand to the last answer.
    pub reclaims: Latencies,
}

/// An elastic cache whose use is read from a page.
#[derive(Clone, Copy, Debug)]
struct Watched {
    session: u64,
    slot: usize,
    kv: KvId,
    used: Bytes,
    /// Number of the latest order about what is mapped.
    ordered: u64,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            watched: Vec::new(),
            unanswerable: Vec::new(),
            shares_stale: false,
            map_orders: 0,
            reclaims: Latencies::new(),
        }
    }

    /// Makes the event for policy when a process reports something about its memory.
    pub(crate) fn hear<'a>(
        &mut self,
        id: u64,
        said: &'a MemorySaid,
        members: &mut Members,
        cx: &mut Context<'_>,
    ) -> Vec<Event<'a>> {
        let Some(known) = members.get(id) else {
            return Vec::new();
        };
        let slot_of = |slot: u32| known.slots.get(slot as usize).and_then(|slot| slot.gpu);
        let (role, job) = (known.role, known.job);
        let session = SessionId(id);
        let event = match said {
            MemorySaid::KvRegistered(said) => {
                let Some(gpu) = slot_of(said.slot) else {
                    return Vec::new();
                };
                let registered = self.register((session, role, gpu), said, members, cx);
                return registered.into_iter().map(Event::Memory).collect();
            }
            MemorySaid::KvGone { kv } => {
                self.watched.retain(|w| (w.session, w.kv) != (id, *kv));
                MemoryEvent::KvGone { session, kv: *kv }
            }
            MemorySaid::Checked {
                reclaim,
                answer,
                blocker,
            } => {
                note_blocker(id, *reclaim, blocker, members);
                MemoryEvent::Checked {
                    reclaim: *reclaim,
                    session,
                    answer: *answer,
                }
            }
            MemorySaid::Moved {
                reclaim,
                answer,
                stripes,
                log,
            } => MemoryEvent::Moved {
                reclaim: *reclaim,
                session,
                answer: *answer,
                stripes,
                log: *log,
            },
            MemorySaid::Requests { .. } => return requests(session, job, said),
            MemorySaid::Withheld { log } => MemoryEvent::Withheld { session, log: *log },
            MemorySaid::Usage { slot, usage } => {
                let Some(gpu) = slot_of(*slot) else {
                    return Vec::new();
                };
                count((session, gpu), *slot, *usage, members)
            }
            MemorySaid::Demand { slot, .. } => {
                let gpu = slot_of(*slot);
                return demanded((session, role, gpu), said, members);
            }
            MemorySaid::Mapped { kv, mapped, seq } => MemoryEvent::Mapped {
                session,
                kv: *kv,
                mapped: *mapped,
                last: self.is_last((id, *kv), *seq),
            },
            MemorySaid::Pressure { kv, used } => {
                self.note_used((id, *kv), *used);
                MemoryEvent::Usage {
                    session,
                    kv: *kv,
                    used: *used,
                }
            }
        };
        vec![event.into()]
    }

    /// Whether `seq` is of the last order about the mapped size of a cache.
    fn is_last(&self, cache: (u64, KvId), seq: u64) -> bool {
        let of_others = |w: &Watched| (w.session, w.kv) != cache;
        let mut watched = self.watched.iter();
        watched.all(|w| of_others(w) || w.ordered <= seq)
    }

    /// A process reported its use. That may be outdated: the page is compared with the report, not with what the
    /// process held before. Otherwise policy would continue with a use that no longer exists.
    fn note_used(&mut self, cache: (u64, KvId), used: Bytes) {
        let mut watched = self.watched.iter_mut();
        if let Some(watched) = watched.find(|w| (w.session, w.kv) == cache) {
            watched.used = used;
        }
    }

    fn register<'a>(
        &mut self,
        (session, role, gpu): (SessionId, Role, GpuId),
        said: &'a KvRegistered,
        members: &mut Members,
        cx: &mut Context<'_>,
    ) -> Option<MemoryEvent<'a>> {
        let Some((layout, backed)) = &said.stripes else {
            remark(session, "kv_refused", "its stripes make no sense", cx);
            return None;
        };
        let (kv, fixed) = (said.kv, said.fixed);
        let mapped = sum(layout, |nth| backed.get(nth).copied().unwrap_or(false));
        let known = members.get_mut(session.0)?;
        // Until it was registered it was counted with what no cache has.
        let mut counted = Bytes::ZERO;
        if let Some(slot) = known.slots.get_mut(said.slot as usize) {
            counted = mapped.plus(fixed).min(slot.unregistered);
            slot.unregistered = slot.unregistered.minus(counted);
        }
        match known.job {
            Some(job) => {
                if !said.refused.is_empty() {
                    remark(session, "kv_not_reclaimable", &said.refused, cx);
                }
                Some(MemoryEvent::KvRegistered {
                    session,
                    job,
                    gpu,
                    kv,
                    layout,
                    backed,
                    fixed,
                    reclaimable: said.refused.is_empty() && !said.elastic,
                    counted,
                })
            }
            None if role == Role::Online && said.elastic => {
                let same = |w: &mut Watched| (w.session, w.kv) == (session.0, kv);
                // Said again, it has not answered what it was told before.
                let ordered = self.watched.extract_if(.., same).map(|w| w.ordered).max();
                self.watched.push(Watched {
                    session: session.0,
                    slot: said.slot as usize,
                    kv,
                    used: Bytes::ZERO,
                    ordered: ordered.unwrap_or(0),
                });
                let handle = layout.handle();
                let stripes = (0u32..).take(layout.len()).map(StripeId);
                let stripe = stripes.map(|nth| layout.bytes(nth)).max();
                Some(MemoryEvent::ElasticRegistered {
                    session,
                    gpu,
                    kv,
                    mapped,
                    fixed,
                    most: sum(layout, |_| true),
                    handle,
                    stripe: stripe.unwrap_or(handle),
                })
            }
            None => None,
        }
    }

    /// Reads what engines use, from their pages.
    pub(crate) fn read_usage(&mut self, members: &Members, cx: &mut Context<'_>) {
        for watched in &mut self.watched {
            let page = members.get(watched.session);
            let page = page.and_then(|session| session.link.page.as_ref());
            let Some(words) = page.and_then(|page| page.memory.get(watched.slot)) else {
                continue;
            };
            let version = words.version.load(Acquire);
            let used = Bytes(words.used.load(Acquire));
            let torn = version % 2 == 1 || words.version.load(Acquire) != version;
            if !torn && used != watched.used {
                watched.used = used;
                cx.step(Event::Memory(MemoryEvent::Usage {
                    session: SessionId(watched.session),
                    kv: watched.kv,
                    used,
                }));
            }
        }
    }

    /// Tells offline processes what their share of each GPU has become, and all what others give up for them.
    pub(crate) fn tell_shares(&mut self, policy: &Node, members: &mut Members, now: Instant) {
        if !std::mem::take(&mut self.shares_stale) {
            return;
        }
        let shown = |session: &&mut Session| {
            let has_role = session.job.is_some() || session.is_online();
            has_role && session.library.takes_memory
        };
        for session in members.all_mut().filter(shown) {
            for at in 0..session.slots.len() {
                let Slot {
                    gpu, share: told, ..
                } = session.slots[at];
                let id = SessionId(session.id);
                let online = session.is_online();
                let share = gpu.and_then(|gpu| {
                    if online {
                        return Some((None, policy.yields_to_online(gpu, now)));
                    }
                    let share = policy.share(id, gpu)?;
                    Some((Some(share), policy.yields(id, gpu, now)))
                });
                // Nothing is what it is shown without a word.
                let known = told.or(online.then_some((None, Bytes::ZERO)));
                let Some((bytes, yields)) = share.filter(|_| share != known) else {
                    continue;
                };
                let slot = u32::try_from(at).unwrap_or(u32::MAX);
                let order = MemoryOrder::Share {
                    slot,
                    bytes,
                    yields,
                };
                if session.tell(Tell::Memory(Box::new(order))) {
                    session.slots[at].share = share;
                }
            }
        }
    }

    /// Sends an order about memory to its process.
    pub(crate) fn order(
        &mut self,
        effect: Effect,
        policy: &Node,
        members: &mut Members,
        adoption: &Adoption,
    ) {
        match effect {
            Effect::Check {
                reclaim,
                session,
                until,
            } => {
                let stoppable = members.get(session.0).is_some_and(|known| {
                    let uses = known.gpus().next().is_some();
                    !known.state.launch_gated && all_stoppable(&known.channels, uses)
                });
                let deadline_ns = deadline(session, until, members);
                let check = MemoryOrder::Check {
                    reclaim,
                    deadline_ns,
                };
                let told = stoppable && tell(session, check, members);
                if let Some(known) = members.get_mut(session.0) {
                    let blocker = if told {
                        Blocker::Silent
                    } else {
                        Blocker::Unstoppable
                    };
                    known.blocker = Some((reclaim, blocker));
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
                note_move(session, true, members, adoption);
                // A process that does not listen may be anywhere in an earlier order: it is waited
                // for until it is gone.
                let order = MemoryOrder::Move {
                    reclaim,
                    kv,
                    direction,
                    stripes: policy.stripes(reclaim).to_vec(),
                    deadline_ns: deadline(session, until, members),
                };
                tell(session, order, members);
            }
            Effect::CancelMove { reclaim, session } => {
                tell(session, MemoryOrder::Cancel { reclaim }, members);
            }
            Effect::Map { session, kv, bytes } => {
                self.map_orders += 1;
                let same = |w: &&mut Watched| (w.session, w.kv) == (session.0, kv);
                if let Some(watched) = self.watched.iter_mut().find(same) {
                    watched.ordered = self.map_orders;
                }
                let seq = self.map_orders;
                tell(session, MemoryOrder::Map { seq, kv, bytes }, members);
            }
            Effect::AnswerAsk {
                session,
                ask,
                granted,
            } => answer_ask(session, ask, granted, members),
            _ => {}
        }
    }

    /// Answers for a process that nobody could ask; None: there is no more.
    pub(crate) fn answer_for_the_silent(&mut self) -> Option<Event<'static>> {
        let (reclaim, session) = self.unanswerable.pop()?;
        Some(Event::Memory(MemoryEvent::Checked {
            reclaim,
            session,
            answer: Answer::Refused,
        }))
    }
}

/// Records what a process has on a device, and makes the event for policy.
fn count<'a>(
    (session, gpu): (SessionId, GpuId),
    slot: u32,
    usage: Usage,
    members: &mut Members,
) -> MemoryEvent<'a> {
    let known = members.get_mut(session.0);
    if let Some(place) = known.and_then(|known| known.slots.get_mut(slot as usize)) {
        place.unregistered = usage.unregistered;
        place.held = usage.held;
    }
    MemoryEvent::Counted {
        session,
        gpu,
        bytes: usage.counted,
    }
}

/// The sum of the stripes that `which` names.
fn sum(layout: &Layout, which: impl Fn(usize) -> bool) -> Bytes {
    (0u32..)
        .take(layout.len())
        .filter(|nth| which(*nth as usize))
        .map(|nth| layout.bytes(StripeId(nth)))
        .sum()
}

/// Records what prevents a check that is still under way.
fn note_blocker(id: u64, reclaim: ReclaimId, blocker: &Blocker, members: &mut Members) {
    let asked = members.get_mut(id).and_then(|known| known.blocker.as_mut());
    if let Some((_, found)) = asked.filter(|(asked, _)| *asked == reclaim) {
        found.clone_from(blocker);
    }
}

/// A process needs more memory on a GPU.
fn demanded<'a>(
    (session, role, gpu): (SessionId, Role, Option<GpuId>),
    said: &MemorySaid,
    members: &mut Members,
) -> Vec<Event<'a>> {
    let MemorySaid::Demand {
        ask,
        slot,
        kv,
        bytes,
        mapped,
        ahead,
        usage,
    } = *said
    else {
        return Vec::new();
    };
    // An offline process has no cache that grows.
    let may = role == Role::Online || role == Role::Offline && kv.is_none();
    let Some(gpu) = gpu.filter(|_| may) else {
        answer_ask(session, ask, Granted::No, members);
        return Vec::new();
    };
    let asked = MemoryEvent::Asked {
        session,
        ask,
        gpu,
        kv,
        bytes,
        mapped,
        ahead,
    };
    // Online's demand is weighed by what it has now. An offline process may have been promised room for
    // another allocation, and what is counted ends that.
    let usage = usage.filter(|_| role == Role::Online);
    let counted = usage.map(|usage| count((session, gpu), slot, usage, members));
    let events = counted.into_iter().chain([asked]);
    events.map(Event::Memory).collect()
}

/// Makes the event for policy when a process reports which requests hold its blocks.
fn requests(session: SessionId, job: Option<JobId>, said: &MemorySaid) -> Vec<Event<'_>> {
    // Only the job's own processes say who holds its blocks.
    let (
        Some(_),
        MemorySaid::Requests {
            snapshot,
            set,
            forgotten,
        },
    ) = (job, said)
    else {
        return Vec::new();
    };
    let forget = |request| Event::Memory(MemoryEvent::Forgotten { session, request });
    let all = snapshot.then(|| forget(None));
    let published = set.iter().map(|held| {
        Event::Memory(MemoryEvent::Published {
            session,
            request: held.request,
            tokens: held.tokens,
            blocks: &held.blocks,
        })
    });
    let forgotten = forgotten.iter().map(|request| forget(Some(*request)));
    all.into_iter().chain(published).chain(forgotten).collect()
}

/// Records, for a successor, whether the process may be in the middle of changing mappings.
pub(crate) fn note_move(session: SessionId, moving: bool, members: &Members, adoption: &Adoption) {
    let Some(known) = members.get(session.0) else {
        return;
    };
    for (_, place) in known.managed() {
        if moving {
            let pid = known.process().pid.cast_unsigned();
            adoption.journal.begin_move(place, pid);
        } else {
            adoption.journal.end_move(place);
        }
    }
}

fn answer_ask(session: SessionId, ask: AskId, granted: Granted, members: &mut Members) {
    let granted = granted == Granted::Yes;
    tell(session, MemoryOrder::Answer { ask, granted }, members);
}

/// By the clock of the process.
fn deadline(session: SessionId, until: Instant, members: &Members) -> u64 {
    let clock = members.get(session.0).map(|session| session.link.clock);
    clock.unwrap_or_default().there(until.as_nanos())
}

fn tell(session: SessionId, order: MemoryOrder, members: &mut Members) -> bool {
    members.get_mut(session.0).is_some_and(|session| {
        session.library.takes_memory && session.tell(Tell::Memory(Box::new(order)))
    })
}

fn remark(session: SessionId, kind: &'static str, text: &str, cx: &mut Context<'_>) {
    cx.emit(Notice {
        kind,
        session: session.0,
        text: text.to_owned(),
        ..Notice::default()
    });
}

/// Whether a disable of a process' managed channels stops all of it. One that shows no channel, or one
/// whose client is not proven, would still write to memory that is taken from under it.
fn all_stoppable(channels: &[Held], uses_a_gpu: bool) -> bool {
    let managed = channels.iter().all(|held| held.place.is_some());
    managed && (!channels.is_empty() || !uses_a_gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Places;
    use crate::message::Channel;

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
}
