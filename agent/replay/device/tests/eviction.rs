//! What each firmware makes of a disable, judged by the work that ends.

use tidegate_device::{ChannelId, Config, Event, EventKind, Eviction, Gpu, TsgId, Work};

const MS: u64 = 1_000_000;
const GRAPHICS: u32 = 1;
const COPY: u32 = 9;
/// Kernels of the busy channel, one after another, without a pause.
const KERNEL: u64 = 10 * MS;

struct Rig {
    gpu: Gpu,
    events: Vec<Event>,
}

impl Rig {
    fn new(eviction: Eviction) -> Self {
        let config = Config {
            switch_ns: 0,
            eviction,
            ..Config::default()
        };
        Self {
            gpu: Gpu::new(config),
            events: Vec::new(),
        }
    }

    /// A group with one channel that always has kernels queued.
    fn busy(&mut self, engine: u32) -> (TsgId, ChannelId) {
        let tsg = self.gpu.add_tsg(engine);
        let channel = self.gpu.add_channel(tsg);
        self.gpu.set_scheduled(tsg, true);
        for tag in 0..1_000 {
            self.gpu.submit(channel, Work::Run { ns: KERNEL, tag });
        }
        (tsg, channel)
    }

    fn to(&mut self, at: u64) {
        self.gpu.advance(at, &mut self.events);
    }

    /// How many kernels of `channel` ended in the `span` from now on.
    fn ended_within(&mut self, channel: ChannelId, span: u64) -> usize {
        let from = self.events.len();
        let until = self.gpu.now() + span;
        self.to(until);
        let ended = |event: &&Event| matches!(event.kind, EventKind::Finished { channel: own, .. } if own == channel);
        self.events[from..].iter().filter(ended).count()
    }

