//! What offline jobs that share a GPU get of it, beside the demo's online engine and its requests.
//!
//! Each case is a run of `--seconds` on one virtual GPU with the same requests and gaps. What a job had is the time
//! that the device's own history has its groups on the engine; what users waited is in the engine's log.
//!
//! * shares: of the engine's time for offline. `together` is the same without turns, `slices` by
//!   timeslices.
//! * harvest_ratio: that time over what one job alone had in its run.
//! * gives_up_ms: from the last kernel of a job that rests to the first moment in which the other is enabled, online
//!   being silent; of [`RESTS`] rests.
//! * ttft, tpot: means over those of the run with one job, request by request the same: the one whose processes are as
//!   many as those of the largest job of the case. `alone_again` is that run once more: how far it is off is noise.
//! * preemptions_per_request: how often the last enabled channel of all jobs went off in the time of a request.
//! * preempt_p99_us: doorbell to the return of the last disable, as the agent says; preempt_p99_ratio over that of the
//!   same run with one job.

use crate::row::{Row, median};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;
use tidegate_replay::input::InputError;
use tidegate_tests::figures::{Preemptions, Served, Span, served, tpot_ms, ttft_ms};
use tidegate_tests::plan::{COST, GAPS, Plan, Wanted, choose};
use tidegate_tests::shares::{by_time, engine_time, shares};
use tidegate_tests::watch::{Testimony, status};
use tidegate_tests::{Node, Offline, Running, compile, monotonic_ns, wait_for, wait_until};
use tidegate_vgpu::history::Kind;

const KERNEL_NS: &str = "1000000";
/// Of requests and gaps: the demo's default.
const SEED: u64 = 1;
/// Before the first request.
const LEAD_NS: u64 = 300_000_000;
/// Rests that are timed, and how long each is, and the work between two.
const RESTS: usize = 10;
const REST: Duration = Duration::from_millis(500);

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    mode: &'static str,
    weights: &'static [u32],
    processes: &'static [usize],
    /// The first job has no work for a sixth of the run.
    rests: bool,
}

const TURNS: &str = "turns";
const SLICES: &str = "slices";

const ALONE: Case = Case {
    name: "alone",
    mode: TURNS,
    weights: &[1],
    processes: &[1],
    rests: false,
};

/// One job as large as the largest of the others: what online meets beside it is not worse for a second one.
const ALONE_OF_8: Case = Case {
    name: "alone_of_8",
    processes: &[8],
    ..ALONE
};

const CASES: [Case; 11] = [
    ALONE,
    ALONE_OF_8,
    Case {
        name: "equal",
        weights: &[1, 1],
        processes: &[1, 1],
        ..ALONE
    },
    Case {
        name: "together_1_and_8",
        mode: "together",
        weights: &[1, 1],
        processes: &[1, 8],
        ..ALONE
    },
    Case {
        name: "equal_1_and_8",
        weights: &[1, 1],
        processes: &[1, 8],
        ..ALONE
    },
    Case {
        name: "one_to_four",
        weights: &[1, 4],
        processes: &[1, 1],
        ..ALONE
    },
    Case {
        name: "rests",
        weights: &[1, 1],
        processes: &[1, 1],
        rests: true,
        ..ALONE
    },
    Case {
        name: "slices_equal",
        mode: SLICES,
        weights: &[1, 1],
        processes: &[1, 1],
        ..ALONE
    },
    Case {
        name: "slices_1_and_8",
        mode: SLICES,
        weights: &[1, 1],
        processes: &[1, 8],
        ..ALONE
    },
    Case {
        name: "slices_one_to_four",
        mode: SLICES,
        weights: &[1, 4],
        processes: &[1, 1],
        ..ALONE
    },
    // What differs from the first run is this machine's noise.
    Case {
        name: "alone_again",
        ..ALONE
    },
];

/// What a case came to.
#[derive(Debug)]
struct Measured {
    case: Case,
    /// Engine time of each job, ns.
    ran: Vec<u64>,
    resting: Option<Resting>,
    served: Vec<Served>,
    preemptions: Preemptions,
    preempt_p99_us: f64,
}

