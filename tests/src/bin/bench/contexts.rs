//! What many contexts cost an edge: a job of eight has eight times the channels, more than one call holds.
//!
//! What computes is in the first call, so offline is off the multiprocessors as soon as with one context;
//! the copies follow, one call after another.

use crate::row::{Row, quantile};
use std::collections::HashSet;
use std::time::Duration;
use tidegate_abi::class::{Engine, engine_of_type};
use tidegate_tests::watch::channels;
use tidegate_tests::{Node, Online, TRUSTING, compile, wait_for, wait_until};
use tidegate_vgpu::history::{self, Kind, Record};

/// Figures of all edges, sorted.
struct Found {
    /// Channels of the job.
    channels: usize,
    /// Least channels that compute in a first call.
    computing: usize,
    /// Calls an edge takes.
    calls: usize,
    first_us: Vec<f64>,
    last_us: Vec<f64>,
    /// From the entry of a call to its return.
    call_us: Vec<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

fn run(contexts: u32, edges: u32) -> Found {
    let node = Node::new(&[], &format!("{TRUSTING}\n[gate]\ncooldown = \"3ms\"\n"));
    let mut command = node.preloaded(compile("contexts", &["-lcuda"]), "offline");
    command.stderr(std::process::Stdio::inherit());
    let mut job = Online::from_command(&mut command);
    if contexts > 1 {
        job.say(&format!("make {}", contexts - 1));
    }
    let pid = job.process.pid();
    let mut online = Online::start(&node, 0);
    let enabled = || channels(&node, &[pid]).iter().all(|one| !one.disabled);
    let mut starts = Vec::new();
    for _ in 0..edges {
        wait_for("the job to be enabled", || enabled().then_some(()));
        starts.push(online.request(0, 25_000, 0).start_ns);
        // The gate stays closed for its cooldown; then the next edge.
        wait_until(Duration::from_millis(4), || None::<()>);
    }
    wait_for("the job to be enabled", || enabled().then_some(()));
    found(
        &history::read(&node.vgpu_dir()).unwrap_or_default(),
        pid,
        &starts,
        channels(&node, &[pid]).len(),
    )
}

fn found(records: &[Record], pid: u32, starts: &[u64], channels: usize) -> Found {
    let own = |kind| {
        records
            .iter()
            .filter(move |record| record.kind == kind && record.pid == pid)
    };
    let computing: HashSet<(u32, u32)> = own(Kind::ChannelUp)
        .filter(|record| {
            engine_of_type(u32::try_from(record.value).unwrap_or(0)) == Engine::Graphics
        })
        .map(|record| (record.client, record.object))
        .collect();
    let mut found = Found {
        channels,
        computing: usize::MAX,
        calls: 0,
        first_us: Vec::new(),
        last_us: Vec::new(),
        call_us: Vec::new(),
    };
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(u64::MAX);
        let begun: Vec<&Record> = own(Kind::DisableBegin)
            .filter(|record| record.value >= *start && record.value < end)
            .collect();
        let mut entries: Vec<u64> = begun.iter().map(|record| record.value).collect();
        entries.dedup();
        if begun.len() < channels {
            continue;
        }
        let in_first = begun.iter().filter(|record| {
            record.value == entries[0] && computing.contains(&(record.client, record.object))
        });
        found.computing = found.computing.min(in_first.count());
        found.calls = found.calls.max(entries.len());
        found.first_us.push(micros(*start, entries[0]));
        found
            .last_us
            .push(micros(*start, entries[entries.len() - 1]));
        let returns = records
            .iter()
            .filter(|record| record.kind == Kind::DisableReturn && entries.contains(&record.value));
        found
            .call_us
            .extend(returns.map(|record| micros(record.value, record.at_ns)));
    }
    for figures in [&mut found.first_us, &mut found.last_us, &mut found.call_us] {
        figures.sort_by(f64::total_cmp);
    }
    found
}

/// The rows of one context and of eight.
#[expect(clippy::cast_precision_loss, reason = "small counts")]
pub fn measure(edges: u32) -> Vec<Row> {
    let [one, eight] = [1, 8].map(|contexts| run(contexts, edges));
    let mut out = Vec::new();
    for (contexts, found) in [(1, &one), (8, &eight)] {
        let row = |name: &str, value: f64, unit: &'static str| {
            Row::new(format!("edge.contexts_{contexts}.{name}"), value, unit)
        };
        let computing = 8 * contexts;
        out.extend([
            row("channels", found.channels as f64, ""),
            row("computing_in_first_call", found.computing as f64, "")
                .at_least(f64::from(computing)),
            row("first_p50_us", quantile(&found.first_us, 50), "us"),
            row("first_p99_us", quantile(&found.first_us, 99), "us"),
            row("last_p50_us", quantile(&found.last_us, 50), "us"),
            row("calls", found.calls as f64, ""),
            row("call_p50_us", quantile(&found.call_us, 50), "us"),
            row(
                "all_but_last_call_us",
                quantile(&found.call_us, 50) * found.calls.saturating_sub(1) as f64,
                "us",
            ),
        ]);
    }
    let ratio = quantile(&eight.first_us, 99) / quantile(&one.first_us, 99);
    out.push(Row::new("edge.contexts_8.first_p99_ratio", ratio, "of one").at_most(1.5));
    out
}
