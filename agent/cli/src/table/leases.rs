//! Leases beside online: a row for each GPU, and why a trainer has none.

use super::{Grid, number, time, word};
use std::fmt::Write as _;
use tidegate_proto::v1;

/// A row for each GPU where leases are on; nothing where they are off.
pub(super) fn status(report: &v1::GetStatusResponse, width: Option<u16>, text: &mut String) {
    let mut rows = Grid::new(&[
        word("GPU"),
        number("SLACK"),
        number("ITERATION"),
        number("OFF BY").spare(1),
        number("TPOT"),
        number("ALONE").spare(2),
        number("LEASES"),
        number("OVERRUNS"),
        number("UNITS"),
        word("NOW"),
    ]);
    for gpu in &report.gpus {
        let Some(leases) = &gpu.leases else { continue };
        let known = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), time);
        let error = if leases.predictions > 0 {
            format!("{:.1} %", leases.prediction_error * 100.0)
        } else {
            "-".to_owned()
        };
        let now = match (leases.tpot_too_low, &*leases.job) {
            (true, _) => "tpot too low",
            (false, "") => "-",
            (false, job) => job,
        };
        rows.add([
            gpu.index.to_string(),
            known(leases.slack_ns),
            known(leases.predicted_ns),
            error,
            time(leases.tpot_ns),
            known((leases.alone_ns > 0).then_some(leases.alone_ns)),
            leases.granted.to_string(),
            leases.overruns.to_string(),
            leases.units.to_string(),
            now.to_owned(),
        ]);
    }
    if rows.is_empty() {
        return;
    }
    text.push('\n');
    let shown = rows.show(width, text);
    let _ = writeln!(
        text,
        "(SLACK: what a trainer could take before the iteration announced last. ITERATION: expected at its tail.{})",
        if shown.has("ALONE") {
            " ALONE: what online needs for a token while none trains."
        } else {
            ""
        }
    );
    for (job, none) in without(report) {
        let _ = writeln!(text, "{job} has no lease: {}", sentence(none));
    }
}

/// The jobs that train and have no lease, each with the reason.
fn without(report: &v1::GetStatusResponse) -> impl Iterator<Item = (&str, &v1::NoLease)> {
    let jobs = report.jobs.iter();
    jobs.filter_map(|job| Some((&*job.name, job.no_lease.as_ref()?)))
}

/// The reason, and what to do.
fn sentence(none: &v1::NoLease) -> String {
    if none.remedy.is_empty() {
        none.text.clone()
    } else {
        format!("{}; {}", none.text, none.remedy)
    }
}
