//! What online's users got, run beside run: the table of the demo and of `tidegate bench`.

use std::fmt::Write as _;

use crate::numbers::{thousands, three};
use crate::spread::Spread;

/// A change up to this is called none: two runs of the same thing differ as much.
const NOISE: f64 = 0.02;

/// One run.
#[derive(Clone, Debug)]
pub struct Lane<'a> {
    /// What was run.
    pub name: &'a str,
    /// Time to first token, ms.
    pub ttft_ms: Spread,
    /// Time per further token, ms.
    pub tpot_ms: Spread,
    /// What offline did per second; none if it did nothing or nobody knows.
    pub offline_per_s: Option<f64>,
}

/// The table; fits 80 columns. `unit` is what offline does per second.
#[must_use]
pub fn table(lanes: &[Lane<'_>], unit: &str) -> String {
    let mut out = format!("{:<28}{:<22}{:<18}offline\n", "", "TTFT, ms", "TPOT, ms");
    let heads = ["mean", "p50", "p99"].map(str::to_owned);
    out += &columns("", [&heads, &heads], unit);
    for lane in lanes {
        let cells = |spread: &Spread| [spread.mean, spread.p50, spread.p99].map(three);
        let offline = lane.offline_per_s.map_or("-".to_owned(), thousands);
        let spreads = [&cells(&lane.ttft_ms), &cells(&lane.tpot_ms)];
        out += &columns(lane.name, spreads, &offline);
    }
    out += "\n  TTFT: arrival to first token. TPOT: time per further token.\n";
    out
}

fn columns(name: &str, spreads: [&[String; 3]; 2], offline: &str) -> String {
    let mut line = format!("{name:<24}");
    for [mean, p50, p99] in spreads {
        let _ = write!(line, " {mean:>7} {p50:>6} {p99:>6}");
    }
    line + &format!(" {offline:>9}\n")
}

/// A relative change of a time, in words.
#[must_use]
pub fn than_alone(change: f64) -> String {
    if change.abs() <= NOISE {
        format!("as long as alone ({:+.1} %)", 100.0 * change)
    } else if change >= 1.0 {
        format!("{:.1} times as long as alone", 1.0 + change)
    } else {
        let word = if change > 0.0 { "longer" } else { "less" };
        format!("{:.0} % {word} than alone", 100.0 * change.abs())
    }
}
