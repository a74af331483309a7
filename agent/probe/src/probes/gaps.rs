//! P36b: how long does a short kernel wait beside a process that always has work, by how long the GPU had not been asked
//! for before? And does it matter whether that process was disabled and enabled once?
//!
//! If an enable leaves a group in another place of its runlist, or with another slice, whoever was stopped once holds the
//! GPU longer than before, and every figure that was taken beside it is another one.

use super::pair::{Pair, restart};
use crate::bench::{Bench, Ending, fail, pass};
use crate::clock;
use std::time::Duration;

/// How far apart the kernels are.
const GAPS_US: [u64; 6] = [500, 1_000, 2_000, 3_000, 5_000, 10_000];
/// What the victim has to do: more than all that is measured beside it takes.
const WORK: Duration = Duration::from_secs(60);
/// An enable counts as leaving a group as it was where the waits are as long as before but for this.
const ALIKE: f64 = 1.5;
/// Less of a difference is nothing.
const NOTHING_NS: u64 = 100_000;

pub(super) fn waits(bench: &Bench) -> anyhow::Result<Ending> {
    let mut pair = Pair::new(bench, bench.method())?;
    // The first stretch pays for what is done once.
    pair.sparse(Duration::ZERO)?;
    all(&mut pair, "alone")?;
    pair.busy(WORK)?;
    let fresh = all(&mut pair, "beside a fresh process")?;
    pair.victim.set(true)?;
    clock::pause(Duration::from_millis(10));
    pair.victim.set(false)?;
    let enabled = all(&mut pair, "after one disable and enable")?;
    bench.report.guess(
        "a process that was disabled and enabled makes its neighbour's kernels wait as long as before",
        alike(&fresh, &enabled),
    );
    match restart(&mut pair.victim.worker) {
        Ok(()) => {
            let restarted = all(&mut pair, "after a restart of the runlist")?;
            bench.report.guess(
                "a restart of the runlist makes them wait as long as beside a fresh process",
                alike(&fresh, &restarted),
            );
        }
        Err(error) => bench.report.note(format!("RESTART_RUNLIST: {error:#}")),
    }
    Ok(pair.unwell()?.map_or_else(pass, fail))
}

/// Medians of the waits, by gap.
fn all(pair: &mut Pair<'_>, when: &str) -> anyhow::Result<Vec<u64>> {
    let mut medians = Vec::new();
    for us in GAPS_US {
        let got = pair.sparse(Duration::from_micros(us))?;
        pair.say(&format!("{when}, every {us} us"), &got);
        medians.push(got.p50);
    }
    Ok(medians)
}

/// Whether waits are the same but for noise.
fn alike(before: &[u64], after: &[u64]) -> bool {
    before.iter().zip(after).all(|(&before, &after)| {
        let (less, more) = (before.min(after), before.max(after));
        more - less < NOTHING_NS || more as f64 <= less as f64 * ALIKE
    })
}

#[cfg(test)]
mod tests {
    use super::alike;

    #[test]
    fn waits_are_alike_but_for_noise() {
        assert!(alike(&[1_077_000, 30_000], &[1_300_000, 120_000]));
        assert!(!alike(&[227_000], &[1_077_000]));
        assert!(!alike(&[2_439_000], &[1_077_000]));
    }
}
