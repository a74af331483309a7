//! Random schedules against jobs that a real Slurm places by what nodes publish: `nemesis cluster`.
//!
//! Four nodes, each with an agent and a virtual GPU, and up to three jobs with an SLA each. Online loads come and go
//! where jobs are, the controller, agents and slurmds are killed and started again. Then everything is healed, and no
//! job may be lost. Schedules share a cluster, and each begins from an empty queue and healed nodes. Judged by what
//! slurmctld wrote of what it did ([`crate::slurm::log`]) and by what squeue and sinfo say.

use crate::schedules::Rng;
use crate::slurm::log::{Reader, Story};
use crate::slurm::{Job, PREFIX, Settings, Slurm};
use crate::{Online, clock, wait_for, wait_until, watch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Times one job may be moved here.
const CAP: u32 = 2;
const NODES: usize = 4;
/// Everything quick: a verdict after three windows of a second. A job that was moved may come back in the same
/// schedule.
const SETTINGS: Settings = Settings {
    lost_s: 5,
    place: "--window 1s --least 1s --since 4s",
    tend: "--judge 1s --evictions-per-job 2 --node-every 4s --hold-off 8s",
};
/// What jobs ask for, in per cent. Not all are on a step of what nodes publish.
const ASKS: [u8; 4] = [20, 35, 40, 70];

/// What a run amounts to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules run.
    pub schedules: u64,
    /// Broken promises, with the seed of their schedule.
    pub violations: Vec<(u64, String)>,
    /// Jobs that Slurm does not know any more, or never starts again.
    pub lost_jobs: u64,
    /// Jobs that were moved more often than they may be.
    pub over_cap: u64,
    /// Nodes that Slurm stopped giving jobs, without having lost them.
    pub drained: u64,
    /// Jobs that were placed where less was published than they ask for.
    pub misplaced: u64,
    /// Sets of features that nodes were given.
    pub published: u64,
    /// Placements.
    pub placed: u64,
    /// Jobs that were moved.
    pub evictions: u64,
    /// Jobs that lost their node.
    pub lost_nodes: u64,
    /// How often each thing was done.
    pub done: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Too little happened for a verdict.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.placed < self.schedules || (self.schedules >= 10 && self.evictions == 0)
    }
}

/// Runs `schedules` from `seed` on; `seen` hears of each. On `breaks` no job's SLA is what the judge takes for it,
/// which it has to notice.
///
/// # Panics
/// When the cluster does not come up.
pub fn run(seed: u64, schedules: u64, breaks: bool, mut seen: impl FnMut(u64, &Totals)) -> Totals {
    let mut ground = Ground::start();
    let mut totals = Totals::default();
    for seed in seed..seed + schedules {
        let before = totals.violations.len();
        if let Err(why) = ground.schedule(seed, breaks, &mut totals) {
            totals.violations.push((seed, why));
        }
        let new = &totals.violations[before..];
        if !new.is_empty() {
            eprintln!("{}\n{new:#?}", ground.slurm.logs());
        }
        totals.schedules += 1;
        seen(seed, &totals);
    }
    totals
}

/// What the schedules share.
struct Ground {
    slurm: Slurm,
    loads: Vec<Online>,
    /// Loads that are on.
    held: BTreeSet<usize>,
    log: Reader,
}

/// One thing that happens.
type Step = fn(&mut Ground, &mut Rng) -> Result<(), String>;

const STEPS: [(&str, u64, Step); 6] = [
    ("load_on_a_job", 40, Ground::load_a_job),
    ("load_anywhere", 15, Ground::load_any),
    ("load_ends", 15, Ground::unload),
    ("controller_killed", 12, Ground::kill_controller),
    ("agent_killed", 10, Ground::kill_agent),
    ("slurmd_killed", 8, Ground::kill_slurmd),
];

impl Ground {
    fn start() -> Self {
        let mut slurm = Slurm::start_as(NODES, SETTINGS);
        let loads = slurm.hosts.iter().map(|host| Online::start(&host.node, 0));
        let loads = loads.collect();
        slurm.give_profiles();
        slurm.tick();
        Self {
            slurm,
            loads,
            held: BTreeSet::new(),
            log: Reader::default(),
        }
    }

    fn schedule(&mut self, seed: u64, breaks: bool, totals: &mut Totals) -> Result<(), String> {
        self.clean()?;
        let mut rng = Rng(seed);
        let mut asks = BTreeMap::new();
        for _ in 0..rng.between(0, 3) {
            self.load_any(&mut rng)?;
        }
        let mut to_come = rng.between(1, 4);
        for _ in 0..rng.between(3, 7) {
            if to_come > 0 && (asks.is_empty() || rng.percent(50)) {
                let ask = ASKS[usize::try_from(rng.between(0, 4)).unwrap_or(0)];
                let job = self.submit(ask)?;
                asks.insert(job, ask);
                to_come -= 1;
                // Most get a node before the next thing happens.
                if rng.percent(70) {
                    let up = Duration::from_secs(3);
                    let _ = wait_until(up, || {
                        (self.slurm.job(job).state == "RUNNING").then_some(())
                    });
                }
            } else {
                let (name, step) = draw(&mut rng);
                *totals.done.entry(name).or_default() += 1;
                step(self, &mut rng)?;
            }
            std::thread::sleep(Duration::from_millis(rng.between(50, 1_500)));
        }
        self.heal()?;
        let stuck = self.settle(&asks);
        for why in &stuck {
            totals.violations.push((seed, why.clone()));
        }
        totals.lost_jobs += u64::try_from(stuck.len()).unwrap_or(u64::MAX);
        if breaks {
            asks.values_mut().for_each(|ask| *ask = 101);
        }
        self.judge(seed, &asks, totals)
    }

