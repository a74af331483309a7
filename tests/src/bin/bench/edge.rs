//! From an online launch to the last disable.
//!
//! One online program works on GPU 0; one offline job runs on every GPU of the node, so each busy
//! edge disables it on all of them. The start is the online program's own clock just before its
//! launch, which is a little before the doorbell; the end is the device's history.

use crate::{Row, quantile};
use std::time::Duration;
use tidegate_tests::{Node, Offline, Online, TRUSTING, wait_until};
use tidegate_vgpu::history::{self, Kind, Record};

struct Edges {
    entered_us: Vec<f64>,
    returned_us: Vec<f64>,
}

fn history(node: &Node) -> Vec<Record> {
    history::read(&node.vgpu_dir()).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
fn micros(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1000.0
}

fn run(gpus: usize, device: &[&str], edges: u32) -> Edges {
    let count = gpus.to_string();
    let mut args = vec!["--gpus", &count];
    args.extend_from_slice(device);
    let node = Node::new(&args, &format!("{TRUSTING}\n[gate]\ncooldown = \"3ms\"\n"));
    let ordinals: Vec<usize> = (0..gpus).collect();
    let mut offline = Offline::start(&node, 400_000, &ordinals);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    let mut starts = Vec::new();
    for _ in 0..edges {
        let request = online.request(0, 25_000, 0);
        starts.push(request.start_ns);
        // The next edge must find the job running again on every GPU.
        let pause = Duration::from_millis(8 + u64::from(edges % 3));
        wait_until(pause, || None::<()>);
    }
    let records = history(&node);
    let mut found = Edges {
        entered_us: Vec::new(),
        returned_us: Vec::new(),
    };
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(u64::MAX);
        let begun: Vec<&Record> = records
            .iter()
            .filter(|r| r.kind == Kind::DisableBegin && r.pid == pid)
            .filter(|r| r.value >= *start && r.value < end)
            .collect();
        let mut reached: Vec<u32> = begun.iter().map(|r| r.gpu).collect();
        reached.sort_unstable();
        reached.dedup();
        if reached.len() != gpus {
            continue;
        }
        let entered = begun.iter().map(|r| r.value).max().unwrap_or_default();
        let returned = records
            .iter()
            .filter(|r| r.kind == Kind::DisableReturn)
            .filter(|r| begun.iter().any(|b| b.value == r.value))
            .map(|r| r.at_ns)
            .max()
            .unwrap_or_default();
        found.entered_us.push(micros(*start, entered));
        found.returned_us.push(micros(*start, returned));
    }
    found.entered_us.sort_by(f64::total_cmp);
    found.returned_us.sort_by(f64::total_cmp);
    found
}

pub fn measure(edges: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    for (gpus, target) in [(1, 50.0), (8, 250.0)] {
        let found = run(gpus, &[], edges);
        let key = format!("edge.gpus_{gpus}");
        rows.push(Row::new(
            format!("{key}.p50_us"),
            quantile(&found.entered_us, 50),
            "us",
        ));
        rows.push(
            Row::new(
                format!("{key}.p99_us"),
                quantile(&found.entered_us, 99),
                "us",
            )
            .at_most(target),
        );
        rows.push(Row::new(
            format!("{key}.return_p50_us"),
            quantile(&found.returned_us, 50),
            "us",
        ));
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        rows.push(Row::new(
            format!("{key}.edges"),
            found.entered_us.len() as f64,
            "",
        ));
    }
    for patch in ["none", "A", "B"] {
        let device = ["--patch", patch, "--disable-fixed-us", "300"];
        let found = run(8, &device, edges / 4);
        let key = format!("edge.gpus_8_patch.{patch}");
        rows.push(Row::new(
            format!("{key}.p50_us"),
            quantile(&found.returned_us, 50),
            "us",
        ));
        rows.push(Row::new(
            format!("{key}.p99_us"),
            quantile(&found.returned_us, 99),
            "us",
        ));
    }
    rows
}
