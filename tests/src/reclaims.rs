//! Random schedules of reclaims against a running engine, with a stand-in for the agent.
//!
//! One device serves all schedules. Each takes and gives back random stripes of the engine that runs, at random moments,
//! and may kill the engine in the middle, or end the agent and begin another. What happened is judged by the engine,
//! which checks every token, and by the device's history.

use crate::engine::{Engine, judge};
use crate::schedules::Rng;
use crate::stand_in::{Gate, StandIn};
use crate::{Node, monotonic_ns, wait_for};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{MemoryResult, Role};
use tidegate_vgpu::history::{self, Kind};

/// What all schedules came to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules run.
    pub schedules: u64,
    /// Seed and what was broken.
    pub violations: Vec<(u64, String)>,
    /// Engines that found a wrong token.
    pub wrong_tokens: u64,
    /// Engines that ended or stood still with requests unanswered.
    pub lost_requests: u64,
    /// Faults the device saw.
    pub faults: u64,
    /// Stripes taken.
    pub taken: u64,
    /// Stripes given back.
    pub given: u64,
    /// Reclaims put off because a thread was inside a call.
    pub put_off: u64,
    /// Engines killed.
    pub kills: u64,
    /// Agents ended and followed.
    pub restarts: u64,
}

struct Stage {
    engine: Engine,
    agent: StandIn,
    /// Session of the engine.
    at: usize,
    taken: BTreeSet<u32>,
    stripes: u32,
    node: Node,
    engines: u32,
}

const LAYOUTS: [&str; 2] = ["blocks", "layers"];

impl Stage {
    fn new(rng: &mut Rng) -> Self {
        let node = Node::device_only(&["--set", "poison=0xa5", "--set", "unmap_us=100"]);
        let agent = StandIn::start(&node, Role::Offline);
        let engine = start(&node, rng, 0);
        let mut stage = Self {
            engine,
            agent,
            at: 0,
            taken: BTreeSet::new(),
            stripes: 0,
            node,
            engines: 0,
        };
        stage.settle();
        stage
    }

    /// Waits until the engine's cache is registered and it runs.
    fn settle(&mut self) {
        self.agent.let_run(self.at);
        let cache = self.agent.cache(self.at);
        self.stripes = u32::try_from(cache.first_block.len()).unwrap_or(0);
        self.taken = (0..self.stripes)
            .filter(|at| cache.backed[*at as usize / 8] >> (at % 8) & 1 == 0)
            .collect();
    }

    fn shut(&mut self, totals: &mut Totals) -> bool {
        let checked = self.agent.check(self.at, Duration::from_millis(20));
        if checked.result() != MemoryResult::Ok {
            assert_eq!(checked.result(), MemoryResult::ThreadInside, "{checked:?}");
            totals.put_off += 1;
            self.agent.gate(self.at, Gate::Open);
            return false;
        }
        self.agent.channels(self.at, true);
        true
    }

    fn open(&mut self) {
        self.agent.channels(self.at, false);
        self.agent.gate(self.at, Gate::Open);
    }

    fn pick(rng: &mut Rng, from: &[u32]) -> Vec<u32> {
        let count = rng.between(1, 7).min(from.len() as u64);
        let mut picked: BTreeSet<u32> = BTreeSet::new();
        while (picked.len() as u64) < count {
            let at = usize::try_from(rng.between(0, from.len() as u64)).unwrap_or(0);
            picked.insert(from[at]);
        }
        picked.into_iter().collect()
    }

    fn take(&mut self, rng: &mut Rng, totals: &mut Totals) {
        let free: Vec<u32> = (0..self.stripes)
            .filter(|at| !self.taken.contains(at))
            .collect();
        // An engine with nothing left cannot go on, rightly.
        if free.len() as u32 <= self.stripes / 2 || !self.shut(totals) {
            return;
        }
        let picked = Self::pick(rng, &free);
        let kv = self.agent.cache(self.at).kv;
        let answers = self.agent.reclaim(self.at, kv, &picked);
        let done = answers.last().expect("an answer");
        assert_eq!(
            (done.result(), &done.stripes),
            (MemoryResult::Ok, &picked),
            "{done:?}"
        );
        totals.taken += picked.len() as u64;
        self.taken.extend(picked);
        let seq = done.log_seq;
        self.open();
        if rng.percent(70) {
            self.agent
                .hear(self.at, "the blocks to be withheld", |event| match event {
                    Event::Withheld(withheld) if withheld.log_seq >= seq => Some(()),
                    _ => None,
                });
        }
    }

    fn give(&mut self, rng: &mut Rng, totals: &mut Totals) {
        let taken: Vec<u32> = self.taken.iter().copied().collect();
        if taken.is_empty() || !self.shut(totals) {
            return;
        }
        let picked = Self::pick(rng, &taken);
        let kv = self.agent.cache(self.at).kv;
        let answers = self.agent.restore(self.at, kv, &picked);
        let done = answers.last().expect("an answer");
        match done.result() {
            MemoryResult::Ok => {
                assert_eq!(done.stripes, picked, "{done:?}");
                totals.given += picked.len() as u64;
                self.taken.retain(|at| !picked.contains(at));
            }
            result => assert_eq!(result, MemoryResult::NotWithheld, "{done:?}"),
        }
        self.open();
    }

