//! What a job got here, window by window, from the history.
//!
//! A job that counts useful units (`tg_progress`) and has a profile in these is judged by them: those per second over the
//! profile's rate. A job that counts nothing itself is judged by its launches: those per second over what it launches
//! alone. With a profile in `launches` that is its rate; else it is what the job did in slices that were its own
//! throughout, and failing these while it could run.

use super::facts::Facts;
use tidegate_agent::watch::history::JobSlice;
use tidegate_policy::ids::GpuSet;
use tidegate_policy::placement::{Profile, Slice};

/// One window of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Window<'a> {
    /// Its slices.
    pub slices: &'a [Slice],
    /// Share of its throughput alone; None: it was not there for all of it, an operator had paused it or drained the
    /// node, or nobody can say.
    pub got: Option<f64>,
    /// GPUs it used.
    pub gpus: GpuSet,
}

/// A slice counts as the job's when it was there for all but one part in this many.
const AWAY: u64 = 20;

fn own<'a>(jobs: &'a [JobSlice], name: &str) -> Option<&'a JobSlice> {
    jobs.iter().find(|job| job.name == name)
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(launches: u64, ns: u64) -> Option<f64> {
    (ns != 0 && launches != 0).then(|| launches as f64 / ns as f64 * 1e9)
}

/// Whether `name` is judged by the units that it counts itself.
fn counts(facts: &Facts, name: &str, profile: &Profile) -> bool {
    let mut mine = facts.jobs.iter().filter_map(|jobs| own(jobs, name));
    profile.unit() != "launches" && mine.any(|job| job.units != 0)
}

/// What `name` does per second with its GPUs to itself: units, where it counts them, or launches.
#[must_use]
pub fn alone(facts: &Facts, name: &str, profile: &Profile) -> Option<f64> {
    if profile.unit() == "launches" || counts(facts, name, profile) {
        return Some(profile.rate());
    }
    let mine = facts.jobs.iter().filter_map(|jobs| own(jobs, name));
    let (mut whole, mut any) = ((0, 0), (0, 0));
    for job in mine {
        if job.undisturbed {
            whole = (whole.0 + job.launches, whole.1 + job.running);
        }
        any = (any.0 + job.launches, any.1 + job.running);
    }
    per_second(whole.0, whole.1).or_else(|| per_second(any.0, any.1))
}

/// The windows of `name`, each of at least `length_ns`, oldest first; from the newest slice back to where it began.
#[must_use]
pub fn windows<'a>(
    facts: &'a Facts,
    name: &str,
    profile: &Profile,
    length_ns: u64,
) -> Vec<Window<'a>> {
    let alone = alone(facts, name, profile);
    let by_units = counts(facts, name, profile);
    let mut found = Vec::new();
    let mut end = facts.slices.len();
    while end > 0 {
        let (mut begin, mut length) = (end, 0u64);
        while begin > 0 && length < length_ns {
            begin -= 1;
            length = length.saturating_add(facts.slices[begin].length_ns);
        }
        let mine = facts.jobs[begin..end]
            .iter()
            .filter_map(|jobs| own(jobs, name));
        let (mut attached, mut paused) = (0u64, 0u64);
        let (mut done, mut gpus) = (0u64, GpuSet::EMPTY);
        for job in mine {
            attached = attached.saturating_add(job.attached);
            paused = paused.saturating_add(job.paused);
            done = done.saturating_add(if by_units { job.units } else { job.launches });
            gpus = gpus.union(GpuSet::from_bits(job.gpus));
        }
        // Before it began, or not all of a window is left.
        if attached == 0 || length < length_ns {
            break;
        }
        let free = attached.saturating_sub(paused);
        let whole = free.saturating_add(length / AWAY) >= length;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = done as f64 / length as f64 * 1e9;
        found.push(Window {
            slices: &facts.slices[begin..end],
            got: alone.filter(|_| whole).map(|alone| rate / alone),
            gpus,
        });
        end = begin;
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidegate_policy::placement::OpenSets;

    const S: u64 = 1_000_000_000;

    fn profile(unit: &str) -> Profile {
        let text = format!("unit = \"{unit}\"\nrate = 100\nfull = \"8GiB\"\nhalf = \"1GiB\"\n");
        crate::profiles::parse(Path::new("p.toml"), &text).expect("right")
    }

    fn facts(slices: &[(u64, u64, bool)]) -> Facts {
        let job = |&(attached, launches, undisturbed): &(u64, u64, bool)| JobSlice {
            uid: None,
            name: "slurm-7".to_owned(),
            gpus: 2,
            attached,
            running: attached / 2,
            launches,
            units: 0,
            lost: 0,
            paused: 0,
            held: 0,
            undisturbed,
        };
        let slice = |number| Slice {
            number,
            length_ns: S,
            open: OpenSets::new(),
            gpus: vec![],
        };
        Facts {
            slices: (0..slices.len() as u64).map(slice).collect(),
            jobs: slices
                .iter()
                .map(|row| {
                    vec![job(row)]
                        .into_iter()
                        .filter(|job| job.attached != 0)
                        .collect()
                })
                .collect(),
            ..Facts::default()
        }
    }

    /// P-CLUSTER-10: a job is judged by whole windows since it began, against what it launches alone.
    #[test]
    fn windows_are_whole_and_end_where_the_job_began() {
        let facts = facts(&[
            (0, 0, false),
            (0, 0, false),
            (S / 2, 20, false),
            (S, 40, false),
            (S, 30, false),
            (S, 50, false),
        ]);
        let got = |unit: &str| -> Vec<Option<f64>> {
            windows(&facts, "slurm-7", &profile(unit), 2 * S)
                .iter()
                .map(|window| window.got)
                .collect()
        };
        // The first window has half a second without it, so nobody says.
        assert_eq!(got("launches"), [None, Some(0.4)]);
        // 140 launches in 1.75 s in which it could run: 80 a second alone.
        assert_eq!(got("tokens"), [None, Some(0.5)]);
        // What an operator has paused is not judged by what it did not do.
        let mut paused = facts.clone();
        for job in paused.jobs.iter_mut().flatten() {
            job.paused = S / 2;
        }
        let judged = windows(&paused, "slurm-7", &profile("tokens"), 2 * S);
        assert_eq!((judged.len(), judged[1].got), (2, None));
        let window = &windows(&facts, "slurm-7", &profile("tokens"), 2 * S)[1];
        assert_eq!(
            (window.slices.len(), window.gpus),
            (2, GpuSet::from_bits(2))
        );
        assert!(windows(&facts, "other", &profile("tokens"), 2 * S).is_empty());
        // One that counts tokens itself: 100 a second alone, as its profile says.
        let mut counted = facts.clone();
        for job in counted.jobs.iter_mut().flatten() {
            job.units = job.launches * 2;
        }
        let got = |unit: &str| windows(&counted, "slurm-7", &profile(unit), 2 * S)[1].got;
        assert_eq!((got("tokens"), got("launches")), (Some(0.8), Some(0.4)));
    }
}
