//! What a self-test proved, over restarts of the agent.

use super::verdict::{Held, Outcome, Spread, Times, Tried};
use crate::config::{Level, Method};
use std::path::Path;

/// The file in the run directory.
const MEMORY: &str = "self-test";
/// A line there of how long stops took begins with this.
const TIMES: &str = "times\t";

/// What was proven under `key`: a line a level, with the methods and what became of each; then a line for each GPU
/// with how long stops took there.
pub(super) fn remembered(run_dir: &Path, key: &str) -> (Vec<Tried>, Vec<Times>) {
    let text = std::fs::read_to_string(run_dir.join(MEMORY)).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some(key) {
        return (Vec::new(), Vec::new());
    }
    let read = |line: &str| {
        let mut words = line.split('\t');
        let level = words.next()?;
        let level = [Level::L1, Level::L2, Level::L3]
            .into_iter()
            .find(|known| known.to_string() == level)?;
        let methods = words.map(|word| {
            let mut parts = word.splitn(3, '|');
            let method = Method::from_name(parts.next()?)?;
            let (name, why) = (parts.next()?, parts.next()?.to_owned());
            let known = [
                Held::Stops,
                Held::AtKernelEnd,
                Held::NotTried(why.clone()),
                Held::Failed(why),
            ];
            let held = known.into_iter().find(|held| held.name() == name)?;
            Some((method, held))
        });
        let tried = Tried::of(level, methods.collect::<Option<Vec<_>>>()?);
        matches!(tried.outcome, Outcome::Proven(_)).then_some(tried)
    };
    let levels = lines.map_while(read).collect();
    (levels, text.lines().filter_map(times_in).collect())
}

/// How long stops took on the GPU that a line names.
fn times_in(line: &str) -> Option<Times> {
    let mut words = line.strip_prefix(TIMES)?.split('\t');
    let digits = u128::from_str_radix(words.next()?, 16).ok()?;
    let method = Method::from_name(words.next()?)?;
    let stops = words.next()?.parse().ok()?;
    let mut spread = || {
        let (median, longest) = words.next()?.split_once(' ')?;
        Some(Spread {
            median_us: median.parse().ok()?,
            longest_us: longest.parse().ok()?,
        })
    };
    Some(Times {
        uuid: digits.to_be_bytes(),
        method,
        off_gpu: spread(),
        call: spread(),
        stops,
    })
}

fn line_of(times: &Times) -> String {
    let uuid = u128::from_be_bytes(times.uuid);
    let spread = |of: Option<Spread>| {
        of.map_or_else(
            || "-".to_owned(),
            |of| format!("{} {}", of.median_us, of.longest_us),
        )
    };
    let [off_gpu, call] = [times.off_gpu, times.call].map(spread);
    let (method, stops) = (times.method, times.stops);
    format!("{TIMES}{uuid:032x}\t{method}\t{stops}\t{off_gpu}\t{call}\n")
}

pub(super) fn remember(run_dir: &Path, key: &str, levels: &[Tried], times: &[Times]) {
    let proven = levels
        .iter()
        .filter(|tried| matches!(tried.outcome, Outcome::Proven(_)));
    let mut text = format!("{key}\n");
    for tried in proven {
        text.push_str(&tried.level.to_string());
        for (method, held) in &tried.methods {
            let why = match held {
                Held::Stops | Held::AtKernelEnd => "",
                Held::NotTried(why) | Held::Failed(why) => why,
            };
            let why = why.replace(['\t', '\n', '|'], " ");
            text.push_str(&format!("\t{method}|{}|{why}", held.name()));
        }
        text.push('\n');
    }
    text.extend(times.iter().map(line_of));
    let fresh = run_dir.join(format!("{MEMORY}.new"));
    let written =
        std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, run_dir.join(MEMORY)));
    if let Err(error) = written {
        tracing::warn!(%error, "the self-test's result is not remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(level: Level, methods: &[(Method, Held)]) -> Tried {
        Tried::of(level, methods.to_vec())
    }

    #[test]
    fn what_was_proven_is_remembered_for_the_same_boot_driver_and_gpus_only() {
        let dir = std::env::temp_dir().join(format!("tidegate-self-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let nothing = (Vec::new(), Vec::new());
        assert_eq!(remembered(&dir, "a driver 580"), nothing);
        let failed = Held::Failed("work goes | on".to_owned());
        let levels = [
            tried(Level::L1, &[(Method::Disable, failed.clone())]),
            tried(
                Level::L2,
                &[(Method::Disable, failed), (Method::Restart, Held::Stops)],
            ),
            tried(Level::L3, &[(Method::Disable, Held::AtKernelEnd)]),
        ];
        let spread = |median_us, longest_us| Spread {
            median_us,
            longest_us,
        };
        let of = |gpu, off_gpu| Times {
            uuid: [gpu; 16],
            method: Method::Restart,
            off_gpu,
            call: Some(spread(1020, 1400)),
            stops: 15,
        };
        let times = [of(0xf7, Some(spread(410, 570))), of(8, None)];
        remember(&dir, "a driver 580", &levels, &times);
        let (known, took) = remembered(&dir, "a driver 580");
        assert_eq!(took, times);
        let summary: Vec<_> = known
            .iter()
            .map(|tried| format!("{} {}", tried.level, tried.outcome))
            .collect();
        assert_eq!(
            summary,
            [
                "L2 proven by disable+restart",
                "L3 proven by disable, at the end of a kernel"
            ]
        );
        assert_eq!(known[0].why_not_better(), "disable: work goes   on");
        assert_eq!(remembered(&dir, "a driver 590"), nothing);
        std::fs::write(dir.join(MEMORY), b"garbage").expect("writable");
        assert_eq!(remembered(&dir, "a driver 580"), nothing);
    }
}
