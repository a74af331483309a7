//! The scenario: an engine that reports its iterations, trainers beside it, and faults.

use super::judge::{Figures, Judge, Served, tails};
use super::script::{Fault, Script};
use super::words::{Break, Happening, Leases, Own, Trainer};
use crate::dice::{Dice, MS, US};
use crate::process::Process;
use crate::timeline::Timeline;
use crate::world::{Fact, Play, Rules, World};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use tidegate_abi::beats::BeatPage;
use tidegate_node::Input;
use tidegate_node::beats::{BeatMemory, BeatRef};
use tidegate_node::kinds::{Level, Method};
use tidegate_node::message::Said;
use tidegate_policy::config::Config;
use tidegate_policy::ids::GpuId;
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::slo::Promise;
use tidegate_vgpu::personality::Personality;

/// An engine that alone comes nearer than this part to what was promised keeps it by chance.
const NEAR: u64 = 100;

#[derive(Debug)]
struct Shown(Arc<BeatPage>);

impl BeatMemory for Shown {
    fn page(&self) -> &BeatPage {
        &self.0
    }
}

impl Leases {
    /// One schedule from its first event to its verdict.
    pub fn schedule(
        seed: u64,
        broken: Break,
        timeline: Option<&Timeline>,
    ) -> (Vec<String>, Figures) {
        let script = Script::draw(seed, &mut Dice::new(seed));
        let alone = Self::play(script.alone(), Break::Nothing, None);
        let own = Self::play(script.clone(), broken, timeline);
        let mut judge = own;
        let pairs = judge.served.iter().zip(&alone.served);
        let count = |of: &Option<Served>| of.filter(|own| own.ttft > 0 && !own.spoiled);
        let (mut beside, mut by_itself) = (Vec::new(), Vec::new());
        for (one, other) in pairs {
            if let (Some(one), Some(other)) = (count(one), count(other)) {
                beside.push(one);
                by_itself.push(other);
            }
        }
        let late = |own: &&Served| own.ttft > script.ttft || own.tpot > script.tpot;
        judge.figures.requests = beside.len() as u64;
        judge.figures.late = beside.iter().filter(late).count() as u64;
        let (ttft, tpot) = tails(&beside);
        let (ttft_alone, tpot_alone) = tails(&by_itself);
        for (what, took, alone, promised) in [
            ("first token", ttft, ttft_alone, script.ttft),
            ("further token", tpot, tpot_alone, script.tpot),
        ] {
            if alone + alone / NEAR <= promised && took > promised {
                let [took, alone, promised] = [took, alone, promised].map(|ns| ns / US);
                judge.violated(
                    0,
                    &format!("late: time per {what} {took} us, {alone} alone, {promised} promised"),
                );
            }
        }
        (judge.violations, judge.figures)
    }

    fn play(script: Script, broken: Break, timeline: Option<&Timeline>) -> Judge {
        let mut dice = Dice::new(script.seed ^ 0x006c_6561_7365);
        let grace_ns = if broken == Break::NoEnd {
            3_600_000 * MS
        } else {
            script.grace
        };
        let leasing = Leasing {
            promise: Promise::Tail {
                ttft_ns: script.ttft,
                tpot_ns: script.tpot,
                late_permille: 10,
            },
            margin_permille: 50,
            switch_ns: 250 * US,
            gate_ns: MS,
            grace_ns,
        };
        let leases = (broken != Break::Off).then_some(leasing);
        let rules = Rules {
            gpus: 1,
            config: Config {
                leases,
                ..Config::default()
            },
            pool: 0,
            level: Level::L1,
            method: Method::Disable,
            personality: Personality::Evicts,
            broken: None,
        };
        let mut judge = Judge::new(script.grace, script.requests.len());
        judge.timeline = timeline.cloned();
        let seed = dice.between(0, u64::MAX - 1);
        let play = Self {
            script,
            judge,
            broken,
        };
        let mut world = World::new(seed, dice, rules, play);
        world.timeline = timeline.cloned();
        world.run().0.judge
    }
}

impl World<Leases> {
    fn spawn_trainer(&mut self, job: u32, at: u64) {
        let (kind, unit) = self.play.script.trainers[job as usize];
        let own = Own::Trainer(Trainer::new(kind, unit));
        self.spawn_in(at, Process::new(Some(job), 1, own));
    }

    /// Faults that wait for a lease come now.
    pub fn lease_was_given(&mut self) {
        for at in 0..self.play.script.faults.len() {
            let (when, waits, _) = self.play.script.faults[at];
            if waits && self.now >= when {
                self.play.script.faults[at].1 = false;
                self.pending += 1;
                let wait = self.dice.between(0, 3 * MS);
                self.play_at(self.now + wait, Happening::Fault(at));
            }
        }
    }

    fn count_leases(&mut self) {
        let Some(agent) = &self.agent else { return };
        let view = agent.shell.policy().leases(GpuId(0));
        if let Some(view) = view.filter(|view| view.predictions > 0) {
            let figures = &mut self.play.judge.figures;
            figures.errors.0 += f64::from(view.error_permille) / 1e3;
            figures.errors.1 += 1;
        }
    }
}

impl Play for Leases {
    type Own = Own;
    type Ev = Happening;
    const LONGEST: u64 = 120_000 * MS;
    const QUIET: u64 = 700 * MS;
    const LEASES: bool = true;