/// What became of the time of a job without work.
#[derive(Debug)]
struct Resting {
    /// Engine time of each job meanwhile, ns.
    ran: Vec<u64>,
    /// How soon the other had the GPU, ms, rest by rest.
    gives_up_ms: Vec<f64>,
}

/// The jobs of a run.
struct Jobs {
    each: Vec<Vec<Offline>>,
    pids: Vec<BTreeSet<u32>>,
}

impl Jobs {
    fn start(node: &Node, case: &Case) -> Self {
        let job = |(nth, (weight, count)): (usize, (&u32, &usize))| {
            let process = |_| {
                let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
                command
                    .args([KERNEL_NS, "0"])
                    .env("TIDEGATE_JOB", format!("job-{nth}"))
                    .env("TIDEGATE_WEIGHT", weight.to_string());
                let mut offline = Offline::from_command(&mut command);
                offline.running();
                offline
            };
            (0..*count).map(process).collect()
        };
        let jobs = case.weights.iter().zip(case.processes).enumerate();
        let each: Vec<Vec<Offline>> = jobs.map(job).collect();
        let pids = |job: &Vec<Offline>| job.iter().map(|own| own.process.pid()).collect();
        Self {
            pids: each.iter().map(pids).collect(),
            each,
        }
    }

    /// The first job rests from now on, or works.
    fn rests(&self, rests: bool) {
        for own in &self.each[0] {
            let signal = if rests { libc::SIGUSR1 } else { libc::SIGUSR2 };
            own.process.signal(signal);
        }
    }
}

/// The agent's configuration: the rule gives each job the largest weight, and each takes its own.
fn config(case: &Case) -> String {
    // SAFETY: it has no preconditions.
    let uid = unsafe { libc::geteuid() };
    let most = case.weights.iter().max().copied().unwrap_or(1);
    let mode = case.mode;
    format!(
        "[identity]\ntrust_env_uids = [\"self\"]\n[[identity.rules]]\nuid = {uid}\nrole = \"offline\"\n\
         weight = {most}\n[fair]\nmode = \"{mode}\"\n"
    )
}

/// Pauses for what is to be measured meanwhile.
fn pass(time: Duration) {
    let _ = wait_until(time, || None::<()>);
}

