//! The thread that changes mappings, on the agent's order.
//!
//! It shares the application's descriptors, because it calls the driver. It begins an order only while the gate word
//! says that a reclaim is under way and no thread of the application is inside a call that may hold the driver's locks.
//! It waits for that until the order's deadline at most. It finishes every order that it begins. If it is late, the
//! reporter answers for it ([`super::talk`]).

use super::usage::write_usage;
use crate::activity::gate;
use crate::activity::hold;
use crate::outbox::say;
use crate::process::Process;
use crate::state::memory::backed::vmm;
use crate::state::memory::kv::Outcome;
use crate::state::memory::order::{Order, What};
use crate::state::memory::state::{can_lose, is_read};
use crate::state::memory::vmm::Vmm;
use crate::threads::{BlockSignals, spawn};
use crate::{clock, log, sys};
use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use core::sync::atomic::fence;
use std::sync::Arc;
use tidegate_core::joblog::Member;
use tidegate_proto::v1::{self, MemoryResult, client_event::Event};

/// How an order ended, before it is an event.
#[derive(Debug, Default)]
pub struct Done {
    result: MemoryResult,
    inside: String,
    outcome: Outcome,
    log_seq: u64,
    started_ns: u64,
    mapped_bytes: u64,
}

impl Done {
    /// An order about which nothing was done.
    pub fn nothing(result: MemoryResult) -> Self {
        Self {
            result,
            ..Self::default()
        }
    }
}

/// The event that answers an order.
pub fn answer(order: &Order, done: Done) -> Event {
    let (seq, result) = (order.seq, done.result.into());
    let outcome = done.outcome;
    let driver_status = outcome
        .refused
        .map_or(0, |refused| refused.0.cast_unsigned());
    let done_ns = clock::now_ns();
    match order.what {
        What::Check => Event::Checked(v1::Checked {
            seq,
            result,
            inside: done.inside,
        }),
        What::Reclaim(kv, _) => Event::Reclaimed(v1::Reclaimed {
            seq,
            kv,
            result,
            stripes: outcome.stripes,
            released_bytes: outcome.bytes,
            log_seq: done.log_seq,
            inside: done.inside,
            driver_status,
            started_ns: done.started_ns,
            done_ns,
        }),
        What::Restore(kv, _) => Event::Restored(v1::Restored {
            seq,
            kv,
            result,
            stripes: outcome.stripes,
            backed_bytes: outcome.bytes,
            inside: done.inside,
            driver_status,
            started_ns: done.started_ns,
            done_ns,
        }),
        What::Map(kv, _) | What::MapAlone(kv, _) => Event::Mapped(v1::Mapped {
            seq,
            kv,
            result,
            mapped_bytes: done.mapped_bytes,
            driver_status,
        }),
    }
}

/// Starts the thread with the first order or allocation that needs it.
pub fn serve(process: &'static Process) {
    if !process.memory.inbox.service.swap(true, AcqRel) {
        let quiet = BlockSignals::new();
        spawn("tidegate-memory", move || run(process));
        drop(quiet);
    }
}

/// Runs for ever.
fn run(process: &'static Process) {
    let memory = &process.memory;
    loop {
        let seen = memory.inbox.ordered.load(Acquire);
        let next = sys::lock(&memory.inbox.orders).pop_front();
        let Some(order) = next else {
            sys::futex_wait(&memory.inbox.ordered, seen, 1_000_000_000);
            continue;
        };
        if order.session != memory.inbox.session.load(Acquire) {
            continue;
        }
        let done = carry_out(process, &order);
        log::debug(|| format!("{order:?}: {done:?}"));
        if let What::MapAlone(kv, _) = order.what {
            describe(process, kv);
            continue;
        }
        let mut open = sys::lock(&memory.inbox.open);
        open.retain(|entry| entry.order.seq != order.seq);
        drop(open);
        // A session ends before what it leaves here is thrown away: nothing of it is added after that.
        let mut outbox = sys::lock(&memory.outbox);
        if order.session == memory.inbox.session.load(Acquire) {
            outbox.push(answer(&order, done));
        }
        drop(outbox);
        process.bell.ring();
        memory.changed();
    }
}

/// Tells an agent that did not order it what stands of a cache. One that comes later is told of everything.
fn describe(process: &Process, kv: u32) {
    let state = sys::lock(&process.memory.state);
    let membership = sys::lock(&process.memory.job.membership);
    if let Some(cache) = state
        .kvs
        .get(&kv)
        .filter(|_| process.link.attached.load(Acquire))
    {
        say(process, Event::KvRegistered(membership.describe(cache)));
    }
    process.memory.changed();
}

