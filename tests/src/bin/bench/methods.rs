//! What each way to stop work costs: from an online launch to the instant from which nothing of the offline
//! job runs, each on the firmware personality that needs it, by the device's own history.
//!
//! Every eviction takes the same fixed time there, and a call that moves nothing a fixed round trip, so what
//! the methods differ by is their calls.

use crate::row::{Row, quantile};
use std::time::Duration;
use tidegate_tests::{Node, Offline, Online, TRUSTING, wait_until};
use tidegate_vgpu::history::{self, Kind};
use tidegate_vgpu::personality::Personality;

/// Microseconds that an eviction takes, as in the paper.
const EVICTION_US: &str = "300";

/// Key of its rows, `channel.method`, the lowest `channel.level` that has it, and firmware that needs it.
const METHODS: [(&str, &str, &str, Personality); 3] = [
    ("disable", "disable", "L1", Personality::Evicts),
    ("restart", "disable+restart", "L1", Personality::Restart),
    ("preempt", "preempt", "L2", Personality::Preempt),
];

/// From each launch until everything offline was off, in microseconds, sorted.
#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn run(method: &str, level: &str, personality: Personality, edges: u32) -> Vec<f64> {
    let args = [
        "--personality",
        personality.name(),
        "--disable-fixed-us",
        EVICTION_US,
    ];
    let config = format!(
        "{TRUSTING}\n[gate]\ncooldown = \"3ms\"\n[channel]\nlevel = \"{level}\"\nmethod = \"{method}\"\n"
    );
    let node = Node::new(&args, &config);
    let mut offline = Offline::start(&node, 400_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    let mut starts = Vec::new();
    for number in 0..edges {
        starts.push(online.request(0, 25_000, 0).start_ns);
        // The next edge must find the job running again.
        let pause = Duration::from_millis(12 + u64::from(number % 3));
        wait_until(pause, || None::<()>);
    }
    let records = history::read(&node.vgpu_dir()).unwrap_or_default();
    let offs: Vec<u64> = records
        .iter()
        .filter(|r| r.kind == Kind::DisableEnd && r.pid == pid)
        .map(|r| r.at_ns)
        .collect();
    let off_after = |number: usize| {
        let start = starts[number];
        let end = starts.get(number + 1).copied().unwrap_or(u64::MAX);
        let last = offs.iter().filter(|at| (start..end).contains(*at)).max()?;
        Some((last - start) as f64 / 1_000.0)
    };
    let mut found: Vec<f64> = (0..starts.len()).filter_map(off_after).collect();
    found.sort_by(f64::total_cmp);
    found
}

/// A row for the median and the 99th percentile of each.
#[expect(clippy::cast_precision_loss, reason = "small counts")]
pub fn measure(edges: u32) -> Vec<Row> {
    let mut out = Vec::new();
    for (key, method, level, personality) in METHODS {
        let found = run(method, level, personality, edges);
        let key = format!("edge.methods.{key}");
        for percent in [50, 99] {
            let value = quantile(&found, percent);
            out.push(Row::new(format!("{key}.p{percent}_us"), value, "us"));
        }
        out.push(Row::new(format!("{key}.edges"), found.len() as f64, ""));
    }
    out
}
