//! Random schedules of real processes on the virtual GPU.
//!
//! One device process and one agent serve all schedules, unless a schedule kills the agent. Each
//! schedule starts an online program of its own (the decode gaps are learnt anew with it), keeps
//! one or two offline programs, and mixes requests, pauses and faults drawn from its seed. What
//! happened is judged by [`crate::judge`] from the device's history.

use crate::judge::{Schedule, Verdict, judge};
use crate::personality::{self, chosen, expected};
use crate::view::status;
use crate::{
    Node, Offline, Online, RECORDS, compile, explain, monotonic_ns, turns, wait_for, wait_until,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_sim::gate::{Played, Totals, Violation};
use tidegate_sim::timeline::Timeline;
use tidegate_vgpu::history::{self, Kind, Record};
use tidegate_vgpu::personality::Personality;

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next_u64() % (to - from).max(1)
    }

    /// True in `percent` of 100 draws.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.next_u64() % 100 < percent
    }
}

/// The configuration of its agents.
pub const AGENT: &str = "[identity]\ntrust_env_uids = [\"self\"]\n";
/// What those have beside it whose offline jobs take turns; short ones, for many swaps.
const TURNS: &str = "[fair]\nmode = \"turns\"\nturn = \"20ms\"\n";

/// A node that lives through many schedules.
#[derive(Debug)]
pub struct Nemesis {
    /// Where everything runs.
    pub node: Node,
    /// Offline programs that run.
    pub offline: Vec<Offline>,
    /// How many jobs they are of, which take turns; 0: of one, which their place names.
    jobs: u32,
    /// Of each offline process there was, its job.
    of_job: BTreeMap<u32, u32>,
    /// Records of the history already judged.
    judged: usize,
    /// Where schedules are told, if they are.
    pub timeline: Option<Timeline>,
}