    /// An empty queue on healed nodes without a load.
    fn clean(&mut self) -> Result<(), String> {
        self.heal()?;
        let _ = self.slurm.text("scancel", &["--user=root"]);
        for at in self.held.clone() {
            self.release(at);
        }
        let empty = || {
            let queue = self.slurm.text("squeue", &["-h"]);
            let idle = self.slurm.text("sinfo", &["-h", "-N", "-o", "%T"]);
            let idle = idle.lines().filter(|line| *line == "idle").count();
            (queue.trim().is_empty() && idle == NODES).then_some(())
        };
        wait_until(clock::DEADLINE, empty).ok_or("the queue does not become empty")?;
        // Nobody's correction or way back is carried over.
        for host in &self.slurm.hosts {
            let _ = std::fs::remove_file(host.node.dir().join("place.json"));
        }
        for host in &self.slurm.hosts {
            wait_for("no job is left on a node", || {
                let status = watch::status(&host.node);
                status["jobs"].as_array()?.is_empty().then_some(())
            });
        }
        Ok(())
    }

    /// Everything that was killed is started again.
    fn heal(&mut self) -> Result<(), String> {
        if !self.slurm.has_controller() {
            self.slurm.start_controller();
        }
        for at in 0..NODES {
            if self.slurm.hosts[at].node.agent.is_none() {
                self.slurm.start_agent(at);
            }
            if self.slurm.hosts[at].slurmd.is_none() {
                self.slurm.start_slurmd(at);
            }
        }
        let up = || {
            let text = self.slurm.text("sinfo", &["-h", "-N", "-o", "%T"]);
            let up = |state: &&str| ["idle", "mixed", "allocated", "completing"].contains(state);
            (text.lines().filter(up).count() == NODES).then_some(())
        };
        wait_until(clock::DEADLINE, up).ok_or_else(|| {
            let text = self.slurm.text("sinfo", &["-N", "-l"]);
            format!("a node does not come back:\n{text}")
        })
    }

    fn submit(&self, ask: u8) -> Result<u32, String> {
        let comment = format!("tidegate: profile=summarise sla=0.{ask:02}");
        self.slurm.submit(&comment)
    }

    fn release(&mut self, at: usize) {
        if self.held.remove(&at) {
            self.loads[at].say("release");
        }
    }

    fn hold(&mut self, at: usize) {
        if self.held.insert(at) {
            self.loads[at].say("hold");
        }
    }

    /// Nodes with a running job.
    fn used(&self) -> Vec<usize> {
        let text = self
            .slurm
            .text("squeue", &["-h", "-t", "RUNNING", "-o", "%N"]);
        let at = |name: &str| self.slurm.hosts.iter().position(|host| host.name == name);
        text.lines().filter_map(|line| at(line.trim())).collect()
    }

    fn load_a_job(&mut self, rng: &mut Rng) -> Result<(), String> {
        let used = self.used();
        let Some(&at) = usize::try_from(rng.between(0, used.len() as u64))
            .ok()
            .and_then(|at| used.get(at))
        else {
            return self.load_any(rng);
        };
        self.hold(at);
        // Three windows of a second, and the runs of `tend` that see them.
        if rng.percent(60) {
            let gone = || (!self.used().contains(&at)).then_some(());
            let _ = wait_until(Duration::from_secs(8), gone);
        }
        Ok(())
    }

    fn load_any(&mut self, rng: &mut Rng) -> Result<(), String> {
        let at = node(rng);
        self.hold(at);
        Ok(())
    }

    fn unload(&mut self, rng: &mut Rng) -> Result<(), String> {
        let at = node(rng);
        self.release(at);
        Ok(())
    }

    fn kill_controller(&mut self, rng: &mut Rng) -> Result<(), String> {
        // It knows nothing of what it had not yet written.
        self.slurm.saved();
        self.slurm.kill_controller();
        std::thread::sleep(Duration::from_millis(rng.between(0, 1_500)));
        self.slurm.start_controller();
        Ok(())
    }

    fn kill_agent(&mut self, rng: &mut Rng) -> Result<(), String> {
        let at = node(rng);
        self.slurm.hosts[at].node.agent = None;
        std::thread::sleep(Duration::from_millis(rng.between(0, 4_000)));
        if rng.percent(50) {
            self.slurm.start_agent(at);
        }
        Ok(())
    }

