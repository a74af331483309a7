//! The three runs: the online program alone, with the offline one beside it, and with Tidegate
//! between them. The same schedule, the same gaps, one after the other.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tidegate_replay::engine::CostModel;
use tidegate_tests::figures::{self, Preemptions, Served, Span};
use tidegate_tests::plan::{COST, GAPS, Plan};
use tidegate_tests::{Running, monotonic_ns};
use tidegate_text::numbers::thousands;
use tidegate_text::spread::Spread;

use crate::interrupt;
use crate::line::{Line, ran};
use crate::progress::Progress;
use crate::stand::{Lane, Stand};

/// How long the offline program runs alone to learn what it can do.
const STANDALONE: Duration = Duration::from_secs(3);
/// How long it may take the programs to settle before the first request.
const LEAD: Duration = Duration::from_millis(300);

/// What one run gave.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Time to first token, ms.
    pub ttft_ms: Spread,
    /// Time per further token, ms.
    pub tpot_ms: Spread,
    /// Both of each request, in the order of the schedule.
    pub each: Each,
    /// Of the offline program, over the run.
    pub offline_tokens_per_s: f64,
    /// Requests that were served.
    pub served: usize,
    /// Who had the GPU when.
    pub line: Line,
    /// Of the run under Tidegate.
    pub gated: Option<Gated>,
}

/// Requests one by one: those of two runs are the same, in one order.
#[derive(Clone, Debug, Default)]
pub struct Each {
    /// Time to first token, ms.
    pub ttft_ms: Vec<f64>,
    /// Time per further token, ms; of requests that have any.
    pub tpot_ms: Vec<f64>,
}

/// What only the run under Tidegate has.
#[derive(Clone, Debug, Default)]
pub struct Gated {
    /// Disables of the offline program.
    pub preemptions: Preemptions,
    /// Doorbell ring to the return of the last disable.
    pub latency_us: Spread,
    /// Share of the run that online left idle beyond its cooldown.
    pub harvestable_share: f64,
    /// Twice the longest decode gap of the schedule.
    pub cooldown: Duration,
    /// Offline tokens per second over what it does alone times that share.
    pub harvest_ratio: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Online alone.
    pub alone: Run,
    /// With offline and no control.
    pub uncontrolled: Run,
    /// With offline under Tidegate.
    pub tidegate: Run,
    /// Offline alone, tokens per second.
    pub standalone_tokens_per_s: f64,
}

/// The machine, the plan and where progress goes.
#[derive(Debug)]
pub struct Runs<'a> {
    /// Where programs run.
    pub stand: &'a mut Stand,
    /// What is sent.
    pub plan: &'a Plan,
    /// Of each run.
    pub length: Duration,
    /// Of the gaps.
    pub seed: u64,
    /// For the user.
    pub progress: &'a mut Progress,
}

/// A started program and the log it writes.
#[derive(Debug)]
pub struct Program {
    /// The process.
    pub process: Running,
    log: PathBuf,
}

/// What a run's figures are taken from.
#[derive(Debug)]
struct Seen {
    /// The online process.
    online: u32,
    /// First arrival possible to last token, or the planned end if that is later.
    span: Span,
    served: Vec<Served>,
    longest_gap: Duration,
}

