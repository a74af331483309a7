//! What status says of the agent as a whole, before its tables.

use super::figures::or_dash;
use crate::json;
use std::fmt::Write;
use tidegate_agent::clock::stamp;
use tidegate_agent::span::time;
use tidegate_agent::standing::Standing;
use tidegate_proto::v1;

fn level(report: &v1::GetStatusResponse) -> &'static str {
    match report.level() {
        v1::ChannelLevel::L1Agent => "L1 (the agent's own client)",
        v1::ChannelLevel::L2OwnerFile => "L2 (the owner's file)",
        v1::ChannelLevel::L3Interposer => "L3 (the process itself)",
        v1::ChannelLevel::L4Timeslice => "L4 (timeslice)",
        v1::ChannelLevel::L5LaunchGate => "L5 (launches wait)",
        v1::ChannelLevel::Unspecified => "unknown",
    }
}

/// ` by ` the method that stops what runs, where there is one.
fn by_method(report: &v1::GetStatusResponse) -> String {
    let when = if report.method_at_kernel_end {
        " at kernel end"
    } else {
        ""
    };
    json::method_name(report.method()).map_or_else(String::new, |name| format!(" by {name}{when}"))
}

/// The lines before the tables.
pub fn lines(report: &v1::GetStatusResponse, text: &mut String) {
    agent(report, text);
    self_test(report, text);
    trouble(report, text);
    orders(report, text);
    notes(report, text);
}

/// Which agent, and how it controls channels.
fn agent(report: &v1::GetStatusResponse, text: &mut String) {
    let _ = writeln!(
        text,
        "tidegate-agent {} (pid {}, generation {}), up {}, driver {}, channel level {}{}, {}",
        report.version,
        report.pid,
        report.agent_generation,
        time(report.uptime_ns),
        or_dash(&report.driver_version),
        level(report),
        by_method(report),
        report.scheduling,
    );
}

/// What the self-test found.
fn self_test(report: &v1::GetStatusResponse, text: &mut String) {
    // Where a level was not looked for, nothing was tried.
    let tried = report.self_test.as_ref();
    if let Some(test) = tried.filter(|test| !test.summary.is_empty() || !test.levels.is_empty()) {
        let levels: Vec<_> = test
            .levels
            .iter()
            .map(|row| format!("{} {}", json::level_name(row.level()), row.outcome))
            .collect();
        let _ = writeln!(
            text,
            "self-test: {}; {}",
            or_dash(&test.summary),
            or_dash(&levels.join(", "))
        );
    }
}

/// What keeps jobs from being controlled, and who is refused what.
fn trouble(report: &v1::GetStatusResponse, text: &mut String) {
    for obstacle in &report.obstacles {
        let _ = writeln!(text, "no channel control: {}", obstacle.text);
    }
    for process in &report.unattached {
        let v1::Unattached {
            pid,
            name,
            has_library,
            other_namespace,
        } = process;
        let with = match (has_library, other_namespace) {
            (false, _) => Standing::Without,
            (true, false) => Standing::With,
            (true, true) => Standing::OtherNamespace,
        };
        let with = with.text();
        let _ = writeln!(
            text,
            "not attached: {name} (process {pid}) uses a GPU {with}"
        );
    }
    for refusal in &report.refusals {
        let v1::Refusal {
            who, what, times, ..
        } = refusal;
        let _ = writeln!(
            text,
            "refused: {who}: {what}, {times} times, last {} ago",
            time(refusal.ago_ns)
        );
    }
}

/// The orders of operators that hold offline back, or let it run.
fn orders(report: &v1::GetStatusResponse, text: &mut String) {
    if report.drained {
        text.push_str("drained: no offline job runs until `tidegate undrain`");
        if report.drained_since_unix_ms > 0 {
            let since = stamp(report.drained_since_unix_ms.saturating_mul(1_000_000));
            let _ = write!(text, "; since {since}, by {}", report.drained_by);
        }
        text.push('\n');
    }
    if report.ungated_ns > 0 {
        let left = time(report.ungated_ns);
        let _ = writeln!(
            text,
            "ungated: offline runs beside online for {left} at most, to be measured"
        );
    }
}

/// What is to be known of the configuration and the driver.
fn notes(report: &v1::GetStatusResponse, text: &mut String) {
    if !report.config_error.is_empty() {
        let _ = writeln!(
            text,
            "configuration refused, the old one is in force: {}",
            report.config_error
        );
    }
    if !report.config_pending.is_empty() {
        let keys = report.config_pending.join(", ");
        let _ = writeln!(text, "configuration: a restart is needed for {keys}");
    }
    for note in &report.config_overridden {
        let _ = writeln!(text, "configuration: {note}");
    }
    let notes = [&report.driver_note, &report.level_note, &report.method_note];
    let mut said: Vec<&String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
    // What another one says too is said once.
    said.dedup();
    let all = said.clone();
    said.retain(|note| {
        !all.iter()
            .any(|other| other != note && other.contains(*note))
    });
    for note in said {
        let _ = writeln!(text, "note: {note}");
    }
}