fn start_online(node: &Node) -> Running {
    let cost = COST.prefill_ms.iter().chain(&COST.decode_ms);
    let cost: Vec<String> = cost.map(f64::to_string).collect();
    let (tail, model) = (GAPS.tail_ms, GAPS);
    let mut command = node.preloaded(compile("llm_online", &["-lcuda"]), "online");
    command
        .arg("--log")
        .arg(node.dir().join("online.log"))
        .args(["--cost", &cost.join(","), "--seed", &SEED.to_string()])
        .arg("--gap")
        .arg(format!(
            "{},{},{},{},{}",
            model.median_ms, model.sigma, model.tail_share, tail.0, tail.1
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let process = Running::start("llm_online", &mut command);
    wait_for("the online engine to be warm", || {
        let ready = std::fs::read_to_string(node.dir().join("online.log")).ok()?;
        ready.starts_with("ready ").then_some(())
    });
    wait_for("the agent to know it", || {
        let status = status(node);
        let mut all = status["processes"].as_array()?.iter();
        all.any(|own| own["pid"] == process.pid() && own["role"] == "online")
            .then_some(())
    });
    process
}

/// Sends all requests; when the first second begins.
fn send(online: &mut Running, plan: &Plan) -> u64 {
    let start = monotonic_ns() + LEAD_NS;
    let mut text = format!("start {start}\n");
    for request in plan.trace.requests() {
        let (input, output) = (request.input_tokens, request.output_tokens);
        let _ = writeln!(text, "{} {input} {output}", request.arrival.0);
    }
    let mut pipe = online.child.stdin.take().expect("stdin is piped");
    pipe.write_all(text.as_bytes())
        .expect("the online engine reads its schedule");
    start
}

fn run(case: Case, plan: &Plan, length: Duration) -> Measured {
    let node = Node::new(&[], &config(&case));
    let jobs = Jobs::start(&node, &case);
    let mut online = start_online(&node);
    let from = send(&mut online, plan);
    let to = from + length.as_nanos() as u64;
    let until = |at: u64| pass(Duration::from_nanos(at.saturating_sub(monotonic_ns())));
    let rest = case.rests.then(|| {
        until(from + (to - from) / 3);
        jobs.rests(true);
        let begin = monotonic_ns();
        until(begin + (to - from) / 6);
        let end = monotonic_ns();
        jobs.rests(false);
        (begin, end)
    });
    until(to);
    online.succeed();
    let p99 = status(&node)["gpus"][0]["preempt_latency"]["p99_ns"].as_u64();
    let gives_up_ms: Vec<f64> = (0..if case.rests { RESTS } else { 0 })
        .map(|_| gives_up(&node, &jobs))
        .collect();
    let testimony = Testimony::of(&node);
    let log = std::fs::read_to_string(node.dir().join("online.log")).expect("the engine's log");
    let served = served(&log);
    let off = went_off(&testimony, &jobs.pids);
    Measured {
        case,
        ran: engine_time(
            &testimony,
            &jobs.pids,
            Span {
                from_ns: from,
                to_ns: to,
            },
        ),
        resting: rest.map(|(from_ns, to_ns)| Resting {
            ran: engine_time(&testimony, &jobs.pids, Span { from_ns, to_ns }),
            gives_up_ms,
        }),
        preemptions: Preemptions::at(&off, &served),
        served,
        preempt_p99_us: p99.unwrap_or(0) as f64 / 1e3,
    }
}

/// A rest, with nobody online: from the last kernel of the first job to the first enable of the second after it.
fn gives_up(node: &Node, jobs: &Jobs) -> f64 {
    jobs.rests(true);
    pass(REST);
    let end = monotonic_ns();
    let testimony = Testimony::of(node);
    jobs.rests(false);
    pass(REST);
    let mut own = testimony.0.iter().filter(|r| r.at_ns < end);
    let ended = |r: &&_| is(r, Kind::KernelEnd, &jobs.pids[0]);
    let last = own.by_ref().filter(ended).map(|r| r.at_ns).max();
    let last = last.expect("the first job ran");
    // Enabled before, and not disabled since: it never had to wait.
    let waits = disabled_at(&testimony, &jobs.pids[1], last);
    let mut enabled = testimony.0.iter();
    let first = enabled
        .by_ref()
        .filter(|r| is(r, Kind::EnableEnd, &jobs.pids[1]) && r.at_ns >= last)
        .map(|r| r.at_ns)
        .min();
    match first {
        _ if !waits => 0.0,
        Some(first) => (first - last) as f64 / 1e6,
        None => f64::INFINITY,
    }
}

fn is(record: &tidegate_vgpu::history::Record, kind: Kind, pids: &BTreeSet<u32>) -> bool {
    record.kind == kind && pids.contains(&record.pid)
}

/// Whether all channels of `pids` were disabled at an instant.
fn disabled_at(testimony: &Testimony, pids: &BTreeSet<u32>, at_ns: u64) -> bool {
    let mut on = BTreeSet::new();
    for record in testimony.0.iter().filter(|r| r.at_ns <= at_ns) {
        if pids.contains(&record.pid) {
            note(&mut on, record);
        }
    }
    on.is_empty()
}

/// Keeps the channels that are enabled.
fn note(on: &mut BTreeSet<(u32, u32)>, record: &tidegate_vgpu::history::Record) {
    let channel = (record.client, record.object);
    match record.kind {
        Kind::ChannelUp | Kind::EnableEnd => drop(on.insert(channel)),
        Kind::ChannelDown | Kind::DisableEnd => drop(on.remove(&channel)),
        _ => {}
    }
}

/// When the last enabled channel of all jobs went off.
fn went_off(testimony: &Testimony, pids: &[BTreeSet<u32>]) -> Vec<u64> {
    let (mut on, mut off) = (BTreeSet::new(), Vec::new());
    for record in by_time(testimony) {
        if pids.iter().any(|own| own.contains(&record.pid)) {
            let before = on.is_empty();
            note(&mut on, record);
            if !before && on.is_empty() {
                off.push(record.at_ns);
            }
        }
    }
    off
}

impl Measured {
    fn total(&self) -> f64 {
        self.ran.iter().sum::<u64>() as f64
    }

    fn preemptions_per_request(&self) -> f64 {
        let per = &self.preemptions.per_request;
        per.iter().sum::<usize>() as f64 / per.len().max(1) as f64
    }

    /// The rows of the table: harvest against the run with one process, online against `one`.
    fn rows(&self, alone: &Self, one: &Self) -> Vec<Row> {
        let (case, share) = (self.case, shares(&self.ran));
        let key = |figure: &str| format!("fair.{}.{figure}", case.name);
        let figure = |name: &str, value: f64, unit| Row::new(key(name), value, unit);
        let judged = case.mode != "together" && share.len() > 1;
        let mut rows = Vec::new();
        if share.len() > 1 && !case.rests {
            rows.push(figure("share", share[0], ""));
            let weights: u32 = case.weights.iter().sum();
            let deserved = f64::from(case.weights[0]) / f64::from(weights);
            let off = figure("share_off", (share[0] - deserved).abs(), "");
            let bound = if case.weights == [1, 4] { 0.02 } else { 0.03 };
            rows.push(if judged { off.at_most(bound) } else { off });
        }
        // While one rests the other has what both would have.
        let harvest = figure("harvest_ratio", self.total() / alone.total(), "");
        rows.push(if judged {
            harvest.at_least(0.97)
        } else {
            harvest
        });
        let ttft = ttft_ms(&self.served).mean / ttft_ms(&one.served).mean;
        let tpot = tpot_ms(&self.served).mean / tpot_ms(&one.served).mean;
        rows.push(figure("ttft_ratio", ttft, ""));
        rows.push(figure("tpot_ratio", tpot, ""));
        let per = self.preemptions_per_request();
        rows.push(figure("preemptions_per_request", per, ""));
        rows.push(figure("preempt_p99_us", self.preempt_p99_us, "us"));
        let ratio = self.preempt_p99_us / one.preempt_p99_us;
        rows.push(figure("preempt_p99_ratio", ratio, ""));
        if let Some(resting) = &self.resting {
            let part = shares(&resting.ran)[0];
            rows.push(figure("resting_share", part, "").at_most(0.02));
            let most = resting.gives_up_ms.iter().copied().fold(0.0, f64::max);
            rows.push(figure(
                "gives_up_ms",
                median(resting.gives_up_ms.clone()),
                "ms",
            ));
            rows.push(figure("gives_up_max_ms", most, "ms").at_most(20.0));
        }
        rows
    }

    fn json(&self, alone: &Self, one: &Self) -> Value {
        let case = self.case;
        let (ttft, tpot) = (ttft_ms(&self.served), tpot_ms(&self.served));
        json!({
            "name": case.name,
            "mode": case.mode,
            "weights": case.weights,
            "processes": case.processes,
            "shares": shares(&self.ran),
            "harvest_ratio": self.total() / alone.total(),
            "requests": self.served.len(),
            "ttft_ms": ttft.mean,
            "tpot_ms": tpot.mean,
            "preemptions_per_request": self.preemptions_per_request(),
            "preempt_p99_us": self.preempt_p99_us,
            "against": one.case.name,
            "against_preempt_p99_us": one.preempt_p99_us,
            "resting_shares": self.resting.as_ref().map(|own| shares(&own.ran)),
            "gives_up_ms": self.resting.as_ref().map(|own| own.gives_up_ms.clone()),
        })
    }
}

/// The rows of the table, and the cases for the file.
pub fn measure(seconds: u64) -> Result<(Vec<Row>, Value), InputError> {
    let length = Duration::from_secs(seconds);
    let plan = choose(&Wanted {
        file: None,
        length,
        seed: SEED,
        thin: None,
        start: None,
    })?;
    let all: Vec<Measured> = CASES
        .into_iter()
        .map(|case| {
            eprintln!("fair: {} for {seconds} s", case.name);
            run(case, &plan, length)
        })
        .collect();
    let alone = &all[0];
    let largest = |own: &Measured| own.case.processes.iter().max().copied();
    let one = |own: &Measured| {
        let alike = |other: &&Measured| other.ran.len() == 1 && largest(other) == largest(own);
        all.iter().find(alike).unwrap_or(alone)
    };
    let rows = all.iter().flat_map(|own| own.rows(alone, one(own)));
    let rows = rows.collect();
    let cases = all.iter().map(|own| own.json(alone, one(own))).collect();
    Ok((rows, Value::Array(cases)))
}
