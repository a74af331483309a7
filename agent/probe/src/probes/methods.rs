//! P2m: which way of stopping does this card's firmware honour?
//!
//! Firmware answers OK to calls that stop nothing, so what is judged is never the answer but the victim's
//! progress, in the middle of a kernel and of a graph, and how long a second process' kernels take beside
//! it. All calls are made by the victim's own process, which no firmware is known to refuse: who else may
//! make them is P2's and P3's question.

use crate::bench::{Bench, Ending, SOON, STEP_NS, fail, pass};
use crate::clock::{self, nanos, now_ns};
use crate::link::Worker;
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way};
use anyhow::Context;
use std::time::Duration;
use tidegate_agent::config::Method as Marked;
use tidegate_driver::rm::ThrowAway;

/// Blocks of 256 threads that fill a GPU of 132 multiprocessors once.
const FULL: u32 = 132 * 8;
const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(600);
/// A kernel has ended after so long, also beside others and on a slow machine.
const ENDS: Duration = Duration::from_secs(20);
/// Steps of a graph's kernel: a millisecond.
const NODE: u64 = 50;
/// How long a victim is watched.
const WINDOW: Duration = Duration::from_millis(100);
/// The second process' kernels: how many, how long.
const KERNELS: u32 = 30;
const LENGTH_NS: u64 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Restart,
    /// By a channel of another client, as an agent does.
    RestartElsewhere,
    Preempt,
}

impl Then {
    /// As the agent's journal names the method.
    const fn method(self) -> Marked {
        match self {
            Self::Nothing => Marked::Disable,
            Self::Restart | Self::RestartElsewhere => Marked::Restart,
            Self::Preempt => Marked::Preempt,
        }
    }
}

struct Method {
    name: &'static str,
    /// Off the runlist only.
    unlist: bool,
    then: Then,
    guess: &'static str,
}

const METHODS: &[Method] = &[
    Method {
        name: "A disable",
        unlist: false,
        then: Then::Nothing,
        guess: "a disable alone takes a running kernel off the GPU",
    },
    Method {
        name: "B disable and restart",
        unlist: false,
        then: Then::Restart,
        guess: "a disable followed by a restart of the runlist takes a running kernel off the GPU",
    },
    Method {
        name: "B2 disable, and restart by another's channel",
        unlist: false,
        then: Then::RestartElsewhere,
        guess: "the restart may be asked of another client's channel on the same runlist",
    },
    Method {
        name: "C unlist and preempt",
        unlist: true,
        then: Then::Preempt,
        guess: "taking channels off their runlist and preempting their group takes a running kernel off the GPU",
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Kernel,
    Graph,
}

struct Rig<'a> {
    bench: &'a Bench,
    victim: Subject<'a>,
    second: Worker,
    elsewhere: Option<ThrowAway>,
    /// What the victim was given last.
    queued: Option<Load>,
}

/// What one stop was like.
struct Seen {
    ns: u64,
    moved: u64,
    window_ns: u64,
    /// Of the second process' kernels: the median and the longest, which is the first after the stop.
    beside: (u64, u64),
    resumed: bool,
}

