//! The prober: finds out when a device has become idle. In an offline process the same thread acknowledges the gate
//! words instead.
//!
//! It sleeps while every device is idle (on the doorbell, which a busy edge rings), and looks every `probe_interval`
//! while one is busy. [`tidegate_core::activity`] says what makes an idle edge valid. This file has the queries of the
//! streams, the figures that go with the edge, and the slots of threads that have ended.

use super::unseen;
use crate::clock;
use crate::process::{self, Hand, Process};
use crate::real::driver::{self, Driver};
use crate::real::row::Row;
use crate::state::activity::slots::{self, ANNOUNCE, Slot};
use crate::state::activity::turns::{COUNTED, Rounds};
use crate::state::objects::{Edge, Up};
use crate::sys::{self, Membarrier};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};
use std::collections::BTreeSet;
use tidegate_abi::cuda::{CU_STREAM_LEGACY, CUcontext, CUevent, CUresult, CUstream};
use tidegate_abi::page::{ACTIVITY_BUSY, DEVICES, DeviceWords, Page};
use tidegate_core::activity::{Begin, Counts, Published, Quiet, Sums, begin};
use tidegate_core::gate::{Role, obeyed};
use tidegate_core::suspect::{self, Facts, Reason, Run};
use tidegate_core::witness::Event;

/// Longest sleep with nothing to do, after which slots of dead threads are looked for.
const REST_NS: u64 = 1_000_000_000;

/// What the prober remembers of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    entered: u64,
    entered_at_idle: u64,
    last_launch_ns: u64,
    last_busy_ns: u64,
    suspect: Option<Reason>,
    run: Run,
    rounds: Rounds,
    /// The activity word last told on the stream.
    told: u64,
}

/// Starts the thread that looks whether an offline process has work, once the agent asks.
pub type Look = fn(&'static Process, &Page);

/// Runs for ever.
pub fn run(process: &'static Process, rows: &'static [Row], look: Look) {
    let mut watches = [Watch::default(); DEVICES];
    let mut relaxed = false;
    let mut search = unseen::Search::default();
    loop {
        let page = process.hold_page(Hand::Prober);
        let bell = page.process.doorbell.load(Acquire);
        let role = process.role();
        let (mut busy, mut looks) = (false, false);
        // One of them asks at a time.
        if role.counts()
            && !process.waits.looks.load(Acquire)
            && let Some(driver) = driver::driver()
        {
            if !relaxed {
                relaxed = relax(driver);
            }
            looks = search.look(process, driver, page);
            let lane = process.link.stream_lane.load(Acquire);
            for device in process.seen_devices() {
                let watch = &mut watches[device];
                tell(process, page, device, watch, lane);
                busy |= round(process, driver, page, device, watch);
                tell(process, page, device, watch, lane);
            }
        }
        page.process.prober_ns.store(clock::now_ns(), Release);
        match role {
            _ if busy => sys::sleep_ns(process.limits.probe_interval.load(Relaxed)),
            _ if looks => sys::sleep_ns(unseen::LOOK_NS),
            Role::Offline => {
                look(process, page);
                acknowledge(process, page);
            }
            _ => {
                retire(process, rows);
                sys::futex_wait(&page.process.doorbell, bell, REST_NS);
            }
        }
    }
}

/// Tells an edge on the stream, where there is no page to show it in.
fn tell(process: &Process, page: &Page, device: usize, watch: &mut Watch, lane: bool) {
    if !lane {
        watch.told = 0;
        return;
    }
    let words = &page.devices[device];
    let activity = words.activity.load(Acquire);
    if activity == watch.told {
        return;
    }
    watch.told = activity;
    let at = if activity & ACTIVITY_BUSY == 0 {
        &words.idle_since_ns
    } else {
        &words.busy_since_ns
    };
    sys::lock(&process.rm).edges[device] = Some(Edge {
        activity,
        at_ns: at.load(Relaxed),
        launches: words.launches.load(Relaxed),
        graph: words.graph.load(Relaxed),
    });
    process.bell.ring();
}

/// Lets this thread ask streams although another thread captures in global mode.
pub(super) fn relax(driver: &Driver) -> bool {
    const RELAXED: i32 = 2;
    let mut mode = RELAXED;
    // SAFETY: `mode` is live; the call concerns this thread only.
    unsafe { (driver.exchange_capture_mode)(&raw mut mode) }.is_ok()
}

fn pairs<'a>(
    process: &'static Process,
    device: usize,
) -> impl Iterator<Item = &'static Counts<AtomicU64>> + use<'a> {
    slots_of(device)
        .map(|slot| &slot.counts)
        .chain(core::iter::once(&process.retired.counts[device]))
}

