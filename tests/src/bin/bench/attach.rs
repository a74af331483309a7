//! What attaching takes, and what the library adds to its host.

use crate::row::{Row, quantile};
use tidegate_tests::view::status_value;
use tidegate_tests::watch::Testimony;
use tidegate_tests::{Node, Online, TRUSTING, built, monotonic_ns, wait_for};
use tidegate_vgpu::history::Kind;

/// From the process' first RM client, which the driver makes with the first context, to the agent's
/// attaching it.
fn first_client_to_attached(node: &Node, pid: u32) -> Option<u64> {
    let made = Testimony::of(node)
        .all(&[pid], Kind::ClientUp)
        .next()?
        .at_ns;
    let events = node.tidegate(&["events", "--output", "json"]);
    let attached = String::from_utf8_lossy(&events.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| event["kind"] == "attached")
        .find(|event| {
            let text = event["text"].as_str().unwrap_or_default();
            text.contains(&format!("pid {pid} "))
        })?["at_ns"]
        .as_u64()?;
    attached.checked_sub(made)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn measure() -> Vec<Row> {
    let node = Node::new(&[], TRUSTING);
    let attached = |pid: u32| {
        let output = node.tidegate(&["status", "--output", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let listed = status["processes"].as_array().is_some_and(|processes| {
            processes
                .iter()
                .any(|process| process["pid"].as_u64() == Some(u64::from(pid)))
        });
        listed.then_some(())
    };
    let (mut times, mut attaches) = (Vec::new(), Vec::new());
    let (mut rss, mut threads) = (f64::NAN, f64::NAN);
    for round in 0..10 {
        let begun = monotonic_ns();
        let online = Online::start(&node, 0);
        let pid = online.process.pid();
        wait_for("the agent to list the process", || attached(pid));
        times.push((monotonic_ns() - begun) as f64 / 1e6);
        if let Some(took) = first_client_to_attached(&node, pid) {
            attaches.push(took as f64 / 1e6);
        }
        if round == 9 {
            let mut bare = node.plain(tidegate_tests::compile("online", &["-lcuda"]));
            let without = Online::from_command(&mut bare);
            let bare_pid = without.process.pid();
            rss = (status_value(pid, "VmRSS") - status_value(bare_pid, "VmRSS")) / 1024.0;
            threads = status_value(pid, "Threads") - status_value(bare_pid, "Threads");
        }
    }
    times.sort_by(f64::total_cmp);
    attaches.sort_by(f64::total_cmp);
    let bytes = std::fs::metadata(built("libtidegate.so")).map_or(0, |file| file.len());
    vec![
        Row::new("attach.start_to_listed_p50_ms", quantile(&times, 50), "ms"),
        Row::new("attach.attach_p50_ms", quantile(&attaches, 50), "ms"),
        Row::new("attach.attach_max_ms", quantile(&attaches, 100), "ms"),
        Row::new("attach.added_threads", threads, ""),
        Row::new("attach.added_rss_mib", rss, "MiB").at_most(6.0),
        Row::new("attach.library_mib", bytes as f64 / 1_048_576.0, "MiB").at_most(4.0),
    ]
}
