//! `tidegate bench`: what does sharing the GPU cost the users of my own server?
//!
//! Sends the same requests in blocks, and tells the agent between blocks what offline may do: nothing (drained), what
//! it likes (ungated, where the operator allows that), or what the gate allows. However it ends, the agent gets back the
//! state that it was found in; a bench that is killed outright in a drained block leaves `tidegate undrain` to do.
//! Without an agent it measures the server as it is.

mod ask;
mod modes;

pub use ask::{Args, Usage};

use super::agent::{Agent, runtime};
use super::print::print;
use super::replay::writable;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use modes::{Steered, between};
use std::path::Path;
use std::time::Duration;
use tidegate_agent::clock::now_ns;
use tidegate_bench::batch::{Batch, Running};
use tidegate_bench::block::Block;
use tidegate_bench::import;
use tidegate_bench::plan::{Mode, Schedule, order};
use tidegate_bench::report::Bench;
use tidegate_bench::target::{Target, TargetError, tokens_made};
use tidegate_bench::tls::Trust;
use tidegate_bench::wire::{Client, Way, drive, get, probe};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// A generator that sends later than this share of TTFT measures itself.
const LATE: f64 = 0.01;

/// Carries the command out; 1 when a block is not whole.
///
/// # Errors
/// When the target is no such server, a file cannot be used, or the agent refuses.
pub fn run(agent: &Agent, args: &Args) -> anyhow::Result<u8> {
    for file in [&args.json, &args.html].into_iter().flatten() {
        writable(file)?;
    }
    let bench = if args.import.is_empty() {
        runtime()?.block_on(measured(agent, args))?
    } else {
        imported(args)?
    };
    print(&bench.text())?;
    if let Some(file) = &args.json {
        write(file, &format!("{:#}\n", bench.json()))?;
    }
    if let Some(file) = &args.html {
        write(file, &bench.html())?;
    }
    Ok(u8::from(!bench.is_whole()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The blocks that other tools measured.
fn imported(args: &Args) -> anyhow::Result<Bench> {
    let slo = args.slo.unwrap_or_default();
    let mut bench = Bench {
        slo,
        planned: args.import.len(),
        ..Bench::default()
    };
    for named in &args.import {
        let imported = import::read(named, &slo.bounds)?;
        bench.notes.extend(imported.notes);
        bench.blocks.push(imported.block);
    }
    let sources = bench.blocks.iter().map(|block| block.source.clone());
    bench.facts.push((
        "Imported".to_owned(),
        sources.collect::<Vec<_>>().join(", "),
    ));
    Ok(bench)
}

async fn measured(agent: &Agent, args: &Args) -> anyhow::Result<Bench> {
    let (way, offline) = ways(args)?;
    let (schedule, load) = args.schedule()?;
    let server = probe(&way, args.model.as_deref()).await.map_err(wrong)?;
    let url = way.target.url("");
    let client = Client {
        way,
        model: server.model.clone(),
        call: args.call(),
        exact: !args.may_stop,
        silence: args.silence(),
        clock: now_ns,
    };
    let mut steered = match args.alone {
        true => None,
        false => Steered::find(agent).await?,
    };
    let mut bench = Bench {
        slo: args.slo.unwrap_or_default(),
        ..Bench::default()
    };
    let mut modes = choose(args, steered.as_ref(), &mut bench.notes)?;
    let batch = args.batch();
    modes.extend(batch.map(|_| Mode::OneEngine));
    let order = order(&modes, usize::try_from(args.cycles)?);
    let said = steered.as_ref().map(|steered| steered.said.as_str());
    bench.facts = vec![
        fact("Target", format!("{url}, model {}", server.model)),
        fact("Load", load),
        fact("Blocks", blocks(&order, schedule.length)),
        fact("Requests", format!("{} in a block", schedule.len())),
    ];
    bench.facts.extend(batch.map(batch_fact));
    bench.facts.push(versions(said, &server.version));
    bench.planned = order.len();
    let stop = interrupts()?;
    let mut run = Run {
        client: &client,
        schedule: &schedule,
        offline: offline.as_ref(),
        batch,
        stop,
    };
    let done = run.blocks(&order, steered.as_mut(), &mut bench).await;
    // Whatever became of it.
    let restored = match &mut steered {
        Some(steered) => steered.restore().await,
        None => Ok(()),
    };
    ended(bench, done, restored)
}

fn wrong(error: TargetError) -> Usage {
    Usage(error.to_string())
}

/// How the server, and the server of offline's metrics, are reached.
fn ways(args: &Args) -> anyhow::Result<(Way, Option<Way>)> {
    let target = Target::parse(args.target.as_deref().unwrap_or_default()).map_err(wrong)?;
    let offline = args.offline_metrics.as_deref().map(Target::parse);
    let offline = offline.transpose().map_err(wrong)?;
    let all = [Some(&target), offline.as_ref()];
    let trust = all.into_iter().flatten().any(|target| target.tls);
    let trust = trust.then(|| Trust::new(args.cacert.as_deref()));
    let trust = trust
        .transpose()
        .map_err(|error| Usage(error.to_string()))?;
    let way = |target: Target, key| Way {
        target,
        key,
        trust: trust.clone(),
    };
    let offline = offline.map(|offline| way(offline, None));
    Ok((way(target, args.key()?), offline))
}

fn fact(name: &str, value: String) -> (String, String) {
    (name.to_owned(), value)
}

fn blocks(order: &[Mode], length: Duration) -> String {
    let names: Vec<&str> = order.iter().map(|mode| mode.name()).collect();
    let (count, seconds) = (names.len(), length.as_secs());
    format!("{count} of {seconds} s: {}", names.join(" "))
}

fn batch_fact(batch: Batch) -> (String, String) {
    let Batch {
        in_flight,
        input_tokens,
        output_tokens,
    } = batch;
    fact(
        "Batch",
        format!(
            "{in_flight} in flight, {input_tokens} prompt and {output_tokens} answer tokens, at low priority"
        ),
    )
}

fn versions(agent: Option<&str>, server: &str) -> (String, String) {
    let said = agent.unwrap_or("no agent");
    let server = if server.is_empty() {
        "does not say"
    } else {
        server
    };
    let own = env!("CARGO_PKG_VERSION");
    fact(
        "Versions",
        format!("tidegate {own}; {said}; server {server}"),
    )
}

/// What there is after the blocks, and after the node was put back.
fn ended(
    mut bench: Bench,
    done: anyhow::Result<()>,
    restored: anyhow::Result<()>,
) -> anyhow::Result<Bench> {
    if let Err(error) = done {
        bench
            .notes
            .push(format!("the bench ended early: {error:#}"));
        if bench.blocks.is_empty() {
            restored?;
            return Err(error);
        }
    }
    if let Err(error) = restored {
        bench.notes.push(format!("{error:#}"));
    }
    Ok(bench)
}

/// Which modes take turns, and what the reader has to know of that.
fn choose(
    args: &Args,
    steered: Option<&Steered<'_>>,
    notes: &mut Vec<String>,
) -> Result<Vec<Mode>, Usage> {
    let Some(steered) = steered else {
        if args.chooses_modes() {
            return Err(Usage(
                "--modes: no agent listens on this node that could let offline do this".to_owned(),
            ));
        }
        if args.alone {
            notes.push("no agent was asked (--alone): this is the server as it is".to_owned());
        } else {
            notes.push(
                "no agent listens on this node: this is the server as it is, nothing is compared"
                    .to_owned(),
            );
        }
        return Ok(vec![Mode::Alone]);
    };
    if steered.jobs == 0 {
        notes.push(
            "the agent has no offline job: drained and gated are the same thing here".to_owned(),
        );
    }
    let (modes, note) = args.modes(steered.longest)?;
    notes.extend(note);
    Ok(modes)
}

/// Becomes true when the user wants it to end.
fn interrupts() -> anyhow::Result<watch::Receiver<bool>> {
    let (told, stop) = watch::channel(false);
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [mut int, mut term, mut hup] = {
        let [a, b, c] = kinds.map(signal);
        [a?, b?, c?]
    };
    tokio::spawn(async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
        told.send_replace(true);
        // The receivers go on living, so that a second signal does not kill what still has to be given back.
        std::future::pending::<()>().await;
    });
    Ok(stop)
}

struct Run<'a> {
    client: &'a Client,
    schedule: &'a Schedule,
    offline: Option<&'a Way>,
    batch: Option<Batch>,
    stop: watch::Receiver<bool>,
}

impl Run<'_> {
    /// Measures block after block into `bench`, until one ends early.
    async fn blocks(
        &mut self,
        order: &[Mode],
        mut steered: Option<&mut Steered<'_>>,
        bench: &mut Bench,
    ) -> anyhow::Result<()> {
        // Until the last answer has its end, or is given up.
        let length = self.schedule.length + self.client.silence;
        for (place, mode) in order.iter().enumerate() {
            if *self.stop.borrow() {
                return Ok(());
            }
            if let Some(steered) = &mut steered
                && let Some(note) = steered.set(*mode, length).await?
                && !bench.notes.contains(&note)
            {
                bench.notes.push(note);
            }
            let name = format!("block {} of {}, {}", place + 1, order.len(), mode.name());
            let block = self
                .block(place, *mode, &name, steered.as_deref(), &bench.slo)
                .await?;
            say(&name, &block);
            let over = block.partial.is_some();
            bench.blocks.push(block);
            if over {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn block(
        &mut self,
        place: usize,
        mode: Mode,
        name: &str,
        steered: Option<&Steered<'_>>,
        slo: &tidegate_bench::slo::Slo,
    ) -> anyhow::Result<Block> {
        let bar = ProgressBar::new(self.schedule.len() as u64);
        bar.set_style(ProgressStyle::with_template(
            "{msg} {wide_bar} {pos} of {len} requests",
        )?);
        bar.set_message(name.to_owned());
        let before = match steered {
            Some(steered) => Some(steered.count().await?),
            None => None,
        };
        let tokens = self.tokens().await;
        let from_ns = now_ns();
        let batch = self.batch.filter(|_| mode == Mode::OneEngine);
        let batch = batch.map(|batch| {
            let place = (self.schedule.seed, place);
            Running::start(self.client, batch, place)
        });
        let told = bar.clone();
        let driven = drive(
            self.client,
            self.schedule,
            place,
            self.stop.clone(),
            move |ended| {
                told.set_position(ended as u64);
            },
        )
        .await;
        let batch = batch.map(|batch| (batch.tokens(), batch.failure()));
        let seconds = now_ns().saturating_sub(from_ns) as f64 / 1e9;
        bar.finish_and_clear();
        let mut block = Block::measured(mode, self.schedule, driven.seen, &slo.bounds);
        block.partial = driven.early;
        if let (Some(steered), Some(before)) = (steered, before) {
            match steered.count().await.map_err(|error| format!("{error:#}")) {
                Ok(after) => match between(before, after, seconds) {
                    Ok(offline) => block.offline = offline,
                    Err(why) => block.partial = block.partial.or(Some(why)),
                },
                Err(why) => block.partial = block.partial.or(Some(why)),
            }
        }
        block.offline.seconds = seconds;
        block.offline.tokens = self
            .tokens()
            .await
            .zip(tokens)
            .and_then(|(after, before)| after.checked_sub(before));
        if let Some((tokens, failure)) = batch {
            block.offline.tokens = Some(tokens);
            block.partial = block.partial.or(failure);
        }
        Ok(block)
    }

    /// What the offline engine has made so far, if it says.
    async fn tokens(&self) -> Option<u64> {
        let (status, _, text) = get(self.offline?, "/metrics").await.ok()?;
        (status == 200).then(|| tokens_made(&String::from_utf8_lossy(&text)))?
    }
}

/// One line of a block, and one of each kind of failure.
fn say(name: &str, block: &Block) {
    let mean = |figure: Option<tidegate_bench::record::Figure>| {
        figure.map_or("-".to_owned(), |figure| {
            format!("{:.1} ms", figure.spread.mean)
        })
    };
    eprintln!(
        "{name}: {} requests, TTFT {}, TPOT {}",
        block.served,
        mean(block.ttft),
        mean(block.tpot)
    );
    for failure in &block.failures {
        eprintln!(
            "  {} failed: {}",
            failure.count,
            tidegate_agent::plain::lines(&failure.what)
        );
    }
    let ttft = block
        .ttft
        .map_or(f64::INFINITY, |figure| figure.spread.mean);
    if let Some(late) = block.late_p99_ms.filter(|late| *late > LATE * ttft) {
        eprintln!("  this machine sent late: {late:.1} ms at the 99th percentile");
    }
    if let Some(why) = &block.partial {
        eprintln!("  not whole: {why}");
    }
}
