//! `tidegate place tend`: moves a job that gets too little here for long, if it gets enough somewhere else.

use super::look::{Look, Seen};
use crate::agent::{Agent, report, runtime};
use crate::values::span;
use clap::Args as ClapArgs;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_agent::clock::{nanos, unix_ns};
use tidegate_place::engine::Patience;
use tidegate_place::memo::Memo;
use tidegate_place::metrics::{self, Judged};
use tidegate_place::offers::{Wish, node};
use tidegate_place::queue::{self, Job};
use tidegate_place::said::Said;
use tidegate_place::slurm::{self, here};
use tidegate_place::windows::{Window, windows};
use tidegate_policy::ids::GpuSet;
use tidegate_policy::placement::{Horizon, Node, Profile, predict, predict_on};
use tidegate_policy::tend::{Case, Correction, Hold, Tending, Verdict, judge};
use tidegate_policy::time::Instant;
use tidegate_proto::v1;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    look: Look,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Slurm's name of this node (default: as slurmd reports it, or the host name).
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Length of the windows in which a job is judged.
    #[arg(long, default_value = "10min", value_name = "TIME", value_parser = span)]
    judge: Duration,
    /// Move a job after this many windows in a row below its SLA.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    strikes: u8,
    /// How often a job may be moved.
    #[arg(long, default_value_t = 3, value_name = "N")]
    evictions_per_job: u32,
    /// Move at most one job off this node in this time.
    #[arg(long, default_value = "10min", value_name = "TIME", value_parser = span)]
    node_every: Duration,
    /// How long a job that was moved stays away.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = span)]
    hold_off: Duration,
}

/// How often a job that was told to end is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What a command runs with.
struct Run<'a> {
    args: &'a Args,
    seen: Seen,
    tending: Tending,
    patience: Patience,
    here: String,
    now: Instant,
}

pub(super) fn run(agent: &Agent, args: &Args) -> anyhow::Result<()> {
    let said = Said::new(&agent.run_dir, "tend");
    let mut judged = Vec::new();
    match tend(agent, args, &said, &mut judged) {
        Ok(()) => {}
        // One line per change: the engine is away, or nobody knows anything.
        Err(why) => said.say(&format!("tends nobody: {why}")),
    }
    if !args.dry_run {
        let text = metrics::tended(&judged, Memo::read(&args.look.memo).evictions);
        let said = Said::new(&agent.run_dir, "metrics-tend");
        args.look.leave(metrics::TENDED, &text, &said);
    }
    Ok(())
}

fn tend(agent: &Agent, args: &Args, said: &Said, judged: &mut Vec<Judged>) -> Result<(), String> {
    let seen = args.look.see().map_err(|error| error.to_string())?;
    let tending = Tending {
        window: args.judge,
        strikes: args.strikes,
        evictions_per_job: args.evictions_per_job,
        node_every: args.node_every,
        hold_off: args.hold_off,
        ..Tending::default()
    };
    tending.check().map_err(|wrong| wrong.to_string())?;
    let run = Run {
        args,
        seen,
        tending,
        patience: Patience::begins(),
        here: here(args.node.as_deref())?,
        now: Instant::from_nanos(unix_ns()),
    };
    let before = Memo::read(&args.look.memo);
    let mut memo = before.clone();
    memo.bear(run.now, tending.hold_off);
    run.let_back(&mut memo);
    if let Some(why) = &run.seen.none {
        run.keep(&before, &memo);
        return Err(why.clone());
    }
    let asked = ["-h", "-w", &run.here, "-t", "RUNNING", "-O", queue::JOBS];
    let jobs = queue::jobs(&run.patience.run("squeue", &asked)?);
    let wishes: Vec<_> = jobs
        .iter()
        .filter_map(|job| Some((job, Wish::of(&job.comment).ok()??)))
        .collect();
    memo.learnt
        .retain(|id, _| wishes.iter().any(|(job, _)| job.id == *id));
    if wishes.is_empty() {
        run.keep(&before, &memo);
        return Ok(());
    }
    let status = runtime()
        .and_then(|runtime| runtime.block_on(report(agent, false)))
        .map_err(|error| error.to_string())?;
    let nodes = run
        .patience
        .run("sinfo", &["-h", "-N", "-O", queue::NODES])?;
    let mut lines = Vec::new();
    for (job, wish) in wishes {
        if let Some(line) = run.one(job, &wish, (&status, &nodes), &mut memo, judged) {
            lines.push(line);
        }
    }
    run.keep(&before, &memo);
    if !lines.is_empty() {
        said.say(&lines.join("; "));
    }
    Ok(())
}