impl Runs<'_> {
    /// Runs all three. Under Tidegate the cooldown is `cooldown_fixed` if given.
    ///
    /// # Errors
    /// When a program fails or the user interrupts.
    pub fn all(&mut self, cooldown_fixed: Option<Duration>) -> anyhow::Result<(Results, Program)> {
        let mut results = Results::default();
        self.progress.now("1/3 alone: starting");
        let (run, _) = self.serve("1/3 alone", Lane::Plain, None)?;
        results.alone = run;
        self.say("1/3 alone", &results.alone);

        self.progress
            .now("2/3 no control: the offline program by itself, to learn what it can do");
        let offline = self.start_offline(Lane::Plain)?;
        let from_ns = monotonic_ns();
        interrupt::pause(STANDALONE)?;
        let alone = Span {
            from_ns,
            to_ns: monotonic_ns(),
        };
        results.standalone_tokens_per_s = self.offline_rate(&offline, alone)?;
        let (run, _) = self.serve("2/3 no control", Lane::Plain, Some(&offline))?;
        results.uncontrolled = run;
        self.say("2/3 no control", &results.uncontrolled);
        stop(offline)?;

        self.progress.now("3/3 Tidegate: starting the agent");
        self.stand.start_agent(cooldown_fixed)?;
        let offline = self.start_offline(Lane::Preloaded("offline"))?;
        let (mut run, seen) =
            self.serve("3/3 Tidegate", Lane::Preloaded("online"), Some(&offline))?;
        self.gated(&mut run, &offline, &seen, results.standalone_tokens_per_s)?;
        results.tidegate = run;
        self.say("3/3 Tidegate", &results.tidegate);
        Ok((results, offline))
    }

    /// Starts the online program again, replaying for ever.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_for_ever(&mut self) -> anyhow::Result<Program> {
        let repeat = self.length.as_nanos().to_string();
        let mut online = self.start_online(Lane::Preloaded("online"), &["--repeat-ns", &repeat])?;
        self.send(&mut online)?;
        Ok(online)
    }

    /// One run of the schedule: what it gave, and what it is known from.
    fn serve(
        &mut self,
        name: &str,
        lane: Lane,
        offline: Option<&Program>,
    ) -> anyhow::Result<(Run, Seen)> {
        let mut online = self.start_online(lane, &[])?;
        let from_ns = self.send(&mut online)?;
        let shortest = from_ns + nanos(self.length);
        let longest = shortest + nanos(self.length + Duration::from_secs(30));
        let status = loop {
            let status = online.process.child.try_wait()?;
            if status.is_some() && monotonic_ns() >= shortest {
                break status;
            }
            if monotonic_ns() > longest {
                bail!(
                    "{name}: online has not served its requests twice the time after; the load is too high"
                );
            }
            self.show(name, &online, offline, from_ns)?;
            interrupt::pause(Duration::from_millis(200))?;
        };
        if !status.is_some_and(|status| status.success()) {
            bail!(
                "{name}: the online program failed; see {}",
                self.stand.dir().display()
            );
        }
        let span = Span {
            from_ns,
            to_ns: monotonic_ns(),
        };
        let log = std::fs::read_to_string(&online.log)?;
        let mut served = figures::served(&log);
        served.sort_by_key(|request| request.arrival_ns);
        let longest_gap = figures::longest_decode_gap(&log);
        let line = self.line(online.process.pid(), offline, span)?;
        let run = Run {
            ttft_ms: figures::ttft_ms(&served),
            tpot_ms: figures::tpot_ms(&served),
            each: Each {
                ttft_ms: figures::each_ttft_ms(&served),
                tpot_ms: figures::each_tpot_ms(&served),
            },
            offline_tokens_per_s: match offline {
                Some(offline) => self.offline_rate(offline, span)?,
                None => 0.0,
            },
            served: served.len(),
            line,
            gated: None,
        };
        Ok((
            run,
            Seen {
                online: online.process.pid(),
                span,
                served,
                longest_gap,
            },
        ))
    }

    /// Nothing on hardware, which keeps no history.
    fn line(&mut self, online: u32, offline: Option<&Program>, span: Span) -> anyhow::Result<Line> {
        let history = self.stand.history()?;
        if history.is_empty() {
            return Ok(Line::default());
        }
        let of = |pid: u32| ran(history, pid, span);
        Ok(Line {
            span: Some(span),
            online: of(online),
            offline: offline.map_or_else(Vec::new, |offline| of(offline.process.pid())),
        })
    }

    fn gated(
        &mut self,
        run: &mut Run,
        offline: &Program,
        seen: &Seen,
        standalone: f64,
    ) -> anyhow::Result<()> {
        let latency = preempt_latency(&self.stand.tidegate(&["status"])?);
        // Hardware keeps no history; then the agent's word and the requests have to do.
        let begun = self.stand.preempted_ns()?;
        let history = self.stand.history()?;
        let (preemptions, idle) = if history.is_empty() {
            let begun: Vec<u64> = begun
                .into_iter()
                .filter(|at| (seen.span.from_ns..seen.span.to_ns).contains(at))
                .collect();
            let idle = figures::idle_between(&seen.served, seen.span);
            (Preemptions::at(&begun, &seen.served), idle)
        } else {
            let pid = offline.process.pid();
            let preemptions = figures::preemptions(history, pid, &seen.served, seen.span);
            let idle = figures::idle(history, seen.online, seen.span);
            (preemptions, idle)
        };
        let cooldown = figures::true_cooldown(seen.longest_gap);
        let harvestable_share = figures::harvestable_share(&idle, cooldown, seen.span);
        run.gated = Some(Gated {
            preemptions,
            latency_us: latency,
            harvestable_share,
            cooldown,
            harvest_ratio: ratio(run.offline_tokens_per_s, standalone * harvestable_share),
        });
        Ok(())
    }

    fn start_online(&mut self, lane: Lane, more: &[&str]) -> anyhow::Result<Program> {
        let gap = format!(
            "{},{},{},{},{}",
            GAPS.median_ms, GAPS.sigma, GAPS.tail_share, GAPS.tail_ms.0, GAPS.tail_ms.1
        );
        let seed = self.seed.to_string();
        let program = self.stand.online.clone();
        let mut args = vec!["--gap", &gap, "--seed", &seed];
        args.extend(more);
        self.start(&program, lane, &args)
    }

    /// Starts the offline program and waits until its work is getting done.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_offline(&mut self, lane: Lane) -> anyhow::Result<Program> {
        let program = self.stand.offline.clone();
        let offline = self.start(&program, lane, &[])?;
        self.stand.wait("the offline program's first tokens", |_| {
            let log = std::fs::read_to_string(&offline.log).unwrap_or_default();
            Ok(log
                .lines()
                .any(|line| line.starts_with("tokens "))
                .then_some(()))
        })?;
        Ok(offline)
    }

    fn start(&mut self, program: &Path, lane: Lane, args: &[&str]) -> anyhow::Result<Program> {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let log = self.stand.dir().join(&name).with_extension("log");
        let _ = std::fs::remove_file(&log);
        let mut command = self.stand.command(program, lane)?;
        command
            .arg("--log")
            .arg(&log)
            .args(["--cost", &cost(&COST)])
            .args(args);
        let mut process = Running::start(&name, &mut command);
        self.stand.wait(&format!("{name} to be ready"), |stand| {
            if let Some(status) = process.child.try_wait()? {
                let said = log.with_extension("stderr");
                let said = std::fs::read_to_string(said).unwrap_or_default();
                bail!(
                    "{name} ended early ({status}), in {}: {}",
                    stand.dir().display(),
                    said.trim()
                );
            }
            let ready = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(ready.starts_with("ready ").then_some(()))
        })?;
        if let Lane::Preloaded(role) = lane {
            self.attached(process.pid(), role)?;
        }
        Ok(Program { process, log })
    }

    /// Waits until the agent knows the process and lets it play its part: what would otherwise be
    /// measured is a run without Tidegate.
    fn attached(&mut self, pid: u32, role: &str) -> anyhow::Result<()> {
        self.stand.wait(
            &format!("the agent to take process {pid} as {role}"),
            |stand| {
                let status = stand.tidegate(&["status"])?;
                let found = status["processes"].as_array().is_some_and(|processes| {
                    processes
                        .iter()
                        .any(|process| process["pid"] == pid && process["role"] == role)
                });
                Ok(found.then_some(()))
            },
        )
    }

    /// Sends the schedule; returns when it starts.
    fn send(&mut self, online: &mut Program) -> anyhow::Result<u64> {
        let start = monotonic_ns() + nanos(LEAD);
        let mut text = format!("start {start}\n");
        for request in self.plan.trace.requests() {
            let (at, input, output) = (
                request.arrival.0,
                request.input_tokens,
                request.output_tokens,
            );
            text += &format!("{at} {input} {output}\n");
        }
        let mut pipe = online
            .process
            .child
            .stdin
            .take()
            .context("stdin is piped")?;
        pipe.write_all(text.as_bytes())
            .context("the online program does not read its schedule")?;
        Ok(start)
    }

    /// Tokens per second that the offline program finished within `span`: by the device's history,
    /// or by its own count where the device keeps none.
    fn offline_rate(&mut self, offline: &Program, span: Span) -> anyhow::Result<f64> {
        let history = self.stand.history()?;
        let tokens = if history.is_empty() {
            let log = std::fs::read_to_string(&offline.log)?;
            own_count(&log, span.to_ns).saturating_sub(own_count(&log, span.from_ns))
        } else {
            figures::finished_tokens(history, offline.process.pid(), span)
        };
        Ok(tokens as f64 / span.length().as_secs_f64())
    }

    fn show(
        &mut self,
        name: &str,
        online: &Program,
        offline: Option<&Program>,
        from_ns: u64,
    ) -> anyhow::Result<()> {
        let now = monotonic_ns();
        let elapsed = now.saturating_sub(from_ns) / 1_000_000_000;
        let served = figures::served(&std::fs::read_to_string(&online.log).unwrap_or_default());
        let mut text = format!(
            "{name}: {elapsed:>2}/{} s, {}/{} requests",
            self.length.as_secs(),
            served.len(),
            self.plan.trace.len()
        );
        if !served.is_empty() {
            text += &format!(", TTFT {:.0} ms", figures::ttft_ms(&served).mean);
        }
        if let Some(offline) = offline {
            let second = Span {
                from_ns: now.saturating_sub(1_000_000_000),
                to_ns: now,
            };
            let rate = self.offline_rate(offline, second)?;
            text += &format!(", offline {} tokens/s", thousands(rate));
        }
        self.progress.now(&text);
        Ok(())
    }

    fn say(&mut self, name: &str, run: &Run) {
        let mut text = format!(
            "{name}: {} requests, TTFT {:.1} ms, TPOT {:.2} ms (means)",
            run.served, run.ttft_ms.mean, run.tpot_ms.mean
        );
        if run.offline_tokens_per_s > 0.0 {
            text += &format!(", offline {} tokens/s", thousands(run.offline_tokens_per_s));
        }
        self.progress.done(&text);
    }
}