    fn disabled_at(&self, wanted: ChannelId) -> Option<u64> {
        self.events.iter().rev().find_map(|event| match event.kind {
            EventKind::Disabled { channel, .. } if channel == wanted => Some(event.at),
            _ => None,
        })
    }
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_disable_alone_stops_nothing_that_runs_until_the_runlist_is_restarted() {
    let mut rig = Rig::new(Eviction::OnRestart);
    let (group, channel) = rig.busy(GRAPHICS);
    rig.to(25 * MS);
    rig.gpu.disable_at(25 * MS, &[channel], 7);
    assert_eq!(rig.ended_within(channel, 100 * MS), 10, "full throughput");
    assert!(rig.gpu.is_disabled(channel) && !rig.gpu.is_off(channel));
    // A preemption gives the turn back at once.
    rig.gpu.preempt_at(rig.gpu.now(), group);
    assert_eq!(rig.ended_within(channel, 100 * MS), 10);
    let restart = rig.gpu.now();
    rig.gpu.restart_at(restart, group);
    assert_eq!(rig.ended_within(channel, 100 * MS), 0);
    assert_eq!(rig.disabled_at(channel), Some(restart));
    // What it was inside of goes on where it was.
    rig.gpu.enable_at(rig.gpu.now(), &[channel], 8);
    assert_eq!(rig.ended_within(channel, 6 * MS), 1);
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_restart_concerns_its_own_runlist_and_everything_disabled_on_it() {
    let mut rig = Rig::new(Eviction::OnRestart);
    let (_, first) = rig.busy(GRAPHICS);
    let (_, second) = rig.busy(GRAPHICS);
    let (_, copies) = rig.busy(COPY);
    let other = rig.gpu.add_tsg(GRAPHICS);
    rig.to(25 * MS);
    rig.gpu.disable_at(25 * MS, &[first, second, copies], 1);
    rig.gpu.restart_at(26 * MS, other);
    rig.to(30 * MS);
    assert!(rig.gpu.is_off(first) && rig.gpu.is_off(second));
    assert!(!rig.gpu.is_off(copies));
    assert!(rig.ended_within(copies, 100 * MS) > 5);
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_channel_that_has_not_run_is_blocked_by_the_disable_itself() {
    for eviction in [
        Eviction::OnRestart,
        Eviction::OnPreempt,
        Eviction::AtKernelEnd,
    ] {
        let mut rig = Rig::new(eviction);
        let tsg = rig.gpu.add_tsg(GRAPHICS);
        let channel = rig.gpu.add_channel(tsg);
        rig.gpu.disable_at(0, &[channel], 1);
        rig.to(0);
        rig.gpu.set_scheduled(tsg, true);
        rig.gpu.submit(channel, Work::Run { ns: MS, tag: 0 });
        assert_eq!(rig.ended_within(channel, 100 * MS), 0, "{eviction:?}");
        rig.gpu.enable_at(rig.gpu.now(), &[channel], 2);
        assert_eq!(rig.ended_within(channel, 2 * MS), 1, "{eviction:?}");
    }
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_preemption_evicts_what_is_disabled_for_scheduling_only() {
    let mut rig = Rig::new(Eviction::OnPreempt);
    let (group, channel) = rig.busy(GRAPHICS);
    rig.to(25 * MS);
    rig.gpu.disable_at(25 * MS, &[channel], 1);
    rig.gpu.preempt_at(26 * MS, group);
    rig.gpu.restart_at(27 * MS, group);
    assert_eq!(rig.ended_within(channel, 100 * MS), 10, "neither does here");
    let now = rig.gpu.now();
    rig.gpu.disable_scheduling_at(now, &[channel], 2);
    assert_eq!(rig.ended_within(channel, 50 * MS), 5);
    let now = rig.gpu.now();
    rig.gpu.preempt_at(now, group);
    assert_eq!(rig.ended_within(channel, 50 * MS), 0);
    assert_eq!(rig.disabled_at(channel), Some(now));
    let overtaken = EventKind::Overtaken { ticket: 1 };
    assert!(rig.events.iter().any(|event| event.kind == overtaken));
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn a_disable_of_scheduling_leaves_what_has_the_turn_until_it_is_preempted() {
    let mut rig = Rig::new(Eviction::OnDisable);
    let (group, channel) = rig.busy(GRAPHICS);
    rig.to(25 * MS);
    rig.gpu.disable_scheduling_at(25 * MS, &[channel], 1);
    assert_eq!(rig.ended_within(channel, 50 * MS), 5, "alone on its engine");
    rig.gpu.preempt_at(rig.gpu.now(), group);
    assert_eq!(rig.ended_within(channel, 50 * MS), 0);
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn the_kernel_that_runs_goes_on_to_its_end_and_nothing_after_it() {
    let mut rig = Rig::new(Eviction::AtKernelEnd);
    let tsg = rig.gpu.add_tsg(GRAPHICS);
    let channel = rig.gpu.add_channel(tsg);
    rig.gpu.set_scheduled(tsg, true);
    // One kernel in three pieces, and another.
    for (tag, last) in [(0, false), (1, false), (2, true), (3, true)] {
        rig.gpu.submit(
            channel,
            if last {
                Work::Run { ns: KERNEL, tag }
            } else {
                Work::Part { ns: KERNEL, tag }
            },
        );
    }
    rig.to(5 * MS);
    rig.gpu.disable_at(5 * MS, &[channel], 1);
    assert_eq!(rig.ended_within(channel, 100 * MS), 3);
    assert_eq!(rig.disabled_at(channel), Some(30 * MS));
    rig.gpu.enable_at(rig.gpu.now(), &[channel], 2);
    assert_eq!(rig.ended_within(channel, 10 * MS), 1);
}

/// P-EQUIPMENT-3: personalities play what firmware was seen to do.
#[test]
fn deaf_firmware_takes_every_call_and_stops_nothing() {
    let mut rig = Rig::new(Eviction::Never);
    let (group, channel) = rig.busy(GRAPHICS);
    rig.to(25 * MS);
    rig.gpu.disable_at(25 * MS, &[channel], 1);
    rig.gpu.restart_at(25 * MS, group);
    rig.gpu.disable_scheduling_at(26 * MS, &[channel], 2);
    rig.gpu.preempt_at(26 * MS, group);
    assert_eq!(rig.ended_within(channel, 100 * MS), 10);
    assert_eq!(rig.disabled_at(channel), None);
}