    fn begins(world: &mut World<Self>) {
        let engine = Own::Engine(Box::default());
        world.spawn_in(world.now, Process::new(None, 1, engine));
        for job in 0..world.play.script.trainers.len() {
            let wait = world.dice.between(0, 800 * MS);
            world.spawn_trainer(u32::try_from(job).unwrap_or(0), world.now + wait);
        }
        for (nth, request) in world.play.script.requests.clone().iter().enumerate() {
            world.pending += 1;
            world.play_at(request.at, Happening::Request(nth));
        }
        for (nth, (at, waits, _)) in world.play.script.faults.clone().iter().enumerate() {
            if !waits {
                world.pending += 1;
                world.play_at(*at, Happening::Fault(nth));
            }
        }
    }

    fn spawned(world: &mut World<Self>, pid: usize) {
        let Some(keeps) = world.processes[pid].own.trainer().map(|own| own.keeps()) else {
            return;
        };
        let job = world.processes[pid].job.unwrap_or(0);
        for (tsg, _) in world.processes[pid].devices[0].channels.clone() {
            world.play.judge.trainer(job, tsg, keeps);
        }
        world.begin_reporter(pid);
        world.trains(pid);
    }

    fn attached(world: &mut World<Self>, pid: usize) {
        if world.processes[pid].is_online() {
            if let Some((_, engine)) = world.engine() {
                engine.page = None;
            }
            let word = world.engine_word();
            let words = &world.processes[pid].page.process;
            words.in_flight.store(word, Release);
            world.ring(pid);
        } else {
            world.offers(pid);
        }
    }

    fn happens(world: &mut World<Self>, event: Happening) {
        match event {
            Happening::Request(request) => {
                world.arrives();
                world.request(request);
            }
            Happening::Turn(pid) => world.turn_begins(pid),
            Happening::Unit(pid, number) => world.unit_begins(pid, number),
            Happening::Thaws(pid) => world.trains(pid),
            Happening::Dies(pid) => {
                world.arrives();
                let job = world.processes[pid].job.unwrap_or(0);
                if world.processes[pid].alive {
                    world.kill(pid);
                    let wait = world.dice.between(MS, 60 * MS);
                    world.spawn_trainer(job, world.now + wait);
                }
            }
            Happening::Fault(nth) => {
                world.arrives();
                match world.play.script.faults[nth].2 {
                    Fault::Killed(ns) => world.agent_is_killed(ns),
                    Fault::Stopped(ns) => world.agent_is_stopped(ns),
                }
            }
            Happening::Beats(pid) => {
                world.new_beats();
                let session = world.processes[pid].session;
                if world.processes[pid].attached == Some(world.epoch) {
                    world.say(Input::Said(session, Said::Beats(7)));
                }
            }
        }
    }

    fn is_busy(world: &mut World<Self>) -> bool {
        world.engine_word() > 1
    }

    fn ends(world: &mut World<Self>) {
        world.count_leases();
    }

    fn finished(world: &mut World<Self>, _gpu: usize, tag: u64, at: u64) {
        let pid = usize::try_from(tag).unwrap_or(usize::MAX);
        match world.processes.get(pid).map(Process::is_online) {
            Some(true) => world.turn_ends(pid, at),
            Some(false) => world.unit_ends(pid),
            None => {}
        }
    }

    fn passes(world: &mut World<Self>, pid: usize) {
        world.trains(pid);
    }

    fn asked_for_beats(world: &mut World<Self>, pid: usize) {
        let wait = world.dice.between(50 * US, MS);
        world.play_at(world.now + wait, Happening::Beats(pid));
    }

    fn beats(world: &mut World<Self>) -> Option<BeatRef> {
        let (_, engine) = world.engine()?;
        let page = engine.page.clone()?;
        Some(BeatRef::new(Shown(page)))
    }

    fn learns(&mut self, now: u64, fact: Fact<'_>) {
        match fact {
            Fact::Run(_, tsg, at) => self.judge.runs(tsg, at),
            Fact::Stop(_, tsg, at) => self.judge.stops(tsg, at),
            Fact::DisableCall { drawn, .. } => self.judge.called(now, drawn),
            _ => {}
        }
    }

    fn told_of(event: &Happening) -> Option<(String, bool)> {
        match event {
            Happening::Request(nth) => Some((format!("request {nth} comes"), false)),
            Happening::Turn(_) => Some(("the engine begins an iteration".to_owned(), true)),
            Happening::Unit(pid, Some(number)) => Some((
                format!("process {pid} launches a unit of lease {number}"),
                false,
            )),
            Happening::Unit(pid, None) => Some((format!("process {pid} launches a unit"), true)),
            Happening::Dies(pid) => Some((format!("process {pid} dies"), false)),
            Happening::Fault(_) => Some(("a fault of the agent".to_owned(), false)),
            Happening::Thaws(_) | Happening::Beats(_) => None,
        }
    }

    fn turned(world: &mut World<Self>) {
        world.look_at_leases();
    }

    fn noted(&mut self, kind: &'static str) {
        self.judge.figures.overruns += u64::from(kind == "lease_overrun");
    }

    fn settled(world: &mut World<Self>) {
        let agent = world.agent.as_ref();
        let epoch = agent
            .filter(|agent| !agent.stopped)
            .map(|agent| agent.epoch);
        let mut known = world
            .processes
            .iter()
            .filter(|own| own.alive && own.attached_once);
        let known = known.all(|process| process.attached == epoch && process.is_reported());
        let controlled = epoch.is_some() && known;
        world.play.judge.control(world.now, controlled);
    }
}