fn carry_out(process: &'static Process, order: &Order) -> Done {
    let now = clock::now_ns();
    if is_cancelled(process, order) || now > order.deadline_ns {
        return Done::nothing(MemoryResult::Cancelled);
    }
    match &order.what {
        What::Map(kv, bytes) | What::MapAlone(kv, bytes) => map(process, order, *kv, *bytes),
        What::Check => match wait_until_clear(process, order) {
            Ok(()) => Done::nothing(MemoryResult::Ok),
            Err(done) => done,
        },
        What::Reclaim(kv, stripes) => change(process, order, *kv, stripes, Move::Reclaim),
        What::Restore(kv, stripes) => change(process, order, *kv, stripes, Move::Restore),
    }
}

fn is_cancelled(process: &Process, order: &Order) -> bool {
    order.session != process.memory.inbox.session.load(Acquire)
        || sys::lock(&process.memory.inbox.cancelled).contains(&order.seq)
}

/// Whether the agent's gate word orders calls that may hold the driver's locks to wait. One that only schedules has no
/// gate, and makes no such call.
fn is_ordered(process: &Process) -> bool {
    gate::held(process) || process.seen_devices().next().is_none()
}

/// Waits until the launch gate is held and nobody is inside a call that may hold the driver's locks.
fn wait_until_clear(process: &Process, order: &Order) -> Result<(), Done> {
    const LOOK_AGAIN_NS: u64 = 100_000;
    loop {
        if !is_ordered(process) {
            return Err(Done::nothing(MemoryResult::Refused));
        }
        if is_cancelled(process, order) {
            return Err(Done::nothing(MemoryResult::Cancelled));
        }
        let Some(inside) = hold::inside(process) else {
            return Ok(());
        };
        if clock::now_ns() >= order.deadline_ns {
            return Err(Done {
                inside,
                ..Done::nothing(MemoryResult::ThreadInside)
            });
        }
        sys::sleep_ns(LOOK_AGAIN_NS);
    }
}

/// Which way stripes move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Reclaim,
    Restore,
}

/// Begins to move mappings once nobody is inside. From then on the process itself keeps everybody out, whatever becomes
/// of the agent and its gate word.
fn begin_to_move(process: &Process, order: &Order) -> Result<(), Done> {
    let memory = &process.memory;
    loop {
        wait_until_clear(process, order)?;
        // A call may have gone in, and the gate word may have been replaced, since that was asked.
        let clear = || {
            is_ordered(process) && !is_cancelled(process, order) && hold::inside(process).is_none()
        };
        if memory.changing.begins_to_move(|| fence(SeqCst), clear) {
            return Ok(());
        }
        memory.rests();
        if clock::now_ns() >= order.deadline_ns {
            return Err(Done::nothing(MemoryResult::Cancelled));
        }
    }
}

fn change(process: &'static Process, order: &Order, kv: u32, stripes: &[u32], which: Move) -> Done {
    let Some(vmm) = vmm() else {
        return Done::nothing(MemoryResult::Refused);
    };
    let memory = &process.memory;
    let blocks = || {
        let state = sys::lock(&memory.state);
        state.kvs.get(&kv).map_or(0, |cache| cache.cut.block_count)
    };
    // What nobody hears of would be used without memory, and what nobody owns would be lost for ever.
    if which == Move::Reclaim && !(is_read(&memory.job.membership) && can_lose(memory, blocks())) {
        return Done::nothing(MemoryResult::Refused);
    }
    if let Err(done) = begin_to_move(process, order) {
        return done;
    }
    let done = move_stripes(process, vmm, order, (kv, stripes), which);
    memory.rests();
    done
}

/// Moves stripes, while nobody is inside a call that may hold the driver's locks. It gives the GPU nothing to do: streams
/// share queues, and one that an application has filled is emptied only when its channels run again.
fn move_stripes(
    process: &'static Process,
    vmm: &Vmm,
    order: &Order,
    (kv, stripes): (u32, &[u32]),
    which: Move,
) -> Done {
    let memory = &process.memory;
    let started_ns = clock::now_ns();
    let log = memory.log();
    let go_on = || !is_cancelled(process, order);
    let mut outcome = {
        let mut state = sys::lock(&memory.state);
        let state = &mut *state;
        let (backed, found) = (&mut state.backed, state.kvs.get_mut(&kv));
        let Some(cache) = found.filter(|cache| which == Move::Restore || cache.refused.is_empty())
        else {
            return Done::nothing(MemoryResult::Refused);
        };
        match which {
            Move::Restore if !cache.withheld(log, stripes) => {
                return Done::nothing(MemoryResult::NotWithheld);
            }
            Move::Reclaim => cache.reclaim(vmm, backed, log, stripes, go_on),
            Move::Restore => cache.restore(vmm, backed, log, stripes, go_on),
        }
    };
    mend(process, vmm, std::mem::take(&mut outcome.torn));
    let state = sys::lock(&memory.state);
    let cache = state.kvs.get(&kv);
    let log_seq = cache.map_or(0, |cache| cache.lost_at(&outcome.stripes));
    Done {
        result: result_of(&outcome, stripes, log, which, go_on()),
        outcome,
        log_seq,
        started_ns,
        ..Done::default()
    }
}