impl Run<'_> {
    /// Only a change is written.
    fn keep(&self, before: &Memo, memo: &Memo) {
        if memo == before || self.args.dry_run {
            return;
        }
        if let Err(error) = memo.write(&self.args.look.memo) {
            eprintln!("tidegate: {}: {error}", self.args.look.memo.display());
        }
    }

    /// What a job of `profile` would get here before any correction, by all of the history.
    fn uncorrected(&self, profile: &Profile) -> Option<f64> {
        let prediction = predict(
            profile,
            profile.gpus(),
            &node(&self.seen.facts, self.seen.horizon),
        );
        prediction.refusals.is_empty().then_some(prediction.ratio)
    }

    /// Jobs whose time away is over may come back.
    fn let_back(&self, memo: &mut Memo) {
        let over = |hold: &Hold, name: &str| {
            let profile = self.seen.profiles.iter().find(|own| own.name() == name);
            let gives = profile
                .and_then(|profile| self.uncorrected(profile))
                .unwrap_or(0.0);
            hold.is_over(gives, self.now)
        };
        let over: Vec<_> = memo
            .holds
            .iter()
            .filter(|(_, (hold, profile))| over(hold, profile))
            .map(|(job, _)| job.clone())
            .collect();
        for id in over {
            // A job that is over is not known, and excludes nothing any more.
            if let Ok(mut nodes) = self.excluded(&id)
                && nodes.remove(&self.here)
                && !self.args.dry_run
            {
                let _ = self.exclude(&id, &nodes);
            }
            memo.holds.remove(&id);
        }
    }

    /// The nodes that a job does not go to.
    fn excluded(&self, id: &str) -> Result<BTreeSet<String>, String> {
        let asked = ["-h", "-j", id, "-o", queue::EXCLUDED];
        let text = self.patience.run("squeue", &asked)?;
        let Some(list) = queue::excluded(&text) else {
            return Ok(BTreeSet::new());
        };
        let names = self
            .patience
            .run("scontrol", &["show", "hostnames", list])?;
        Ok(names.split_whitespace().map(str::to_owned).collect())
    }

    fn exclude(&self, id: &str, nodes: &BTreeSet<String>) -> Result<(), String> {
        let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
        let (job, list) = (
            format!("JobId={id}"),
            format!("ExcNodeList={}", nodes.join(",")),
        );
        self.patience
            .run("scontrol", &["update", &job, &list])
            .map(drop)
    }

    /// Judges a job and does what follows; what there is to say of it.
    fn one(
        &self,
        job: &Job,
        wish: &Wish,
        (status, nodes): (&v1::GetStatusResponse, &str),
        memo: &mut Memo,
        judged: &mut Vec<Judged>,
    ) -> Option<String> {
        let profile = self
            .seen
            .profiles
            .iter()
            .find(|own| own.name() == wish.profile)?;
        let name = self.name_of(job, status)?;
        let windows = windows(&self.seen.facts, &name, profile, nanos(self.tending.window));
        self.learn(job, profile, &windows, memo);
        judged.push(Judged {
            job: job.id.clone(),
            profile: wish.profile.clone(),
            sla: f64::from(wish.percent) / 100.0,
            got: windows.last().and_then(|window| window.got),
        });
        let excluded = match self.excluded(&job.id) {
            Ok(excluded) => excluded,
            Err(why) => return Some(format!("job {} is not judged: {why}", job.id)),
        };
        let correction = memo
            .corrections
            .get(profile.name())
            .copied()
            .unwrap_or(Correction::NONE);
        let uncorrected = self.uncorrected(profile);
        let factor = correction.now(self.now, &self.tending);
        let got: Vec<_> = windows.iter().map(|window| window.got).collect();
        let case = Case {
            sla: f64::from(wish.percent) / 100.0,
            windows: &got,
            here: uncorrected.map(|ratio| ratio * factor),
            uncorrected: uncorrected.unwrap_or(0.0),
            elsewhere: queue::elsewhere(nodes, &self.here, &excluded, profile.name(), wish.gpus),
            evictions: job.restarts,
            last_here: memo.last_here,
            may_restart: job.may_restart,
        };
        let last = got.last().copied().flatten().unwrap_or(0.0) * 100.0;
        let told = format!(
            "job {} got {last:.0} % of its throughput alone and asks for {} %",
            job.id, wish.percent
        );
        match judge(&case, self.now, &self.tending) {
            Verdict::Keep(_) => None,
            Verdict::Report(why) => Some(format!("{told}: it stays, for {}", why.words())),
            Verdict::Evict(_) if self.args.dry_run => {
                println!("{told}: it would be moved");
                None
            }
            Verdict::Evict(hold) => Some(match self.evict(job, excluded, hold, profile, memo) {
                Ok(()) => format!("{told}: it is moved"),
                Err(why) => format!("{told}: it cannot be moved: {why}"),
            }),
        }
    }

    fn evict(
        &self,
        job: &Job,
        mut excluded: BTreeSet<String>,
        hold: Hold,
        profile: &Profile,
        memo: &mut Memo,
    ) -> Result<(), String> {
        // One that its user cancels meanwhile would come back, if scontrol did not look first whether it has ended.
        let moved = ["requeue", "incomplete", &job.id];
        self.patience.run("scontrol", &moved)?;
        // From here on it is moved, whatever the engine makes of the rest.
        memo.last_here = Some(self.now);
        memo.evictions += 1;
        memo.holds
            .insert(job.id.clone(), (hold, profile.name().to_owned()));
        excluded.insert(self.here.clone());
        self.exclude(&job.id, &excluded)?;
        // A requeued job that has ended waits until its credential has lapsed, unless it is told otherwise by then.
        while self.patience.is_left() {
            let state = self
                .patience
                .run("squeue", &["-h", "-j", &job.id, "-o", "%T"])?;
            if state.trim() == "PENDING" {
                let id = format!("JobId={}", job.id);
                let told = ["update", &id, "StartTime=now"];
                return self.patience.run("scontrol", &told).map(drop);
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// What a whole window teaches of the profile here, once.
    fn learn(&self, job: &Job, profile: &Profile, windows: &[Window<'_>], memo: &mut Memo) {
        let Some((window, (end, _))) = windows.last().zip(self.seen.facts.newest) else {
            return;
        };
        let length_ms = nanos(self.tending.window) / 1_000_000;
        let learnt = memo.learnt.get(&job.id).copied().unwrap_or(0);
        let (Some(got), true) = (window.got, end.abs_diff(learnt) >= length_ms) else {
            return;
        };
        memo.learnt.insert(job.id.clone(), end);
        let known = Node {
            horizon: Horizon {
                window: self.tending.window,
                least: Duration::ZERO,
                ..Horizon::default()
            },
            ..Node::new(self.seen.facts.gpus, window.slices)
        };
        let on = if window.gpus == GpuSet::EMPTY {
            self.seen.facts.gpus
        } else {
            window.gpus
        };
        let predicted = predict_on(profile, on, &known);
        if predicted.refusals.is_empty() {
            let own = memo
                .corrections
                .entry(profile.name().to_owned())
                .or_insert(Correction::NONE);
            *own = own.learn(got, predicted.ratio, self.now, &self.tending);
        }
    }

    /// What the agent calls a job of Slurm: by the cgroup of its processes, else by the processes that slurmd itself
    /// names, never by a name that a user chose.
    fn name_of(&self, job: &Job, status: &v1::GetStatusResponse) -> Option<String> {
        let offline = || {
            status
                .processes
                .iter()
                .filter(|process| !process.job.is_empty())
        };
        let placed = |process: &&v1::ProcessStatus| {
            process
                .whereabouts
                .as_ref()
                .is_some_and(|place| place.slurm_job == job.id)
        };
        if let Some(process) = offline().find(placed) {
            return Some(process.job.clone());
        }
        let text = self
            .patience
            .run("scontrol", &["listpids", &job.id, &self.here])
            .ok()?;
        let pids = slurm::pids(&text);
        let process = offline().find(|process| pids.contains(&process.pid));
        process.map(|process| process.job.clone())
    }
}