impl Nemesis {
    /// Starts the device, the agent and the first offline program.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Node::new(&["--gpus", "1"], AGENT), 0)
    }

    /// The same on firmware of that personality, with an agent that finds out by itself how to stop work on
    /// it.
    #[must_use]
    pub fn of(personality: Personality, jobs: u32) -> Self {
        let turns = if jobs > 0 { TURNS } else { "" };
        let node = match personality {
            Personality::Evicts => Node::new(&["--gpus", "1"], &format!("{AGENT}{turns}")),
            other => personality::node(other, &["--gpus", "1"], turns),
        };
        Self::with(node, jobs)
    }

    /// Starts the first offline program on a node that has its agent.
    #[must_use]
    pub fn on(node: Node) -> Self {
        Self::with(node, 0)
    }

    fn with(node: Node, jobs: u32) -> Self {
        let mut nemesis = Self {
            node,
            offline: Vec::new(),
            jobs,
            of_job: BTreeMap::new(),
            judged: 0,
            timeline: None,
        };
        nemesis.refill(1);
        nemesis
    }

    /// Makes sure that `count` offline programs run.
    fn refill(&mut self, count: usize) {
        let count = count.max(self.jobs as usize);
        while self.offline.len() < count {
            if self.jobs == 0 {
                self.offline
                    .push(Offline::start(&self.node, 2_000_000, &[0]));
                continue;
            }
            // The job that has the fewest.
            let alive = |job: &u32| {
                let pids = self.offline.iter().map(|own| own.process.pid());
                pids.filter(|pid| self.of_job.get(pid) == Some(job)).count()
            };
            let job = (0..self.jobs).min_by_key(alive).unwrap_or(0);
            let mut command = self
                .node
                .preloaded(compile("offline", &["-lcuda"]), "offline");
            command.args(["2000000", "0"]);
            command.env("TIDEGATE_JOB", format!("job-{job}"));
            let offline = Offline::from_command(&mut command);
            self.of_job.insert(offline.process.pid(), job);
            self.offline.push(offline);
        }
    }

    fn history(&self) -> Vec<Record> {
        history::read(&self.node.vgpu_dir()).unwrap_or_default()
    }

    /// Waits until offline work runs, so that the next request has something to preempt.
    fn offline_runs(&self, after_ns: u64) -> bool {
        let pids: Vec<u32> = self.offline.iter().map(|o| o.process.pid()).collect();
        wait_until(Duration::from_secs(5), || {
            self.history()
                .iter()
                .rev()
                .take_while(|r| r.at_ns > after_ns)
                .any(|r| r.kind == Kind::KernelStart && pids.contains(&r.pid))
                .then_some(())
        })
        .is_some()
    }

    /// Waits until the agent has heard an edge of the process `pid`, and that it is idle.
    fn wait_known(&self, pid: u32) {
        wait_for("the agent to know the online program", || {
            let status = status(&self.node);
            let rows = status["processes"].as_array()?;
            let mut own = rows.iter().filter(|row| row["pid"] == pid);
            let devices = own.next()?["devices"].as_array()?;
            let heard = devices
                .iter()
                .any(|device| device["edges"].as_u64() > Some(0) && device["busy"] == false);
            heard.then_some(())
        });
    }

    /// Runs and judges the schedule of `seed`.
    pub fn run(&mut self, seed: u64) -> (Verdict, u64) {
        self.run_with(seed, 40, &mut Self::fault)
    }

    /// As [`Self::run`], with something else that goes wrong, in `percent` of the schedules.
    pub fn run_with(
        &mut self,
        seed: u64,
        percent: u64,
        strike: &mut dyn FnMut(&mut Self, &mut Rng, &mut Schedule),
    ) -> (Verdict, u64) {
        let (schedule, records, end) = self.play(seed, percent, strike);
        // Channels that stood before this schedule are known from the records before it.
        let (past, fresh) = records.split_at(self.judged.min(records.len()));
        let mut verdict = judge_with_past(&schedule, past, fresh, end);
        if self.jobs > 0 {
            let (swaps, together) = turns::judge(&schedule, &self.of_job, &records);
            verdict.violations.extend(together);
            verdict.swaps = swaps;
        }
        self.tells(&schedule, &records, &verdict);
        self.judged = records.len();
        (verdict, end - schedule.start_ns)
    }

    /// As [`Self::run`], where no call stops anything and launches are all that can be held.
    pub fn run_by_launches(&mut self, seed: u64) -> (Verdict, u64) {
        let (schedule, records, end) = self.play(seed, 40, &mut Self::fault);
        let mut verdict = judge_launches(&schedule, &records[self.judged.min(records.len())..]);
        let now = status(&self.node);
        if chosen(&now) != Ok(expected(Personality::Deaf)) {
            let what = format!("the agent says {now}");
            verdict.violations.push((end, what));
        }
        self.tells(&schedule, &records, &verdict);
        self.judged = records.len();
        (verdict, end - schedule.start_ns)
    }

    fn tells(&self, schedule: &Schedule, records: &[Record], verdict: &Verdict) {
        if let Some(timeline) = &self.timeline {
            explain::gate(timeline, schedule, verdict);
            let fresh = &records[self.judged.min(records.len())..];
            explain::device(timeline, fresh, |pid| match self.of_job.get(&pid) {
                Some(job) => format!("offline, job-{job}"),
                None if schedule.offline.contains(&pid) => "offline".to_owned(),
                None if pid == schedule.online => "online".to_owned(),
                None => String::new(),
            });
            explain::decisions(timeline, &self.node);
        }
    }

    /// What happens in the schedule of `seed`: all of the history by its end.
    fn play(
        &mut self,
        seed: u64,
        percent: u64,
        strike: &mut dyn FnMut(&mut Self, &mut Rng, &mut Schedule),
    ) -> (Schedule, Vec<Record>, u64) {
        let mut rng = Rng(seed);
        let mut schedule = Schedule::default();
        let wanted = 1 + usize::from(rng.percent(30));
        self.refill(wanted);
        let start = monotonic_ns();
        schedule.start_ns = start;
        let mut online = Online::start(&self.node, 0);
        schedule.online = online.process.pid();
        if self.jobs > 0 {
            // A process' first launch tells the agent on which GPU it computes. Until then jobs go on taking turns, and
            // no order of records says when that was: let the agent know before anything is judged.
            online.request(1, 200_000, 0);
            self.wait_known(schedule.online);
        }
        let gap = rng.between(200_000, 2_500_000);
        let iteration = rng.between(200_000, 1_000_000);
        let requests = rng.between(4, 7);
        let fault_at = rng.percent(percent).then(|| rng.between(1, requests));
        for number in 0..requests {
            // The first request carries the gaps a cooldown is learnt from.
            let iterations = if number == 0 { 40 } else { rng.between(2, 20) };
            let request = online.request(
                u32::try_from(iterations).unwrap_or(u32::MAX),
                iteration,
                gap,
            );
            schedule.requests.push(request);
            schedule
                .gaps_per_request
                .push(usize::try_from(iterations).unwrap_or(usize::MAX));
            if Some(number) == fault_at {
                strike(self, &mut rng, &mut schedule);
            }
            if rng.percent(80) {
                self.offline_runs(request.end_ns);
            }
        }
        drop(online);
        let end = monotonic_ns();
        schedule
            .offline
            .extend(self.offline.iter().map(|o| o.process.pid()));
        let records = self.history();
        (schedule, records, end)
    }

    /// An offline program dies, and its operator starts another.
    pub fn kill_offline(&mut self, schedule: &mut Schedule) {
        if let Some(offline) = self.offline.pop() {
            let pid = offline.process.pid();
            schedule.offline.insert(pid);
            schedule.killed.insert(pid, monotonic_ns());
            drop(offline);
        }
        self.refill(1);
    }

    /// The agent stops for a while: its clients take it for dead.
    pub fn stop_agent(&mut self, rng: &mut Rng, schedule: &mut Schedule) {
        let from = monotonic_ns();
        if let Some(agent) = &self.node.agent {
            agent.signal(libc::SIGSTOP);
            let gone = rng.between(50, 700);
            wait_until(Duration::from_millis(gone), || None::<()>);
            agent.signal(libc::SIGCONT);
        }
        schedule.excused.push(from..monotonic_ns() + 1_500_000_000);
    }

    fn fault(&mut self, rng: &mut Rng, schedule: &mut Schedule) {
        let from = monotonic_ns();
        match rng.between(0, 4) {
            0 => self.kill_offline(schedule),
            1 => {
                // The agent is killed and started again.
                self.node.agent = None;
                let gone = rng.between(0, 300);
                wait_until(Duration::from_millis(gone), || None::<()>);
                schedule.agentless.push(from..monotonic_ns());
                let turns = if self.jobs > 0 { TURNS } else { "" };
                self.node.start_agent(&format!("{AGENT}{turns}"));
                schedule.excused.push(from..monotonic_ns() + 1_500_000_000);
            }
            2 => self.stop_agent(rng, schedule),
            _ => {
                // A second online program comes, works once and is killed.
                let mut other = Online::start(&self.node, 0);
                other.say("burst 2 500000");
                drop(other);
                schedule.excused.push(from..monotonic_ns() + 1_000_000_000);
            }
        }
    }
}