    /// Kills the engine, perhaps in the middle of a reclaim, and starts another.
    fn kill(&mut self, rng: &mut Rng, totals: &mut Totals) {
        if rng.percent(60) && self.shut(totals) {
            let all: Vec<u32> = (0..self.stripes).collect();
            let kv = self.agent.cache(self.at).kv;
            let limit = Duration::from_millis(500);
            self.agent
                .order_reclaim(self.at, kv, &Self::pick(rng, &all), limit);
            std::thread::sleep(Duration::from_micros(rng.between(0, 3_000)));
        }
        let pid = self.engine.process.pid();
        self.engine.process.signal(libc::SIGKILL);
        let _ = self.engine.process.child.wait();
        totals.kills += 1;
        wait_for("the dead engine's memory", || {
            let records = history::read(&self.node.vgpu_dir()).unwrap_or_default();
            let count = |kind| {
                records
                    .iter()
                    .filter(|r| r.pid == pid && r.kind == kind)
                    .count()
            };
            (count(Kind::MemoryUp) == count(Kind::MemoryDown)).then_some(())
        });
        self.engines += 1;
        self.engine = start(&self.node, rng, self.engines);
        self.at += 1;
        self.settle();
    }

    /// Ends the agent, perhaps while it reclaims, and begins another.
    fn restart(&mut self, rng: &mut Rng, totals: &mut Totals) {
        if rng.percent(50) && self.shut(totals) {
            let all: Vec<u32> = (0..self.stripes).collect();
            let kv = self.agent.cache(self.at).kv;
            let limit = Duration::from_millis(500);
            self.agent
                .order_reclaim(self.at, kv, &Self::pick(rng, &all), limit);
        }
        let path = self.node.run_dir().join(tidegate_proto::HOOK_SOCKET);
        let _ = std::fs::remove_file(path);
        self.agent = StandIn::start(&self.node, Role::Offline);
        self.at = 0;
        totals.restarts += 1;
        self.settle();
        self.agent.channels(0, false);
    }

    fn judge(&mut self, from_ns: u64, totals: &mut Totals) -> Result<(), String> {
        let range = self.engine.ready();
        let records = history::read(&self.node.vgpu_dir()).map_err(|e| e.to_string())?;
        let wrong = judge(&records, self.engine.process.pid(), &range);
        totals.faults += wrong.faults.iter().filter(|r| r.at_ns >= from_ns).count() as u64;
        if !wrong.faults.is_empty() {
            return Err(format!("the device faulted: {:?}", wrong.faults[0]));
        }
        if let Some(unmap) = wrong.unmaps.first() {
            return Err(format!(
                "a mapping changed while a channel was enabled: {unmap:?}"
            ));
        }
        Ok(())
    }

    fn run(&mut self, rng: &mut Rng, totals: &mut Totals) -> Result<(), String> {
        let start = monotonic_ns();
        for _ in 0..rng.between(3, 7) {
            match rng.between(0, 100) {
                0..45 => self.take(rng, totals),
                45..85 => self.give(rng, totals),
                85..92 => self.kill(rng, totals),
                92..95 => self.restart(rng, totals),
                _ => {}
            }
            if let Err(end) = self.engine.progress(rng.between(1, 4) * 8) {
                if end.contains("exit status: 3") {
                    totals.wrong_tokens += 1;
                } else {
                    totals.lost_requests += 1;
                }
                return Err(end);
            }
        }
        self.judge(start, totals)
    }
}

fn start(node: &Node, rng: &mut Rng, number: u32) -> Engine {
    let job = format!("nemesis-{}", node.device.pid());
    let layout = LAYOUTS[usize::try_from(rng.between(0, 2)).unwrap_or(0)];
    let seed = (u64::from(number) * 1_000_000).to_string();
    Engine::start(
        node,
        &job,
        &[
            "--layout", layout, "--ns", "50000", "--blocks", "64", "--say", "8", "--seed", &seed,
        ],
    )
}

/// Runs `count` schedules from `seed` on.
pub fn run(seed: u64, count: u64, mut progress: impl FnMut(u64, &Totals)) -> Totals {
    let mut totals = Totals::default();
    let mut stage = None;
    for seed in seed..seed + count {
        let mut rng = Rng(seed);
        let ran = crate::sweep::caught(|| {
            stage
                .get_or_insert_with(|| Stage::new(&mut rng))
                .run(&mut rng, &mut totals)
        });
        if let Err(what) = ran {
            totals.violations.push((seed, what));
            stage = None;
        }
        totals.schedules += 1;
        progress(seed, &totals);
    }
    totals
}