    /// For a moment, or until its node is lost.
    fn kill_slurmd(&mut self, rng: &mut Rng) -> Result<(), String> {
        let used = self.used();
        let at = used.first().copied().unwrap_or_else(|| node(rng));
        self.slurm.kill_slurmd(at);
        if rng.percent(60) {
            let name = self.slurm.hosts[at].name.clone();
            let lost = || {
                let text = self.slurm.text("sinfo", &["-h", "-n", &name, "-o", "%T"]);
                text.starts_with("down").then_some(())
            };
            wait_until(clock::DEADLINE, lost).ok_or("a node without slurmd is not lost")?;
            // One that is back before its timer has run is given a job while its slurmd ends that job's last step, and
            // Slurm has the job fail.
            let silent = || self.slurm.features(&name).is_empty().then_some(());
            wait_until(clock::DEADLINE, silent)
                .ok_or("a node that is lost goes on saying what it gives")?;
        }
        Ok(())
    }

    /// Waits until every job runs, or waits for a node that is not there; which do not.
    fn settle(&mut self, asks: &BTreeMap<u32, u8>) -> Vec<String> {
        for at in self.held.clone() {
            self.release(at);
        }
        let stuck = |this: &Self| -> Vec<String> {
            let free = this.free();
            let of = |(&job, &ask): (&u32, &u8)| this.stuck(job, ask, &free);
            asks.iter().filter_map(of).collect()
        };
        let none = || stuck(self).is_empty().then_some(());
        match wait_until(clock::DEADLINE, none) {
            Some(()) => Vec::new(),
            None => stuck(self),
        }
    }

    /// Nodes that could take a job at this moment, with what they say they give.
    fn free(&self) -> BTreeMap<String, u8> {
        let hosts = self.slurm.hosts.iter().map(|host| host.name.clone());
        let text = self.slurm.text("sinfo", &["-h", "-N", "-o", "%N %T"]);
        let idle = |name: &String| text.lines().any(|line| line == format!("{name} idle"));
        let gives = |name: String| {
            let features = self.slurm.features(&name);
            let steps = features.iter().filter_map(|own| own.strip_prefix(PREFIX));
            let most = steps.filter_map(|step| step.parse().ok()).max();
            (name, most.unwrap_or(0))
        };
        hosts.filter(idle).map(gives).collect()
    }

    /// Why a job counts as lost, if it stays as it is now.
    fn stuck(&self, id: u32, ask: u8, free: &BTreeMap<String, u8>) -> Option<String> {
        let Job { state, reason, .. } = self.slurm.job(id);
        match state.as_str() {
            "RUNNING" => None,
            "PENDING" => {
                let away = self.slurm.excluded(id);
                let fits = |(name, gives): (&String, &u8)| *gives >= ask && !away.contains(name);
                let held = reason.contains("Held") || reason.contains("BadConstraints");
                let fit = free.iter().any(fits);
                // Nobody may be busy for ever that is healed: all give enough, once the loads are over.
                let all_give = free.values().all(|gives| *gives >= ask);
                (held || fit || !all_give)
                    .then(|| format!("job {id} waits: {reason}, beside {free:?}"))
            }
            other => Some(format!("job {id} is {other:?}")),
        }
    }

    fn judge(
        &mut self,
        seed: u64,
        asks: &BTreeMap<u32, u8>,
        totals: &mut Totals,
    ) -> Result<(), String> {
        let Story {
            published,
            placed,
            evicted,
            lost_nodes,
            misplaced,
            drained: mut new,
        } = self
            .log
            .read(&self.slurm.controllers_log(), asks, PREFIX)
            .map_err(|error| format!("the controller's log: {error}"))?;
        totals.published += published;
        totals.placed += placed;
        totals.lost_nodes += lost_nodes;
        totals.misplaced += u64::try_from(misplaced.len()).unwrap_or(u64::MAX);
        for why in misplaced {
            totals.violations.push((seed, why));
        }
        for (job, times) in evicted {
            totals.evictions += u64::from(times);
            if times > CAP {
                totals.over_cap += 1;
                let why = format!("job {job} was moved {times} times, of {CAP}");
                totals.violations.push((seed, why));
            }
        }
        new.extend(self.slurm.drained());
        totals.drained += u64::try_from(new.len()).unwrap_or(u64::MAX);
        for line in new {
            totals.violations.push((seed, format!("drained: {line}")));
        }
        Ok(())
    }
}

fn node(rng: &mut Rng) -> usize {
    usize::try_from(rng.between(0, NODES as u64)).unwrap_or(0)
}

fn draw(rng: &mut Rng) -> (&'static str, Step) {
    let all: u64 = STEPS.iter().map(|(_, weight, _)| weight).sum();
    let mut at = rng.between(0, all);
    for (name, weight, step) in STEPS {
        if at < weight {
            return (name, step);
        }
        at -= weight;
    }
    (STEPS[0].0, STEPS[0].2)
}