/// Maps something again where a failed exchange left nothing. The application would fault there, so the agent is not
/// answered before that is done, and enables nothing before it is answered. In a context that is lost nothing runs any
/// more. The state is let go between two tries: a program that ends frees its memory meanwhile.
fn mend(process: &Process, vmm: &Vmm, torn: Vec<(u64, usize, usize)>) {
    const TRY_AGAIN_NS: u64 = 10_000_000;
    for (base, first, count) in torn {
        let mended = || {
            let state = sys::lock(&process.memory.state);
            state.backed.mend(vmm, base, first, count)
        };
        while mended().is_err_and(|refused| !refused.is_of_a_lost_context()) {
            sys::sleep_ns(TRY_AGAIN_NS);
        }
    }
}

fn result_of(
    outcome: &Outcome,
    wanted: &[u32],
    log: Option<&Member<'_>>,
    which: Move,
    goes_on: bool,
) -> MemoryResult {
    match outcome.refused {
        Some(refused) if refused.is_out_of_memory() => MemoryResult::OutOfMemory,
        Some(_) => MemoryResult::Driver,
        None if which == Move::Reclaim && log.is_none() => MemoryResult::Refused,
        None if !goes_on => MemoryResult::Cancelled,
        None if outcome.stripes.is_empty() && !wanted.is_empty() => MemoryResult::Refused,
        None => MemoryResult::Ok,
    }
}

/// Maps or unmaps stripes of an elastic cache. The application runs on: no block that it may use is
/// ever behind a mapping that changes.
fn map(process: &'static Process, order: &Order, kv: u32, target: u64) -> Done {
    let memory = &process.memory;
    let found = {
        let state = sys::lock(&memory.state);
        let cache = state.kvs.get(&kv);
        cache.and_then(|cache| Some((cache.device, Arc::clone(cache.elastic.as_ref()?))))
    };
    let (Some(vmm), Some((device, elastic))) = (vmm(), found) else {
        return Done::nothing(MemoryResult::Refused);
    };
    let mut done = Done {
        started_ns: clock::now_ns(),
        ..Done::nothing(MemoryResult::Ok)
    };
    memory.changing.begins_to_map();
    loop {
        // The state is let go after each stripe: an application's question must not wait for all. What a new
        // session is told of it is all that the old one did.
        let mut state = sys::lock(&memory.state);
        let state = &mut *state;
        if is_cancelled(process, order) {
            break;
        }
        let Some(cache) = state.kvs.get_mut(&kv) else {
            done.result = MemoryResult::Refused;
            break;
        };
        let (down, up) = {
            let mut elastic = sys::lock(&elastic);
            let only_more = matches!(order.what, What::MapAlone(..));
            let down = (!only_more).then(|| elastic.begin_unmap(target)).flatten();
            (down, elastic.to_map(target))
        };
        let one = |at: usize| [u32::try_from(at).unwrap_or(u32::MAX)];
        let outcome = match (down, up) {
            (Some(at), _) => {
                let outcome = cache.reclaim_unused(vmm, &mut state.backed, &one(at));
                if outcome.stripes.is_empty() {
                    sys::lock(&elastic).mapped(at);
                }
                outcome
            }
            (None, Some(at)) => {
                let outcome = cache.restore(vmm, &mut state.backed, None, &one(at), || true);
                if !outcome.stripes.is_empty() {
                    sys::lock(&elastic).mapped(at);
                }
                outcome
            }
            (None, None) => break,
        };
        if let Some(refused) = outcome.refused {
            done.result = if refused.is_out_of_memory() {
                MemoryResult::OutOfMemory
            } else {
                MemoryResult::Driver
            };
            for (base, first, count) in &outcome.torn {
                // The blocks there are nobody's; the next change of them tries again.
                let _ = state.backed.mend(vmm, *base, *first, *count);
            }
            done.outcome.refused = Some(refused);
            break;
        }
        done.outcome.bytes += outcome.bytes;
    }
    memory.rests();
    let elastic = sys::lock(&elastic);
    done.mapped_bytes = elastic.mapped_bytes();
    write_usage(process, device, &elastic, None);
    done
}