fn slots_of(device: usize) -> impl Iterator<Item = &'static Slot> {
    slots::all().into_iter().flat_map(move |all| {
        let high = all.high.load(Acquire) as usize;
        all.own
            .iter()
            .take(high)
            .filter(move |slot| {
                slot.owner.load(Acquire) != 0 && slot.device.load(Acquire) as usize == device
            })
            .chain(all.shared.get(device))
    })
}

/// Launches of one device since the process uses it, those inside the driver included, for any thread. None: the slot
/// of a thread that is gone was emptied meanwhile, so that its launches may be missing.
pub(crate) fn entered(process: &'static Process, device: usize) -> Option<u64> {
    let before = process.retired.moves.load(Acquire);
    let sum = pairs(process, device).fold(0u64, |sum, pair| {
        sum.wrapping_add(pair.entered.load(Acquire))
    });
    fence(Acquire);
    let undisturbed = before & 1 == 0 && process.retired.moves.load(Relaxed) == before;
    undisturbed.then_some(sum)
}

/// The device is idle: what was suspected of its work is taken back, unless that is why it counts as idle.
fn clear(process: &'static Process, words: &DeviceWords, device: usize, watch: &mut Watch) {
    let limit = process.limits.busy_suspect.load(Relaxed);
    if watch.suspect.is_some() && !watch.run.is_dummy(limit, clock::now_ns()) {
        publish_suspect(process, words, device, watch, None);
    }
}

/// Checks one device; whether it is busy afterwards.
pub(super) fn round(
    process: &'static Process,
    driver: &Driver,
    page: &'static Page,
    device: usize,
    watch: &mut Watch,
) -> bool {
    let words = &page.devices[device];
    if words.activity.load(Acquire) & ACTIVITY_BUSY == 0 {
        clear(process, words, device, watch);
        return false;
    }
    let fences = Membarrier;
    let all = || pairs(process, device);
    let begun = begin(&fences, &words.activity, all);
    let now = clock::now_ns();
    let sums = match &begun {
        Begin::Idle => return false,
        Begin::Inside(sums) => {
            count_out(device);
            *sums
        }
        Begin::Quiet(Quiet { sums, .. }) => *sums,
    };
    if sums.entered != watch.entered || watch.last_launch_ns == 0 {
        watch.entered = sums.entered;
        watch.last_launch_ns = now;
    }
    if process.role().counts() {
        words.total.store(sums.entered, Relaxed);
    }
    let limit = process.limits.busy_suspect.load(Relaxed);
    let answer = match begun {
        Begin::Quiet(_) if unseen::may_work(process) => Answer::Doubt,
        Begin::Quiet(_) => ask(process, driver, device),
        _ => Answer::Busy,
    };
    let turns = &process.turns[device];
    if answer != Answer::Doubt {
        let period = process.limits.probe_interval.load(Relaxed);
        watch.rounds.sure(turns, now, clock::now_ns(), period);
    }
    if let Begin::Quiet(quiet) = begun
        && answer == Answer::Done
    {
        let taken = finish(words, device, watch, sums);
        watch.rounds.show(turns, &page.memory[device]);
        if let Published::Idle { .. } = quiet.publish(&fences, &words.activity, all) {
            let launches = sums.entered.wrapping_sub(watch.entered_at_idle);
            watch.entered_at_idle = sums.entered;
            watch.rounds.over(turns, sums.entered);
            let busy_since = words.busy_since_ns.load(Relaxed);
            let graph = words.graph.load(Relaxed) != 0;
            watch.run.period(busy_since, now, launches, graph);
            let dummy = watch
                .run
                .is_dummy(limit, now)
                .then_some(Reason::SteadyLaunches);
            publish_suspect(process, words, device, watch, dummy);
            process::ring(page);
            return false;
        }
        give_back(taken);
    }
    watch.last_busy_ns = now;
    let facts = Facts {
        busy_since_ns: words.busy_since_ns.load(Relaxed),
        last_launch_ns: watch.last_launch_ns,
        waits_on_host: slots_of(device).any(|slot| slot.waits_on_host.load(Relaxed) != 0),
    };
    let limit = process.limits.busy_suspect.load(Relaxed);
    let reason = match unseen::may_work(process) {
        true => Some(Reason::UnseenLaunches),
        false => suspect::reason(facts, limit, now),
    };
    publish_suspect(process, words, device, watch, reason);
    true
}