impl Rig<'_> {
    /// The victim is in the middle of that load. What is left of another one, or of an earlier kernel, is waited for: one
    /// that ends among the calls stands still whatever they do.
    fn busy(&mut self, load: Load) -> anyhow::Result<()> {
        let steps = nanos(KERNEL) / STEP_NS;
        if self.queued != Some(load) || self.left()? * STEP_NS < nanos(LEAST) {
            match load {
                Load::Kernel => self.bench.spin(&mut self.victim, KERNEL, FULL)?,
                Load::Graph => {
                    let graph = Op::Graph {
                        kernels: steps / NODE,
                        steps: NODE,
                        step_ns: STEP_NS,
                        blocks: FULL,
                    };
                    self.victim.worker.call("work", vec![graph])?;
                    self.victim.launched += steps;
                }
            }
            self.queued = Some(load);
        }
        let end = now_ns() + nanos(ENDS);
        while self.left()? > steps {
            anyhow::ensure!(
                now_ns() < end,
                "what the victim was given before does not end"
            );
            clock::pause(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The victim is seen to work on that load. Where this process stood still for so long that it had ended by then, it
    /// is given anew.
    fn moves(&mut self, load: Load) -> anyhow::Result<()> {
        let end = now_ns() + nanos(ENDS);
        loop {
            self.busy(load)?;
            let from = self.victim.worker.progress()?;
            let Err(error) = self.victim.worker.moved(from, SOON) else {
                return Ok(());
            };
            let left = self.left()?;
            if left > 0 || now_ns() >= end {
                return Err(error.context(format!("{left} steps are left")));
            }
        }
    }

    /// Steps that the victim has to make.
    fn left(&mut self) -> anyhow::Result<u64> {
        let at = self.victim.worker.progress()?;
        Ok(self.victim.launched.saturating_sub(at))
    }

    fn stop(&mut self, method: &Method) -> anyhow::Result<u64> {
        // Before the disable: putting a channel on a runlist may restart that.
        if method.then == Then::RestartElsewhere && self.elsewhere.is_none() {
            let driver = self.bench.driver()?;
            let gpu = crate::subject::gpu(driver, self.victim.instance())?;
            let branch = driver.branch().context("an unknown branch")?;
            self.elsewhere = Some(ThrowAway::scheduled(gpu, branch)?);
        }
        self.victim.mark_by(method.then.method());
        let own = self.victim.own().clone();
        let op = if method.unlist {
            Op::Unlist {
                disable: true,
                own: own.clone(),
            }
        } else {
            Op::Channels {
                disable: true,
                own: own.clone(),
            }
        };
        let done = self.victim.worker.call("control", vec![op])?;
        let mut ns = done.first().map_or(0, |done| done.ns);
        match method.then {
            Then::Nothing => {}
            Then::Restart => ns += self.victim.restart()?,
            Then::RestartElsewhere => {
                let start = now_ns();
                let elsewhere = self.elsewhere.as_ref().context("no channel elsewhere")?;
                elsewhere.restart_runlist()?;
                ns += now_ns() - start;
            }
            Then::Preempt => ns += self.victim.preempt()?,
        }
        Ok(ns)
    }

    /// Enables by what undoes every method: the restart counts where one is needed, and is refused elsewhere.
    fn go(&mut self) -> anyhow::Result<()> {
        self.victim.set(false)?;
        let _ = self.victim.restart();
        Ok(())
    }

    fn beside(&mut self) -> anyhow::Result<(u64, u64)> {
        let op = Op::Latency {
            kernels: KERNELS,
            ns: LENGTH_NS,
            gap_ns: 0,
        };
        let done = self.second.one(op)?;
        Ok((done.ns, done.value))
    }

    fn once(&mut self, method: &Method, load: Load) -> anyhow::Result<Seen> {
        self.moves(load)?;
        let ns = match self.stop(method) {
            Ok(ns) => ns,
            Err(error) => {
                self.go()?;
                return Err(error);
            }
        };
        let (from, start) = (self.victim.worker.progress()?, now_ns());
        let beside = self.beside()?;
        let spent = Duration::from_nanos(now_ns() - start);
        clock::pause(WINDOW.saturating_sub(spent));
        let to = self.victim.worker.progress()?;
        let window_ns = now_ns() - start;
        self.go()?;
        let resumed = to < self.victim.launched && self.victim.worker.moved(to, SOON).is_ok();
        Ok(Seen {
            ns,
            moved: to - from,
            window_ns,
            beside,
            resumed,
        })
    }

    /// Steps in a window, as a part of what the victim makes alone.
    fn rate(moved: u64, window_ns: u64) -> f64 {
        moved as f64 * STEP_NS as f64 / window_ns.max(1) as f64 * 100.0
    }

    /// How often `method` holds what runs, of `rounds` in the middle of a kernel and as many in the middle of a graph;
    /// or why it was refused.
    fn held(&mut self, method: &Method, rounds: u32) -> Result<u32, String> {
        let mut held = 0;
        for (load, name) in [(Load::Kernel, "mid-kernel"), (Load::Graph, "mid-graph")] {
            let mut good = 0;
            for _ in 0..rounds {
                let seen = self.once(method, load);
                let seen = seen.map_err(|error| format!("{error:#}"))?;
                good += u32::from(seen.moved == 0 && seen.resumed);
                self.report(&format!("{}, {name}", method.name), &seen);
            }
            self.bench.report.figure(
                format!("{}, {name}: held, of {rounds}", method.name),
                f64::from(good),
                "",
            );
            held += good;
        }
        Ok(held)
    }

    fn report(&self, head: &str, seen: &Seen) {
        let report = &self.bench.report;
        report.micros(format!("{head}: calls"), seen.ns);
        report.figure(
            format!("{head}: victim's throughput while stopped"),
            Self::rate(seen.moved, seen.window_ns),
            "%",
        );
        report.micros(format!("{head}: second's kernel p50"), seen.beside.0);
        report.micros(format!("{head}: second's kernel longest"), seen.beside.1);
        if !seen.resumed {
            report.note(format!("{head}: the victim did not go on, or had ended"));
        }
    }
}

pub(super) fn compare(bench: &Bench) -> anyhow::Result<Ending> {
    let victim = bench.worker("victim", Wait::Spin)?;
    let victim = bench.adopt_by(victim, Way::Inside, Marked::Disable)?;
    let mut second = bench.worker("second", Wait::Spin)?;
    second.trace.read()?;
    let mut rig = Rig {
        bench,
        victim,
        second,
        elsewhere: None,
        queued: None,
    };
    let report = &bench.report;
    rig.beside()?;
    let (p50, longest) = rig.beside()?;
    report.micros("second process alone: kernel p50", p50);
    report.micros("second process alone: kernel longest", longest);
    rig.busy(Load::Kernel)?;
    let (p50, longest) = rig.beside()?;
    report.micros("beside the running victim: kernel p50", p50);
    report.micros("beside the running victim: kernel longest", longest);
    let rounds = if bench.options.quick { 1 } else { 3 };
    let (mut holding, mut said) = (Vec::new(), Vec::new());
    for method in METHODS {
        match rig.held(method, rounds) {
            Err(why) => {
                let virtual_one = crate::machine::is_virtual() && why.contains("NOT_SUPPORTED");
                let why = if virtual_one {
                    "not modelled here".to_owned()
                } else {
                    why
                };
                said.push(format!("{}: {why}", method.name));
            }
            Ok(held) => {
                report.guess(method.guess, held == 2 * rounds);
                said.push(format!("{}: {held} of {}", method.name, 2 * rounds));
                if held == 2 * rounds {
                    holding.push(method.then.method());
                }
            }
        }
    }
    report.note(format!("methods: {}", said.join("; ")));
    let Some(method) = holding.first() else {
        return Ok(fail(format!(
            "no method stops running work: {}",
            said.join("; ")
        )));
    };
    bench.found_method(*method)?;
    Ok(pass())
}
