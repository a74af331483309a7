//! What is known of leases beside online, and why a trainer has none.

use crate::table::{Grid, long, number, time, word};
use serde_json::{Value, json};
use std::fmt::Write;
use tidegate_proto::v1;

/// Iterations by shape that are shown.
const SHAPES: usize = 8;

/// A part of a whole.
fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn or_dash(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), time)
}

/// Everything, for people.
pub fn text(gpus: &[v1::GpuLeases], width: Option<u16>) -> String {
    let mut text = String::new();
    for gpu in gpus {
        if !text.is_empty() {
            text.push('\n');
        }
        head(gpu, &mut text);
        for trainer in &gpu.trainers {
            why(trainer, &mut text);
        }
        trainers(gpu, width, &mut text);
        iterations(gpu, width, &mut text);
        decisions(gpu, width, &mut text);
    }
    if text.is_empty() {
        text.push_str("no job trains\n");
    }
    text
}

fn head(gpu: &v1::GpuLeases, text: &mut String) {
    let Some(status) = &gpu.status else {
        let _ = writeln!(text, "GPU {}: leases are off", gpu.gpu);
        return;
    };
    let _ = writeln!(
        text,
        "GPU {}: online promises its first token within {} and each further one within {}; {} of that is left unused",
        gpu.gpu,
        time(status.ttft_ns),
        time(status.tpot_ns),
        percent(gpu.margin),
    );
    let _ = writeln!(
        text,
        "  a lease that overruns ends {} after its time",
        time(gpu.grace_ns)
    );
    for online in &gpu.online {
        let batch = if online.says_batch || online.iterations == 0 {
            ""
        } else {
            ", without how many requests decode: each iteration has to keep the pace"
        };
        let _ = writeln!(
            text,
            "  online: {} (process {}) has reported {} iterations{batch}",
            online.name, online.pid, online.iterations
        );
    }
    if let Some(ago) = status.reported_ago_ns {
        let _ = writeln!(text, "  its last iteration was over {} ago", time(ago));
    }
    if status.alone_ns > 0 {
        let low = if status.tpot_too_low {
            ": more than it promises, so nothing is lent"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "  alone it needs {} for a token{low}",
            time(status.alone_ns)
        );
    }
    if let Some(slack) = status.slack_ns {
        let _ = writeln!(
            text,
            "  slack before the iteration announced last: {}; expected at its tail: {}; part of the slack in use: {}",
            time(slack),
            or_dash(status.predicted_ns),
            percent(status.slack_used)
        );
    }
    if status.predictions > 0 {
        let _ = writeln!(
            text,
            "  predictions of an iteration are off by {} of late, of {} compared",
            percent(status.prediction_error),
            status.predictions
        );
    }
    let _ = writeln!(
        text,
        "  leases: {} given, {} overran; {} units ran within them",
        status.granted, status.overruns, status.units
    );
    let mut refused: Vec<_> = gpu.refused.iter().collect();
    refused.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), (*kind).clone()));
    if !refused.is_empty() {
        let counts = refused.iter();
        let counts = counts.map(|(kind, count)| format!("{} {count}", kind.replace('_', " ")));
        let counts: Vec<_> = counts.collect();
        let _ = writeln!(
            text,
            "  iterations before which none was given, by reason: {}",
            counts.join(", ")
        );
    }
}

fn why(trainer: &v1::LeaseTrainer, text: &mut String) {
    match &trainer.no_lease {
        None => {
            let _ = writeln!(text, "  {} has a lease, or has just had one", trainer.job);
        }
        Some(none) => {
            let _ = writeln!(text, "  {} has no lease: {}", trainer.job, none.text);
            if !none.remedy.is_empty() {
                let _ = writeln!(text, "    {}", none.remedy);
            }
        }
    }
}

fn trainers(gpu: &v1::GpuLeases, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        long("TRAINER", 14),
        word("OFFERS"),
        number("UNIT TAKES"),
        number("IT SAYS").spare(2),
        number("LEASES"),
        number("UNITS"),
        number("HAD THE GPU").spare(1),
        number("DEMOTED FOR"),
    ]);
    for trainer in gpu
        .trainers
        .iter()
        .filter(|own| own.leases > 0 || own.most > 0)
    {
        let offers = if trainer.most == 0 {
            "nothing".to_owned()
        } else {
            format!("{} {}", trainer.most, trainer.kind)
        };
        let some = |ns: u64| or_dash((ns > 0).then_some(ns));
        rows.add([
            trainer.job.clone(),
            offers,
            some(trainer.unit_ns),
            some(trainer.claimed_ns),
            trainer.leases.to_string(),
            trainer.units.to_string(),
            time(trainer.used_ns),
            some(trainer.demoted_ns),
        ]);
    }
    let demoted = gpu.trainers.iter().any(|own| own.demoted_ns > 0);
    rows.retain(|head, _| head != "DEMOTED FOR" || demoted);
    show(&rows, width, text);
}