/// What an idle edge takes from the slots.
struct Taken {
    /// The last graph, with what a turn set in it, and from which slot.
    graph: Option<(&'static Slot, u64)>,
    /// Slots that had made a stream wait.
    waited: Vec<&'static Slot>,
}

/// An idle edge was taken back: the period goes on, and its graph is still its own unless another came. The launch
/// that came may be the one that waits: its note was there before it was counted.
fn give_back(taken: Taken) {
    if let Some((slot, graph)) = taken.graph {
        let _ = slot.graph.compare_exchange(0, graph, Relaxed, Relaxed);
    }
    for slot in taken.waited {
        slot.waits_on_host.store(1, Relaxed);
    }
}

/// Writes what goes with an idle edge, before it is rung.
fn finish(words: &DeviceWords, device: usize, watch: &Watch, sums: Sums) -> Taken {
    let synced = slots_of(device)
        .filter(|slot| slot.sync_entered.load(Acquire) == slot.counts.entered.load(Acquire))
        .map(|slot| slot.sync_ns.load(Relaxed))
        .max()
        .unwrap_or(0);
    words
        .idle_since_ns
        .store(synced.max(watch.last_busy_ns), Relaxed);
    words
        .launches
        .store(sums.entered.wrapping_sub(watch.entered_at_idle), Relaxed);
    let graph = slots_of(device)
        .map(|slot| {
            let graph = slot.graph.swap(0, Relaxed);
            (slot.counts.entered.load(Relaxed), slot, graph)
        })
        .filter(|(_, _, graph)| *graph != 0)
        .max_by_key(|(entered, _, _)| *entered)
        .map(|(_, slot, graph)| (slot, graph));
    words
        .graph
        .store(graph.map_or(0, |(_, graph)| graph & !COUNTED), Release);
    let waited = slots_of(device).filter(|slot| slot.waits_on_host.swap(0, Relaxed) != 0);
    Taken {
        graph,
        waited: waited.collect(),
    }
}

/// Shows the suspect in the page and tells the agent of it.
fn publish_suspect(
    process: &Process,
    words: &DeviceWords,
    device: usize,
    watch: &mut Watch,
    reason: Option<Reason>,
) {
    if watch.suspect == reason || !process.role().counts() {
        return;
    }
    watch.suspect = reason;
    words
        .suspect
        .store(reason.map_or(0, |reason| reason as u64), Release);
    let since_ns = words.busy_since_ns.load(Relaxed);
    sys::lock(&process.rm).outbox.push(Up::Suspect {
        device,
        reason,
        since_ns,
    });
    process.bell.ring();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Busy,
    /// Counts as busy, and nobody was asked.
    Doubt,
}

/// Asks every stream the device's launches touched.
fn ask(process: &'static Process, driver: &Driver, device: usize) -> Answer {
    let mut touched = BTreeSet::new();
    let mut every = false;
    let mut recorded = Vec::new();
    for slot in slots_of(device) {
        every |= slot.all_streams.load(Acquire) != 0;
        let own = &slot.thread_stream;
        let launched = own.entered.load(Acquire);
        if launched != own.returned.load(Acquire) && slot.owner.load(Acquire) != 0 {
            let Some(event) = slot.witness.of(launched) else {
                return Answer::Doubt;
            };
            recorded.push((own, launched, event));
        }
        touched.extend(
            slot.streams
                .iter()
                .map(|place| place.load(Acquire))
                .filter(|stream| *stream != 0),
        );
    }
    if !ANNOUNCE.probe_begins() {
        return Answer::Doubt;
    }
    // In doubt it is busy: a call that ends a context or a stream waits for work.
    let answer = if sys::lock(&process.contexts).asks(device, sys::thread_exists) {
        let answer = match ask_threads(driver, &recorded) {
            Answer::Done => ask_all(process, driver, device, &touched, every),
            other => other,
        };
        sys::lock(&process.contexts).asked();
        answer
    } else {
        Answer::Doubt
    };
    ANNOUNCE.probe_ended();
    answer
}

/// Launches into a thread's own stream, how many of them are asked about, and their event.
type Recorded = (&'static Counts<AtomicU64>, u64, Event);

/// Asks the events of threads' own streams, as [`ask_all`] asks streams.
fn ask_threads(driver: &Driver, recorded: &[Recorded]) -> Answer {
    for (own, launched, event) in recorded {
        let asked = within(driver, event.context as usize, || {
            // SAFETY: an event of ours, which goes with its context only.
            unsafe { (driver.event_query)(event.handle as CUevent) }
        });
        if asked != Answer::Done {
            return asked;
        }
        own.returned.fetch_max(*launched, Release);
    }
    Answer::Done
}

/// Asks while [`crate::state::activity::registry::Contexts::asks`] keeps everything of the device alive.
fn ask_all(
    process: &Process,
    driver: &Driver,
    device: usize,
    touched: &BTreeSet<u64>,
    every: bool,
) -> Answer {
    let legacy = CU_STREAM_LEGACY as u64;
    let (contexts, streams, orphans) = {
        let registry = sys::lock(&process.contexts);
        let contexts: Vec<usize> = registry.contexts_of(device).collect();
        let streams: Vec<_> = registry.streams_of(device).collect();
        (contexts, streams, registry.orphans_of(device))
    };
    if every || touched.contains(&legacy) {
        for context in contexts {
            let asked = within(driver, context, || {
                // SAFETY: a constant handle in a context that nobody ends meanwhile.
                unsafe { (driver.stream_query)(CU_STREAM_LEGACY as CUstream) }
            });
            if asked != Answer::Done {
                return asked;
            }
        }
    }
    for (handle, stream) in streams {
        if !every && !touched.contains(&(handle as u64)) {
            continue;
        }
        let asked = within(driver, stream.context, || {
            // SAFETY: nobody ends the stream meanwhile.
            unsafe { (driver.stream_query)(handle as CUstream) }
        });
        if asked != Answer::Done {
            return asked;
        }
    }
    for orphan in orphans {
        let asked = within(driver, orphan.context, || {
            // SAFETY: an event of ours, destroyed only below.
            unsafe { (driver.event_query)(orphan.event as CUevent) }
        });
        if asked != Answer::Done {
            return asked;
        }
        sys::lock(&process.contexts).adopt(orphan.event);
        within(driver, orphan.context, || {
            // SAFETY: as above; forgotten in the same breath.
            unsafe { (driver.event_destroy)(orphan.event as CUevent) }
        });
    }
    Answer::Done
}

/// Asks with `context` current. An error other than "not ready" is a context or stream that is
/// gone or lost: nothing of it runs. A capture is not an answer.
fn within(driver: &Driver, context: usize, question: impl FnOnce() -> CUresult) -> Answer {
    // SAFETY: the driver checks context handles, and nobody ends this one meanwhile.
    if !unsafe { (driver.ctx_push)(context as CUcontext) }.is_ok() {
        return Answer::Done;
    }
    let result = question();
    let mut popped = core::ptr::null_mut();
    // SAFETY: pops what was pushed above.
    unsafe { (driver.ctx_pop)(&raw mut popped) };
    let capture = CUresult::STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::STREAM_CAPTURE_WRONG_THREAD.0;
    match result {
        CUresult::NOT_READY => Answer::Busy,
        _ if capture.contains(&result.0) => Answer::Doubt,
        _ => Answer::Done,
    }
}

/// Counts threads out that ended inside the driver: they never come back from it. What they launched is asked of
/// the streams that their slots name.
fn count_out(device: usize) {
    for slot in slots_of(device) {
        let owner = slot.owner.load(Acquire);
        let entered = slot.counts.entered.load(Acquire);
        if owner != 0
            && entered != slot.counts.returned.load(Acquire)
            && !sys::thread_exists(owner.cast_signed())
        {
            slot.counts.returned.store(entered, Release);
        }
    }
}

/// Frees the slots of threads that are gone, on devices that are idle, keeping their sums.
fn retire(process: &'static Process, rows: &'static [Row]) {
    let Some(all) = slots::all() else { return };
    let page = process.page();
    for slot in all.own.iter().take(all.high.load(Acquire) as usize) {
        let owner = slot.owner.load(Acquire);
        if owner == 0 || sys::thread_exists(owner.cast_signed()) {
            continue;
        }
        let device = slot.device.load(Relaxed) as usize;
        let Some(words) = page.devices.get(device) else {
            continue;
        };
        if words.activity.load(Acquire) & ACTIVITY_BUSY != 0 {
            continue;
        }
        process.retired.moves.fetch_add(1, AcqRel);
        let entered = slot.counts.entered.swap(0, AcqRel);
        slot.counts.returned.store(0, Release);
        slot.keep_tally(entered);
        process.retired.counts[device]
            .entered
            .fetch_add(entered, AcqRel);
        process.retired.counts[device]
            .returned
            .fetch_add(entered, AcqRel);
        process.retired.moves.fetch_add(1, Release);
        for (row, calls) in rows.iter().zip(&slot.calls) {
            row.calls.fetch_add(calls.swap(0, Relaxed), Relaxed);
        }
        for place in &slot.streams {
            place.store(0, Relaxed);
        }
        let own = &slot.thread_stream;
        for word in [
            &own.entered,
            &own.returned,
            &slot.sync_ns,
            &slot.sync_entered,
            &slot.graph,
            &slot.last_stream,
        ] {
            word.store(0, Relaxed);
        }
        slot.all_streams.store(0, Relaxed);
        slot.witness.covers(0);
        slot.owner.store(0, Release);
    }
}

/// Says to the agent that a gate word is obeyed: every launch that begins from here on sees it, and
/// none that did not is inside the driver.
fn acknowledge(process: &'static Process, page: &'static Page) {
    let mut inside = false;
    let mut waits = vec![(&page.process.doorbell, page.process.doorbell.load(Acquire))];
    for device in process.seen_devices() {
        let word = &page.gates[device].gate;
        let seen = word.load(Acquire);
        let low = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
        waits.push((sys::low_half(word), low));
        let (obeyed, sums) = obeyed(&Membarrier, seen, || pairs(process, device));
        let words = &page.devices[device];
        words.total.store(sums.entered, Relaxed);
        if words.gate_ack.load(Relaxed) == seen {
            continue;
        }
        if !obeyed {
            inside = true;
            // One that ended there is inside no more.
            count_out(device);
            continue;
        }
        words.gate_ack.store(seen, Release);
        page.process.acked.fetch_add(1, AcqRel);
        sys::futex_wake(&page.process.acked);
    }
    if inside {
        sys::sleep_ns(1_000_000);
    } else {
        sys::futex_wait_any(&waits, REST_NS);
    }
}