impl Default for Nemesis {
    fn default() -> Self {
        Self::new()
    }
}

/// Where launches are all that can be held nothing is disabled, and what is queued runs out beside online: no
/// order of records says when the gate closed. Counted is what came of it, requests at whose end nothing
/// offline began any more and turns after them; broken is a promise when a context is lost.
fn judge_launches(schedule: &Schedule, records: &[Record]) -> Verdict {
    let mut verdict = Verdict::default();
    let own = |kind| {
        let of_kind = move |r: &&Record| r.kind == kind && schedule.offline.contains(&r.pid);
        records.iter().filter(of_kind)
    };
    for fault in own(Kind::Fault) {
        let what = format!("offline work was lost: {fault:?}");
        verdict.violations.push((fault.at_ns, what));
    }
    let starts: Vec<u64> = own(Kind::KernelStart).map(|r| r.at_ns).collect();
    for request in &schedule.requests {
        let any = |from, to| starts.iter().any(|at| (from..to).contains(at));
        let late = request.end_ns - (request.end_ns - request.start_ns) / 4;
        verdict.edges += u64::from(any(request.start_ns, request.end_ns));
        verdict.preemptions += u64::from(!any(late, request.end_ns));
        verdict.wakes += u64::from(any(request.end_ns, u64::MAX));
    }
    verdict
}

fn judge_with_past(schedule: &Schedule, past: &[Record], fresh: &[Record], end: u64) -> Verdict {
    // The state of each channel at the start is its last record of each kind before it.
    let carried = past.iter().filter(|r| {
        schedule.offline.contains(&r.pid)
            && matches!(
                r.kind,
                Kind::ChannelUp | Kind::ChannelDown | Kind::DisableEnd | Kind::EnableEnd
            )
    });
    let all: Vec<Record> = carried.chain(fresh).copied().collect();
    judge(schedule, &all, end)
}

/// Runs schedules `seed..seed + count` on firmware of a personality, with so many jobs, and tells them on `timeline`.
#[must_use]
pub fn run(
    played: Played,
    seed: u64,
    count: u64,
    timeline: Option<&Timeline>,
    mut progress: impl FnMut(u64, &Totals),
) -> Totals {
    RECORDS.store(timeline.is_some(), Ordering::Relaxed);
    let mut nemesis = Nemesis::of(played.personality, played.jobs);
    nemesis.timeline = timeline.cloned();
    let mut totals = Totals {
        launches_only: played.personality == Personality::Deaf,
        swaps_needed: played.jobs > 1,
        ..Totals::default()
    };
    for number in 0..count {
        let this = seed.wrapping_add(number);
        let (verdict, took) = if totals.launches_only {
            nemesis.run_by_launches(this)
        } else {
            nemesis.run(this)
        };
        let figures = &mut totals.figures;
        totals.schedules += 1;
        figures.edges += verdict.edges;
        figures.wakes += verdict.wakes;
        figures.preemptions += verdict.preemptions;
        figures.swaps += verdict.swaps;
        figures.worst_stuck_ns = figures.worst_stuck_ns.max(verdict.worst_stuck_ns);
        figures.offline_ns += verdict.offline_ran_ns;
        figures.total_ns += took;
        totals.stops_ns.extend(verdict.stops_ns);
        let violations = verdict.violations.into_iter();
        totals
            .violations
            .extend(violations.map(|(_, what)| Violation { seed: this, what }));
        progress(this, &totals);
    }
    totals
}