/// `a / b`, and nothing where nothing was possible.
#[must_use]
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Ends a program that handles SIGTERM, and waits for it.
///
/// # Errors
/// When the user interrupts.
pub fn stop(mut program: Program) -> anyhow::Result<()> {
    program.process.signal(libc::SIGTERM);
    // It drains its queue first: at most four prefills.
    for _ in 0..500 {
        if program.process.child.try_wait()?.is_some() {
            return Ok(());
        }
        interrupt::pause(Duration::from_millis(10))?;
    }
    Ok(())
}

fn cost(cost: &CostModel) -> String {
    let all = cost.prefill_ms.iter().chain(&cost.decode_ms);
    all.map(f64::to_string).collect::<Vec<_>>().join(",")
}

fn own_count(log: &str, at_ns: u64) -> u64 {
    let counts = log.lines().filter_map(|line| {
        let mut words = line.strip_prefix("tokens ")?.split(' ');
        let at: u64 = words.next()?.parse().ok()?;
        Some((at, words.next()?.parse::<u64>().ok()?))
    });
    counts
        .take_while(|(at, _)| *at <= at_ns)
        .last()
        .map_or(0, |(_, tokens)| tokens)
}

/// GPU 0's preemption latency as the agent measured it, in microseconds.
fn preempt_latency(status: &Value) -> Spread {
    let latency = &status["gpus"][0]["preempt_latency"];
    let us = |key: &str| latency[key].as_f64().unwrap_or_default() / 1e3;
    Spread {
        mean: 0.0,
        p50: us("p50_ns"),
        p99: us("p99_ns"),
        max: us("max_ns"),
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
