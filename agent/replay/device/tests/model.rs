//! What the model promises, judged from its events alone.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_device::{ChannelId, Config, Event, EventKind, Gpu, Latency, TsgId, Work};

const MS: u64 = 1_000_000;

fn quick() -> Config {
    Config {
        switch_ns: 0,
        disable: Latency::Fixed(300_000),
        ..Config::default()
    }
}

fn scheduled(gpu: &mut Gpu, engine: u32) -> TsgId {
    let tsg = gpu.add_tsg(engine);
    gpu.set_scheduled(tsg, true);
    tsg
}

fn finished_at(events: &[Event], tag: u64) -> Option<u64> {
    events.iter().find_map(|event| match event.kind {
        EventKind::Finished { tag: found, .. } if found == tag => Some(event.at),
        _ => None,
    })
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn channels_of_one_tsg_run_side_by_side() {
    let mut gpu = Gpu::new(quick());
    let tsg = scheduled(&mut gpu, 1);
    let (a, b) = (gpu.add_channel(tsg), gpu.add_channel(tsg));
    gpu.submit(a, Work::Run { ns: MS, tag: 1 });
    gpu.submit(b, Work::Run { ns: MS, tag: 2 });
    let mut events = Vec::new();
    gpu.advance(10 * MS, &mut events);
    assert_eq!(
        (finished_at(&events, 1), finished_at(&events, 2)),
        (Some(MS), Some(MS))
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn tsgs_of_one_engine_take_turns_of_their_timeslices() {
    let mut gpu = Gpu::new(quick());
    let tsgs = [scheduled(&mut gpu, 1), scheduled(&mut gpu, 1)];
    for (tag, tsg) in tsgs.into_iter().enumerate() {
        let channel = gpu.add_channel(tsg);
        gpu.submit(
            channel,
            Work::Run {
                ns: 5 * MS,
                tag: tag as u64,
            },
        );
    }
    let mut events = Vec::new();
    gpu.advance(100 * MS, &mut events);
    // 2 ms each in turn: the first ends in its third turn, the second right after.
    assert_eq!(
        (finished_at(&events, 0), finished_at(&events, 1)),
        (Some(9 * MS), Some(10 * MS))
    );
    let stops = events
        .iter()
        .filter(|e| matches!(e.kind, EventKind::TsgStop { .. }))
        .count();
    assert_eq!(stops, 6);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn tsgs_of_different_engines_do_not_wait_for_each_other() {
    let mut gpu = Gpu::new(quick());
    let mut events = Vec::new();
    for engine in [1, 9] {
        let tsg = scheduled(&mut gpu, engine);
        let channel = gpu.add_channel(tsg);
        gpu.submit(
            channel,
            Work::Run {
                ns: 5 * MS,
                tag: u64::from(engine),
            },
        );
    }
    gpu.advance(100 * MS, &mut events);
    assert_eq!(
        (finished_at(&events, 1), finished_at(&events, 9)),
        (Some(5 * MS), Some(5 * MS))
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn an_idle_tsg_gives_its_turn_up_at_once() {
    let mut gpu = Gpu::new(quick());
    let (short, long) = (scheduled(&mut gpu, 1), scheduled(&mut gpu, 1));
    let (short, long) = (gpu.add_channel(short), gpu.add_channel(long));
    gpu.submit(
        short,
        Work::Run {
            ns: 100_000,
            tag: 1,
        },
    );
    gpu.submit(long, Work::Run { ns: MS, tag: 2 });
    let mut events = Vec::new();
    gpu.advance(100 * MS, &mut events);
    assert_eq!(finished_at(&events, 2), Some(MS + 100_000));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_tsg_alone_keeps_its_engine_past_its_timeslice_and_gives_way_at_the_next_end_of_one() {
    let mut gpu = Gpu::new(quick());
    let (alone, late) = (scheduled(&mut gpu, 1), scheduled(&mut gpu, 1));
    let (alone, late) = (gpu.add_channel(alone), gpu.add_channel(late));
    gpu.submit(
        alone,
        Work::Run {
            ns: 50 * MS,
            tag: 1,
        },
    );
    let mut events = Vec::new();
    gpu.advance(7 * MS, &mut events);
    gpu.submit(late, Work::Run { ns: MS, tag: 2 });
    gpu.advance(100 * MS, &mut events);
    assert_eq!(finished_at(&events, 2), Some(9 * MS));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn loading_another_tsg_costs_the_switch_time_and_reloading_the_last_does_not() {
    let mut gpu = Gpu::new(Config {
        switch_ns: 50_000,
        ..quick()
    });
    let (a, b) = (scheduled(&mut gpu, 1), scheduled(&mut gpu, 1));
    let (a, b) = (gpu.add_channel(a), gpu.add_channel(b));
    let mut events = Vec::new();
    gpu.submit(a, Work::Run { ns: 1_000, tag: 1 });
    gpu.advance(MS, &mut events);
    gpu.submit(a, Work::Run { ns: 1_000, tag: 2 });
    gpu.advance(2 * MS, &mut events);
    gpu.submit(b, Work::Run { ns: 1_000, tag: 3 });
    gpu.advance(3 * MS, &mut events);
    assert_eq!(finished_at(&events, 2), Some(MS + 1_000));
    assert_eq!(finished_at(&events, 3), Some(2 * MS + 51_000));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_short_timeslice_leaves_the_engine_to_the_other() {
    let mut gpu = Gpu::new(quick());
    let (online, offline) = (scheduled(&mut gpu, 1), scheduled(&mut gpu, 1));
    gpu.set_timeslice(offline, 1_000);
    let (on, off) = (gpu.add_channel(online), gpu.add_channel(offline));
    gpu.submit(
        off,
        Work::Run {
            ns: u64::MAX,
            tag: 1,
        },
    );
    gpu.submit(
        on,
        Work::Run {
            ns: 10 * MS,
            tag: 2,
        },
    );
    let mut events = Vec::new();
    gpu.advance(100 * MS, &mut events);
    let end = finished_at(&events, 2).expect("online finishes");
    assert!(end < 10 * MS + 10_000, "{end}");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_wait_blocks_its_channel_until_it_is_met() {
    let mut gpu = Gpu::new(quick());
    let tsg = scheduled(&mut gpu, 1);
    let channel = gpu.add_channel(tsg);
    gpu.submit(channel, Work::Wait { tag: 1 });
    gpu.submit(channel, Work::Run { ns: 10, tag: 2 });
    let mut events = Vec::new();
    gpu.advance(MS, &mut events);
    assert!(events.is_empty());
    assert_eq!((gpu.waiting(channel), gpu.next_event()), (Some(1), None));
    gpu.signal(channel);
    gpu.advance(2 * MS, &mut events);
    assert_eq!(
        (finished_at(&events, 1), finished_at(&events, 2)),
        (Some(MS), Some(MS + 10))
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_wait_met_while_its_channel_is_disabled_ends_after_the_enable() {
    let mut gpu = Gpu::new(quick());
    let tsg = scheduled(&mut gpu, 1);
    let channel = gpu.add_channel(tsg);
    gpu.submit(channel, Work::Wait { tag: 1 });
    gpu.disable_at(0, &[channel], 0);
    let mut events = Vec::new();
    gpu.advance(MS, &mut events);
    gpu.signal(channel);
    gpu.advance(2 * MS, &mut events);
    assert_eq!(finished_at(&events, 1), None);
    gpu.enable_at(3 * MS, &[channel], 0);
    gpu.advance(4 * MS, &mut events);
    assert_eq!(finished_at(&events, 1), Some(3 * MS));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn two_disables_need_two_enables_only_where_they_count() {
    for (counting, expected) in [(false, Some(0)), (true, None)] {
        let mut gpu = Gpu::new(Config {
            counting,
            ..quick()
        });
        let tsg = scheduled(&mut gpu, 1);
        let channel = gpu.add_channel(tsg);
        gpu.disable_at(0, &[channel], 0);
        gpu.disable_at(0, &[channel], 0);
        gpu.enable_at(0, &[channel], 0);
        gpu.submit(channel, Work::Run { ns: 0, tag: 1 });
        let mut events = Vec::new();
        gpu.advance(0, &mut events);
        assert_eq!(finished_at(&events, 1), expected);
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_removed_channel_is_not_found_under_its_old_name() {
    let mut gpu = Gpu::new(quick());
    let tsg = scheduled(&mut gpu, 1);
    let old = gpu.add_channel(tsg);
    gpu.disable_at(MS, &[old], 0);
    gpu.remove_channel(old);
    let new = gpu.add_channel(tsg);
    let mut events = Vec::new();
    gpu.advance(2 * MS, &mut events);
    assert_ne!(old, new);
    assert!(!gpu.is_disabled(new));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_tsg_removed_in_its_turn_leaves_the_engine() {
    let mut gpu = Gpu::new(quick());
    let (a, b) = (scheduled(&mut gpu, 1), scheduled(&mut gpu, 1));
    let (on_a, on_b) = (gpu.add_channel(a), gpu.add_channel(b));
    gpu.submit(
        on_a,
        Work::Run {
            ns: u64::MAX,
            tag: 1,
        },
    );
    let mut events = Vec::new();
    gpu.advance(MS, &mut events);
    gpu.submit(on_b, Work::Run { ns: 5, tag: 2 });
    gpu.remove_tsg(a);
    gpu.advance(2 * MS, &mut events);
    assert_eq!(finished_at(&events, 2), Some(MS + 5));
    let stopped = EventKind::TsgStop { tsg: a, engine: 1 };
    assert!(events.iter().any(|e| e.kind == stopped));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn an_endless_kernel_is_stopped_and_resumed_and_never_ends() {
    let mut gpu = Gpu::new(quick());
    let tsg = scheduled(&mut gpu, 1);
    let channel = gpu.add_channel(tsg);
    gpu.submit(
        channel,
        Work::Run {
            ns: u64::MAX,
            tag: 1,
        },
    );
    let mut events = Vec::new();
    gpu.advance(MS, &mut events);
    gpu.begin_disable(&[channel], 0);
    gpu.advance(2 * MS, &mut events);
    assert!(!gpu.is_running(channel));
    gpu.enable_at(3 * MS, &[channel], 0);
    gpu.advance(u64::MAX / 2, &mut events);
    assert!(gpu.is_running(channel));
    assert_eq!(finished_at(&events, 1), None);
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Submit(usize, u64),
    Wait(usize),
    Signal(usize),
    Disable(Vec<usize>),
    Enable(Vec<usize>),
    Preempt(usize),
    Timeslice(usize, u64),
    Schedule(usize, bool),
    Replace(usize),
}

const CHANNELS: usize = 7;
const TSGS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3 * MS).prop_map(Step::Pass),
        4 => (0..CHANNELS, 0..2 * MS).prop_map(|(c, ns)| Step::Submit(c, ns)),
        1 => (0..CHANNELS).prop_map(Step::Wait),
        2 => (0..CHANNELS).prop_map(Step::Signal),
        2 => vec(0..CHANNELS, 1..4).prop_map(Step::Disable),
        2 => vec(0..CHANNELS, 1..4).prop_map(Step::Enable),
        1 => (0..TSGS).prop_map(Step::Preempt),
        1 => (0..TSGS, 1..MS).prop_map(|(t, ns)| Step::Timeslice(t, ns)),
        1 => (0..TSGS, any::<bool>()).prop_map(|(t, on)| Step::Schedule(t, on)),
        1 => (0..CHANNELS).prop_map(Step::Replace),
    ]
}

/// Follows the events and checks each against what came before.
#[derive(Default)]
struct Judge {
    now: u64,
    on_engine: BTreeMap<u32, TsgId>,
    disabled: BTreeSet<ChannelId>,
    started: BTreeMap<ChannelId, (u64, u64)>,
    work: BTreeMap<u64, u64>,
    tsg_of: BTreeMap<ChannelId, TsgId>,
    finished: BTreeSet<u64>,
}

impl Judge {
    fn runs(&self, channel: ChannelId) -> bool {
        let on = self
            .tsg_of
            .get(&channel)
            .is_some_and(|tsg| self.on_engine.values().any(|running| running == tsg));
        on && !self.disabled.contains(&channel)
    }

    fn see(&mut self, event: &Event) {
        assert!(event.at >= self.now, "time goes back");
        let passed = event.at - self.now;
        let running: Vec<_> = self
            .started
            .keys()
            .copied()
            .filter(|c| self.runs(*c))
            .collect();
        for channel in running {
            self.started.get_mut(&channel).expect("it is a key").1 += passed;
        }
        self.now = event.at;
        match event.kind {
            EventKind::Started { channel, tag } => {
                assert!(self.runs(channel), "started while it could not run");
                assert!(
                    self.started.insert(channel, (tag, 0)).is_none(),
                    "two at once"
                );
            }
            EventKind::Finished { channel, tag } => {
                assert!(self.runs(channel), "finished while it could not run");
                let (started, ran) = self.started.remove(&channel).expect("it had started");
                assert_eq!(started, tag, "out of order");
                assert_eq!(ran, self.work[&tag], "work is neither lost nor made");
                assert!(self.finished.insert(tag), "finished twice");
            }
            EventKind::TsgRun { tsg, engine } => {
                assert!(
                    self.on_engine.insert(engine, tsg).is_none(),
                    "two TSGs on one engine"
                );
            }
            EventKind::TsgStop { tsg, engine } => {
                assert_eq!(self.on_engine.remove(&engine), Some(tsg));
            }
            EventKind::Disabled { channel, .. } => {
                self.disabled.insert(channel);
            }
            EventKind::Enabled { channel, .. } => {
                self.disabled.remove(&channel);
            }
            EventKind::Overtaken { .. } => panic!("this firmware evicts at once"),
        }
    }
}

fn run(steps: &[Step], switch_ns: u64, seed: u64) -> Vec<Event> {
    let disable = Latency::LogNormal {
        p50: 300_000,
        p99: 900_000,
    };
    let mut gpu = Gpu::new(Config {
        switch_ns,
        disable,
        seed,
        // The judge knows of a set.
        counting: false,
        ..Config::default()
    });
    let tsgs: Vec<TsgId> = [1, 1, 1, 9]
        .into_iter()
        .map(|engine| scheduled(&mut gpu, engine))
        .collect();
    let mut channels: Vec<ChannelId> = (0..CHANNELS)
        .map(|c| gpu.add_channel(tsgs[c % TSGS]))
        .collect();
    let mut judge = Judge::default();
    for (index, channel) in channels.iter().enumerate() {
        judge.tsg_of.insert(*channel, tsgs[index % TSGS]);
    }
    let mut all = Vec::new();
    let mut events = Vec::new();
    let mut now = 0;
    let mut tag = 0;
    let mut replaced = BTreeSet::new();
    for step in steps {
        let pick = |list: &[usize]| list.iter().map(|c| channels[*c]).collect::<Vec<_>>();
        match step {
            Step::Pass(ns) => now += ns,
            Step::Submit(channel, ns) => {
                tag += 1;
                judge.work.insert(tag, *ns);
                gpu.submit(channels[*channel], Work::Run { ns: *ns, tag });
            }
            Step::Wait(channel) => {
                tag += 1;
                judge.work.insert(tag, 0);
                gpu.submit(channels[*channel], Work::Wait { tag });
            }
            Step::Signal(channel) => gpu.signal(channels[*channel]),
            Step::Disable(list) => {
                gpu.begin_disable(&pick(list), 0);
            }
            Step::Enable(list) => gpu.enable_at(now, &pick(list), 0),
            Step::Preempt(tsg) => gpu.preempt_at(now, tsgs[*tsg]),
            Step::Timeslice(tsg, ns) => gpu.set_timeslice(tsgs[*tsg], *ns),
            Step::Schedule(tsg, on) => gpu.set_scheduled(tsgs[*tsg], *on),
            Step::Replace(index) => {
                let old = channels[*index];
                gpu.remove_channel(old);
                judge.started.remove(&old);
                replaced.insert(old);
                channels[*index] = gpu.add_channel(tsgs[index % TSGS]);
                judge.tsg_of.insert(channels[*index], tsgs[index % TSGS]);
            }
        }
        gpu.advance(now, &mut events);
        events.iter().for_each(|event| judge.see(event));
        all.append(&mut events);
    }

    // Let everything that is left run: it must all end.
    for tsg in &tsgs {
        gpu.set_scheduled(*tsg, true);
    }
    now += 100 * MS;
    gpu.advance(now, &mut events);
    gpu.enable_at(now, &channels, 0);
    let mut waits = true;
    while waits {
        gpu.advance(now, &mut events);
        now += 1_000 * MS;
        gpu.advance(now, &mut events);
        waits = channels
            .iter()
            .any(|channel| gpu.waiting(*channel).is_some());
        channels.iter().for_each(|channel| gpu.signal(*channel));
    }
    gpu.advance(now + 1, &mut events);
    events.iter().for_each(|event| judge.see(event));
    all.append(&mut events);
    assert!(
        channels.iter().all(|channel| gpu.queued(*channel) == 0),
        "work left behind"
    );
    assert!(judge.on_engine.is_empty(), "an idle TSG kept its engine");
    if replaced.is_empty() {
        assert_eq!(judge.finished.len() as u64, tag);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
    #[test]
    fn nothing_runs_while_disabled_work_is_conserved_and_engines_have_one_tsg_at_a_time(
        steps in vec(step(), 1..80),
        switch_ns in prop_oneof![Just(0), Just(50_000_u64)],
        seed in any::<u64>(),
    ) {
        run(&steps, switch_ns, seed);
    }

    /// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
    #[test]
    fn the_same_schedule_gives_the_same_events(
        steps in vec(step(), 1..60),
        seed in any::<u64>(),
    ) {
        prop_assert_eq!(run(&steps, 50_000, seed), run(&steps, 50_000, seed));
    }

    /// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
    #[test]
    fn advancing_in_steps_and_at_once_is_the_same(
        work in vec((0..CHANNELS, 1..5 * MS), 1..30),
        cut in 1..50_u64,
    ) {
        let build = || {
            let mut gpu = Gpu::new(Config::default());
            let tsgs: Vec<_> = (0..TSGS).map(|_| scheduled(&mut gpu, 1)).collect();
            let channels: Vec<_> =
                (0..CHANNELS).map(|c| gpu.add_channel(tsgs[c % TSGS])).collect();
            for (tag, (channel, ns)) in work.iter().enumerate() {
                gpu.submit(channels[*channel], Work::Run { ns: *ns, tag: tag as u64 });
            }
            gpu.disable_at(7 * MS, &channels[..2], 1);
            gpu.enable_at(31 * MS, &channels[..2], 2);
            gpu
        };
        let (mut once, mut often) = (Vec::new(), Vec::new());
        build().advance(400 * MS, &mut once);
        let mut gpu = build();
        for part in 0..=cut {
            gpu.advance(400 * MS * part / cut, &mut often);
        }
        prop_assert_eq!(once, often);
    }
}