fn show(rows: &Grid, width: Option<u16>, text: &mut String) {
    if !rows.is_empty() {
        text.push('\n');
        rows.show(width, text);
    }
}

fn iterations(gpu: &v1::GpuLeases, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        word("ITERATION"),
        number("TAKES"),
        number("AT 95 %"),
        number("SEEN"),
    ]);
    for shape in gpu.iterations.iter().take(SHAPES) {
        rows.add([
            format!("{:016x}", shape.fingerprint),
            time(shape.mean_ns),
            time(shape.tail_ns),
            shape.seen.to_string(),
        ]);
    }
    show(&rows, width, text);
    let more = gpu.iterations.len().saturating_sub(SHAPES);
    if more > 0 {
        let _ = writeln!(text, "(and {more} more shapes, which were seen less often)");
    }
}

fn decisions(gpu: &v1::GpuLeases, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        number("LEASE"),
        long("TRAINER", 14).spare(2),
        number("AGO"),
        number("EXPECTED"),
        number("TOOK"),
        number("SLACK"),
        number("UNIT").spare(1),
        number("GRANTED"),
        number("USED"),
        number("UNITS"),
        word("END"),
    ]);
    for decision in &gpu.decisions {
        let end = match (decision.ran, decision.overran) {
            (_, true) => "overran",
            (Some(_), false) => "returned",
            (None, false) => "stands",
        };
        let ran = decision
            .ran
            .map_or_else(|| "-".to_owned(), |ran| ran.to_string());
        rows.add([
            decision.lease.to_string(),
            decision.job.clone(),
            time(decision.ago_ns),
            time(decision.predicted_ns),
            or_dash(decision.took_ns),
            time(decision.slack_ns),
            time(decision.unit_ns),
            time(decision.granted_ns),
            or_dash(decision.used_ns),
            ran,
            end.to_owned(),
        ]);
    }
    show(&rows, width, text);
    if !gpu.decisions.is_empty() {
        text.push_str("(EXPECTED and TOOK: the iteration after the lease.)\n");
    }
}

/// Everything, for programs.
pub fn json(gpus: &[v1::GpuLeases]) -> Value {
    json!({ "gpus": gpus.iter().map(gpu_json).collect::<Vec<_>>() })
}

fn gpu_json(gpu: &v1::GpuLeases) -> Value {
    json!({
        "gpu": gpu.gpu,
        "leases": gpu.status.as_ref().map(crate::json::leases),
        "margin": gpu.margin,
        "grace_ns": gpu.grace_ns,
        "online": gpu.online.iter().map(|online| json!({
            "pid": online.pid,
            "name": online.name,
            "iterations": online.iterations,
            "says_batch": online.says_batch,
        })).collect::<Vec<_>>(),
        "iterations": gpu.iterations.iter().map(|shape| json!({
            "fingerprint": format!("{:016x}", shape.fingerprint),
            "mean_ns": shape.mean_ns,
            "tail_ns": shape.tail_ns,
            "seen": shape.seen,
        })).collect::<Vec<_>>(),
        "trainers": gpu.trainers.iter().map(|trainer| json!({
            "job": trainer.job,
            "kind": Some(&trainer.kind).filter(|kind| !kind.is_empty()),
            "most": trainer.most,
            "claimed_ns": trainer.claimed_ns,
            "unit_ns": trainer.unit_ns,
            "leases": trainer.leases,
            "units": trainer.units,
            "used_ns": trainer.used_ns,
            "demoted_ns": trainer.demoted_ns,
            "no_lease": trainer.no_lease.as_ref().map(crate::json::no_lease),
        })).collect::<Vec<_>>(),
        "decisions": gpu.decisions.iter().map(|decision| json!({
            "job": decision.job,
            "lease": decision.lease,
            "ago_ns": decision.ago_ns,
            "fingerprint": format!("{:016x}", decision.fingerprint),
            "batch": decision.batch,
            "predicted_ns": decision.predicted_ns,
            "took_ns": decision.took_ns,
            "slack_ns": decision.slack_ns,
            "unit_ns": decision.unit_ns,
            "units": decision.units,
            "granted_ns": decision.granted_ns,
            "ran": decision.ran,
            "used_ns": decision.used_ns,
            "overran": decision.overran,
        })).collect::<Vec<_>>(),
        "refused": gpu.refused,
    })
}

#[cfg(test)]
mod tests;
