//! Several GPUs at one edge: when online's kernel runs on the last of them.
//!
//! Each GPU has a process of an offline job, which always has work, and a thread of the agent. Online launches a kernel
//! on every GPU at the instant at which the threads begin their calls. The [`Batch`] gives the order of the calls,
//! [`Locks`] models the driver's locks for which they wait, and the device says when the kernels ran.

use std::collections::BTreeSet;
use tidegate_device::{Config, Event, EventKind, Gpu, Latency, Locks, Needs, Patch, TsgId, Work};
use tidegate_node::batch::{Batch, Call, Member, Plan, Via};
use tidegate_node::file::File;
use tidegate_node::journal::Place;
use tidegate_node::kinds::{Method, Switch};

const US: u64 = 1_000;
/// Of a stop, by whichever call (P30, P31).
const STOP: u64 = 350 * US;
const EDGE: u64 = 50_000 * US;
/// The driver's number of an engine that computes.
const GRAPHICS: u32 = 1;
const ONLINE: u64 = 7;
/// The handle of each process' group.
const GROUP: u32 = 3;

/// Whose RM client the calls of one GPU's process name.
#[derive(Clone, Copy)]
enum Processes {
    /// One for each GPU.
    Each,
    /// One for all of them.
    One,
}

struct Side {
    gpu: Gpu,
    offline: TsgId,
    batch: Batch,
    channels: Vec<tidegate_device::ChannelId>,
    owner: u32,
}

fn side(index: u32, owner: u32, method: Method) -> Side {
    let mut gpu = Gpu::new(Config {
        disable: Latency::Fixed(STOP),
        switch_ns: 0,
        ..Config::default()
    });
    let mut group = || {
        let tsg = gpu.add_tsg(GRAPHICS);
        gpu.set_scheduled(tsg, true);
        (tsg, gpu.add_channel(tsg))
    };
    let ((offline, channel), (_, online)) = (group(), group());
    let always = Work::Run {
        ns: u64::MAX,
        tag: 0,
    };
    gpu.submit(channel, always);
    // What the calls do is looked at, so no turn ends by itself.
    gpu.set_timeslice(offline, u64::MAX / 2);
    let mut plan = Plan::new(method, false);
    let member = Member {
        client: owner,
        channel: index,
        group: GROUP,
        computes: true,
        file: Some(File::new(())),
        place: Place::NONE,
    };
    plan.push(1, Via::Agent, &member);
    let batch = plan.finish().remove(0);
    gpu.advance(EDGE, &mut Vec::new());
    let kernel = Work::Run {
        ns: 20 * US,
        tag: ONLINE,
    };
    gpu.submit(online, kernel);
    Side {
        gpu,
        offline,
        batch,
        channels: vec![channel],
        owner,
    }
}

/// From the edge until online's kernel began on the last GPU.
fn last_began(gpus: u32, method: Method, processes: Processes, patch: Patch) -> u64 {
    let owner = |index: u32| match processes {
        Processes::Each => 100 + index,
        Processes::One => 100,
    };
    let mut sides: Vec<Side> = (0..gpus)
        .map(|index| side(index, owner(index), method))
        .collect();
    let mut locks = Locks::new(sides.len());
    // Each thread makes its next call when the one before has returned; who is ready first calls first.
    let mut ready: BTreeSet<(u64, usize, usize)> =
        (0..sides.len()).map(|gpu| (EDGE, gpu, 0)).collect();
    while let Some((now, gpu, nth)) = ready.pop_first() {
        let side = &mut sides[gpu];
        let Some(call) = side.batch.calls(Switch::Disable).nth(nth) else {
            continue;
        };
        let returned = match call {
            Call::Lead(group) => {
                assert_eq!((group.client, group.handle), (side.owner, GROUP));
                let end = locks
                    .reserve(now, Needs::preempt(group.client, gpu), STOP)
                    .1;
                side.gpu.preempt_at(end, side.offline);
                end
            }
            Call::Set => {
                // A thread of the agent has an RM client of its own.
                let needs = Needs::disable_channels(gpu as u32, gpu, patch);
                let end = locks.reserve(now, needs, STOP).1;
                side.gpu.disable_at(end, &side.channels, 1);
                end
            }
            Call::Kick(_) => unreachable!("no method here has one"),
        };
        ready.insert((returned, gpu, nth + 1));
    }
    let began = sides.iter_mut().map(|side| {
        let mut events: Vec<Event> = Vec::new();
        side.gpu.advance(EDGE + 100 * STOP, &mut events);
        let online = |event: &&Event| matches!(event.kind, EventKind::Started { tag: ONLINE, .. });
        let began = events.iter().find(online).map(|event| event.at - EDGE);
        began.unwrap_or(u64::MAX)
    });
    began.max().unwrap_or(u64::MAX)
}

/// P-GATE-26: on several GPUs preemptions side by side come before the disables in a row.
#[test]
fn the_last_of_eight_gpus_is_free_as_soon_as_one_where_each_has_a_process_of_its_own() {
    let last = |gpus, method| last_began(gpus, method, Processes::Each, Patch::None);
    let one = last(1, Method::Disable);
    assert_eq!(one, STOP);
    assert!(last(8, Method::Disable) >= 5 * one);
    assert!(last(8, Method::PreemptFirst) <= one * 3 / 2);
    // With the driver patch there is no row to go before.
    let patched = last_began(8, Method::Disable, Processes::Each, Patch::B);
    assert_eq!(patched, one);
}

/// P-GATE-26: on several GPUs preemptions side by side come before the disables in a row.
#[test]
fn preemptions_of_one_process_wait_for_each_other_as_disables_do() {
    let last = |method| last_began(8, method, Processes::One, Patch::None);
    assert!(last(Method::PreemptFirst) >= last(Method::Disable));
}
