//! Leases beside online: what keeps trainers from them.

use super::view::View;
use crate::doctor::check::Check;
use tidegate_agent::span::time;
use tidegate_proto::v1;

/// Reasons that pass, or that somebody ordered.
const PASSING: [&str; 2] = ["no_slack", "held"];

pub(super) fn check(view: &View<'_>) -> Check {
    const ID: &str = "leases";
    let Some(status) = view.node.agent.status() else {
        return Check::skip(ID, "no agent to ask");
    };
    let on: Vec<_> = status
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.index, gpu.leases.as_ref()?)))
        .collect();
    if on.is_empty() {
        return off(ID, status);
    }
    if let Some(mps) = status.obstacles.iter().find(|found| found.kind == "mps") {
        let text = format!(
            "{}: nothing would end a lease of its clients in time",
            mps.text
        );
        return Check::warn(ID, text).remedy("start trainers without MPS");
    }
    if let Some((gpu, leases)) = on.iter().find(|(_, leases)| leases.tpot_too_low) {
        let (alone, tpot) = (time(leases.alone_ns), time(leases.tpot_ns));
        let text = format!(
            "GPU {gpu}: online alone needs {alone} for a token, and lease.tpot is {tpot}: nothing is lent"
        );
        return Check::warn(ID, text).remedy(format!(
            "set lease.tpot above {alone}, or take requests off this engine"
        ));
    }
    let jobs = status.jobs.iter();
    let kept_from = jobs.filter_map(|job| Some((&job.name, job.no_lease.as_ref()?)));
    let to_do = |none: &v1::NoLease| !none.remedy.is_empty() && !PASSING.contains(&&*none.kind);
    let faults: Vec<_> = kept_from.filter(|(_, none)| to_do(none)).collect();
    if let Some((_, first)) = faults.first() {
        let texts: Vec<_> = faults
            .iter()
            .map(|(job, none)| format!("{job} gets none: {}", none.text))
            .collect();
        return Check::warn(ID, texts.join("; ")).remedy(first.remedy.clone());
    }
    let sum = |of: fn(&v1::LeaseStatus) -> u64| -> u64 {
        let all = on.iter().map(|(_, leases)| of(leases));
        all.fold(0, u64::saturating_add)
    };
    let (granted, overruns) = (sum(|own| own.granted), sum(|own| own.overruns));
    Check::pass(ID, format!("{granted} given, {overruns} of them overran"))
}

fn off(id: &'static str, status: &v1::GetStatusResponse) -> Check {
    let trains = status.jobs.iter().find(|job| job.trainer.is_some());
    match trains {
        None => Check::skip(id, "off, and no job trains"),
        Some(job) => Check::skip(id, format!("off: {} trains by the gate alone", job.name))
            .remedy("set lease.tpot and lease.ttft to what online promises its users"),
    }
}

#[cfg(test)]
mod tests {
    use crate::doctor::Outcome::{Pass, Skip, Warn};
    use crate::doctor::judge::healthy::{self, outcome};
    use tidegate_proto::v1;

    fn on(status: &mut v1::GetStatusResponse) -> &mut v1::LeaseStatus {
        if status.gpus.is_empty() {
            status.gpus.push(v1::GpuStatus::default());
        }
        status.gpus[0].leases = Some(v1::LeaseStatus {
            tpot_ns: 20_000_000,
            granted: 12,
            ..v1::LeaseStatus::default()
        });
        status.gpus[0].leases.as_mut().expect("just set")
    }

    fn without(kind: &str, text: &str, remedy: &str) -> v1::JobStatus {
        v1::JobStatus {
            name: "tune".to_owned(),
            no_lease: Some(v1::NoLease {
                kind: kind.to_owned(),
                text: text.to_owned(),
                remedy: remedy.to_owned(),
            }),
            ..v1::JobStatus::default()
        }
    }

    /// P-LEASE-12: doctor names MPS, a promise that is too low, and why a trainer gets no lease, with what to do.
    #[test]
    fn what_keeps_a_trainer_from_leases_is_named() {
        let low = outcome("leases", |node| {
            let leases = on(healthy::status(node));
            (leases.tpot_too_low, leases.alone_ns) = (true, 31_000_000);
        });
        assert_eq!(low.0, Warn);
        for said in ["31 ms for a token", "lease.tpot is 20 ms", "above 31 ms"] {
            assert!(low.1.contains(said), "{said}: {}", low.1);
        }
        let mps = outcome("leases", |node| {
            let status = healthy::status(node);
            on(status);
            status.obstacles.push(v1::Obstacle {
                kind: "mps".to_owned(),
                text: "MPS runs (process 7)".to_owned(),
                ..v1::Obstacle::default()
            });
        });
        assert_eq!(mps.0, Warn);
        assert!(mps.1.contains("MPS runs (process 7)"), "{}", mps.1);
        let pieces = "it trains whole micro-batches of about 380.0 ms, and 11.0 ms fit";
        let text = |text: &str| {
            outcome("leases", |node| {
                let status = healthy::status(node);
                on(status);
                status.jobs.push(without("any", text, "do this"));
            })
        };
        let whole = text(pieces);
        assert_eq!(whole.0, Warn);
        assert!(
            whole.1.contains(pieces) && whole.1.contains("tune gets none"),
            "{}",
            whole.1
        );
        let passes = outcome("leases", |node| {
            let status = healthy::status(node);
            on(status);
            status.jobs.push(without("no_slack", "none", "raise it"));
            status.jobs.push(without("idle", "no request decodes", ""));
        });
        assert_eq!(passes.0, Pass, "{}", passes.1);
        assert!(passes.1.contains("12 given"), "{}", passes.1);
    }

    #[test]
    fn where_leases_are_off_a_trainer_is_told_how_to_get_them() {
        assert_eq!(outcome("leases", |_| {}).0, Skip);
        assert_eq!(outcome("leases", healthy::without_agent).0, Skip);
        let (result, text) = outcome("leases", |node| {
            let job = v1::JobStatus {
                name: "tune".to_owned(),
                trainer: Some(v1::TrainerStatus::default()),
                ..v1::JobStatus::default()
            };
            healthy::status(node).jobs.push(job);
        });
        assert_eq!(result, Skip);
        assert!(text.contains("tune trains by the gate alone"), "{text}");
    }
}
