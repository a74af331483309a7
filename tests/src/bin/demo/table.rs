//! What the demo says in the end: a table and a few sentences for people, JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_bench::stats::batch_interval;
use tidegate_text::numbers::{micros, thousands, three, wrapped};
use tidegate_text::served::{self, Lane, than_alone};
use tidegate_text::spread::Spread;

use crate::runs::{Gated, Results, Run, ratio};

/// What the figures are of.
#[derive(Clone, Debug)]
pub struct Header {
    /// Which requests.
    pub source: String,
    /// How many.
    pub requests: usize,
    /// Of each run.
    pub length: Duration,
    /// Model that the programs stand for.
    pub model: &'static str,
    /// "virtual" or "real".
    pub device: &'static str,
    /// Of the trace and the gaps.
    pub seed: u64,
}

/// For people; fits 80 columns.
#[must_use]
pub fn text(header: &Header, results: &Results) -> String {
    let mut out = format!(
        "\nOnline: {} requests in {} s, {} ({} GPU)\n  {}\n\n",
        header.requests,
        header.length.as_secs(),
        header.model,
        header.device,
        header.source,
    );
    let lane = |name, run: &Run| Lane {
        name,
        ttft_ms: run.ttft_ms,
        tpot_ms: run.tpot_ms,
        offline_per_s: Some(run.offline_tokens_per_s).filter(|rate| *rate > 0.0),
    };
    let lanes = [
        lane("online alone", &results.alone),
        lane("with offline, no control", &results.uncontrolled),
        lane("with offline, Tidegate", &results.tidegate),
    ];
    out += &served::table(&lanes, "tokens/s");
    if let Some(gated) = &results.tidegate.gated {
        out += &gating(gated, results);
    }
    out += "\n";
    out += &wrapped(&verdict(results), 78);
    if let Some(said) = busy(header, results, &load()) {
        out += &wrapped(&said, 78);
    }
    out
}

/// What the machine has to do, as the kernel counts it over a minute.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("a load of {load} on {processors} processors")
}

/// That stops of the virtual GPU took as long as only a busy machine makes them; nothing where they did not.
fn busy(header: &Header, results: &Results, load: &str) -> Option<String> {
    let latency = &results.tidegate.gated.as_ref()?.latency_us;
    let slow = header.device == "virtual" && latency.p99 > OF_THE_MACHINE_US;
    slow.then(|| {
        format!(
            "This machine was busy: {load}. A preemption latency of {} (p99) is the machine's, and not the virtual GPU's. \
             Run again when it is idle.",
            micros(latency.p99)
        )
    })
}

fn gating(gated: &Gated, results: &Results) -> String {
    let counts: Vec<f64> = gated
        .preemptions
        .per_request
        .iter()
        .map(|n| *n as f64)
        .collect();
    let per_request = Spread::of(counts);
    format!(
        "\nWith Tidegate the offline program was preempted {} times:\n\
         \x20 per request          mean {:.2}, max {}\n\
         \x20 preemption latency   p50 {}, p99 {}, max {}\n\
         \x20 harvested            {:.0} % of {} tokens/s, what online's idle time allows\n\
         \x20                      (idle beyond a cooldown of {} ms: {:.0} % of the run)\n",
        gated.preemptions.total,
        per_request.mean,
        per_request.max,
        micros(gated.latency_us.p50),
        micros(gated.latency_us.p99),
        micros(gated.latency_us.max),
        100.0 * gated.harvest_ratio,
        thousands(results.standalone_tokens_per_s * gated.harvestable_share),
        three(gated.cooldown.as_secs_f64() * 1e3),
        100.0 * gated.harvestable_share,
    )
}

/// The bounds of a difference that is none to users, as a share of the time alone. An interval that reaches farther, and
/// that has no difference in it too, shows nothing.
const SAME: f64 = 0.05;
/// Stops of a virtual GPU that take longer than this are those of the machine it runs on, in microseconds.
const OF_THE_MACHINE_US: f64 = 5_000.0;

/// How long users wait beside offline, in words. The requests of both runs are the same, each is compared with itself;
/// where what is found of all of them may as well be chance (95 %), that is said, and no gain or loss. Where it may also be
/// much, the run cannot tell.
fn waits(change: f64, with: &[f64], alone: &[f64]) -> String {
    let pairs = with.iter().zip(alone).map(|(with, alone)| with - alone);
    let differences: Vec<f64> = pairs.collect();
    let mean = alone.iter().sum::<f64>() / alone.len().max(1) as f64;
    let paired = with.len() == alone.len();
    let between = batch_interval(&differences).and_then(|estimate| estimate.ci95);
    match between {
        Some((low, high)) if paired && low <= 0.0 && high >= 0.0 && mean > 0.0 => {
            let [low, high] = [low / mean, high / mean];
            let found = if low >= -SAME && high <= SAME {
                "as long as alone, within noise"
            } else {
                "an uncertain time compared with alone"
            };
            format!(
                "{found} ({:+.1} %, 95 % between {:+.1} and {:+.1} %)",
                100.0 * change,
                100.0 * low,
                100.0 * high
            )
        }
        _ => than_alone(change),
    }
}

/// The result in words.
#[must_use]
pub fn verdict(results: &Results) -> String {
    let alone = &results.alone;
    let first = |run: &Run| {
        let change = ratio(run.ttft_ms.mean, alone.ttft_ms.mean) - 1.0;
        waits(change, &run.each.ttft_ms, &alone.each.ttft_ms)
    };
    let further = |run: &Run| {
        let change = ratio(run.tpot_ms.mean, alone.tpot_ms.mean) - 1.0;
        waits(change, &run.each.tpot_ms, &alone.each.tpot_ms)
    };
    let mut said = format!(
        "Without control, users wait {} for the first token and {} for each further one. ",
        first(&results.uncontrolled),
        further(&results.uncontrolled),
    );
    let _ = write!(
        said,
        "With Tidegate they wait {} and {}, and the offline job still does {} tokens/s: {:.0} % \
         of what it does with the GPU to itself.",
        first(&results.tidegate),
        further(&results.tidegate),
        thousands(results.tidegate.offline_tokens_per_s),
        100.0
            * ratio(
                results.tidegate.offline_tokens_per_s,
                results.standalone_tokens_per_s
            ),
    );
    said
}

/// For programs.
#[must_use]
pub fn json(header: &Header, results: &Results) -> Value {
    let spread = |s: &Spread| json!({ "mean": s.mean, "p50": s.p50, "p99": s.p99 });
    let run = |run: &Run| {
        json!({
            "requests": run.served,
            "ttft_ms": spread(&run.ttft_ms),
            "tpot_ms": spread(&run.tpot_ms),
            "offline_tokens_per_s": run.offline_tokens_per_s,
        })
    };
    let mut tidegate = run(&results.tidegate);
    if let Some(gated) = &results.tidegate.gated {
        let counts = gated.preemptions.per_request.iter();
        let per_request = Spread::of(counts.map(|count| *count as f64).collect());
        tidegate["preemptions"] = json!(gated.preemptions.total);
        tidegate["preemptions_per_request"] =
            json!({ "mean": per_request.mean, "max": per_request.max as u64 });
        let latency = &gated.latency_us;
        tidegate["preempt_latency_us"] =
            json!({ "p50": latency.p50, "p99": latency.p99, "max": latency.max });
        tidegate["harvest_ratio"] = json!(gated.harvest_ratio);
        tidegate["harvestable_share"] = json!(gated.harvestable_share);
        tidegate["cooldown_ms"] = json!(gated.cooldown.as_secs_f64() * 1e3);
    }
    json!({
        "trace": header.source,
        "requests": header.requests,
        "seconds": header.length.as_secs_f64(),
        "seed": header.seed,
        "model": header.model,
        "device": header.device,
        "offline_standalone_tokens_per_s": results.standalone_tokens_per_s,
        "runs": {
            "alone": run(&results.alone),
            "uncontrolled": run(&results.uncontrolled),
            "tidegate": tidegate,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::runs::Each;
    use tidegate_tests::figures::Preemptions;

    fn results(scale: f64) -> Results {
        let spread = |mean: f64| Spread {
            mean,
            p50: mean * 0.8,
            p99: mean * 5.0,
            max: mean * 9.0,
        };
        let run = |ttft: f64, tpot: f64, offline: f64| Run {
            ttft_ms: spread(ttft * scale),
            tpot_ms: spread(tpot * scale),
            offline_tokens_per_s: offline * scale,
            served: 52,
            each: Each::default(),
            line: Line::default(),
            gated: None,
        };
        let mut results = Results {
            alone: run(31.0, 5.8, 0.0),
            uncontrolled: run(70.0, 11.1, 14_000.0),
            tidegate: run(31.4, 5.81, 16_000.0),
            standalone_tokens_per_s: 31_000.0,
        };
        results.tidegate.gated = Some(Gated {
            preemptions: Preemptions {
                total: 31,
                per_request: vec![1, 0, 1, 1],
            },
            latency_us: spread(420.0),
            harvestable_share: 0.6,
            cooldown: Duration::from_micros(19_600),
            harvest_ratio: 0.91,
        });
        results
    }

    fn header() -> Header {
        Header {
            source: "built-in generator \"caller\", seed 1".to_owned(),
            requests: 52,
            length: Duration::from_secs(30),
            model: "llama-3.1-8b",
            device: "virtual",
            seed: 1,
        }
    }

    #[test]
    fn the_table_fits_80_columns() {
        for scale in [0.01, 1.0, 100.0] {
            let text = text(&header(), &results(scale));
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line:?}");
            }
        }
    }

    #[test]
    fn the_words_say_what_the_figures_say() {
        let said = verdict(&results(1.0));
        assert!(
            said.contains("2.3 times as long as alone for the first token"),
            "{said}"
        );
        assert!(
            said.contains("91 % longer than alone for each further one"),
            "{said}"
        );
        assert!(
            said.contains("With Tidegate they wait as long as alone (+1.3 %) and as long"),
            "{said}"
        );
        assert!(
            said.contains("16,000 tokens/s: 52 % of what it does"),
            "{said}"
        );
        let mut worse = results(1.0);
        worse.tidegate.ttft_ms.mean = 40.0;
        assert!(verdict(&worse).contains("With Tidegate they wait 29 % longer than alone"));
    }

    /// A latency that only the machine can have is said to be the machine's.
    #[test]
    fn a_busy_machine_is_named_with_its_load() {
        let mut results = results(1.0);
        let found = |results: &Results, header: &Header| {
            busy(header, results, "a load of 6.2 on 2 processors")
        };
        assert_eq!(found(&results, &header()), None, "p99 is 2.1 ms");
        if let Some(gated) = &mut results.tidegate.gated {
            gated.latency_us.p99 = 89_900.0;
        }
        let said = found(&results, &header()).expect("89.9 ms");
        assert!(
            said.contains("a load of 6.2 on 2 processors") && said.contains("89.9 ms"),
            "{said}"
        );
        let real = Header {
            device: "real",
            ..header()
        };
        assert_eq!(found(&results, &real), None, "a real GPU may take as long");
        let whole = text(&header(), &results);
        let words: Vec<&str> = whole.split_whitespace().collect();
        assert!(
            words.join(" ").contains("Run again when it is idle."),
            "{whole}"
        );
    }

    #[test]
    fn a_difference_that_chance_makes_is_no_gain_and_one_that_it_does_not_make_is_said() {
        let mut busy = results(1.0);
        let alone = |nth: u32| 30.0 + f64::from(nth % 7);
        // Both means are 3 % lower than alone: once for all requests alike, once by a few.
        let noisy = |nth: u32| alone(nth) + [12.0, -14.0][(nth % 2) as usize];
        let (few, all) = ((0..52).map(noisy), (0..52).map(|nth| alone(nth) - 1.0));
        busy.alone.each.ttft_ms = (0..52).map(alone).collect();
        busy.tidegate.ttft_ms.mean = busy.alone.ttft_ms.mean * 0.97;
        busy.tidegate.each.ttft_ms = few.collect();
        let said = verdict(&busy);
        // -12 to +14 of 33 ms in 52 requests may be 5 % and more: that is no "as long as alone".
        assert!(
            said.contains("wait an uncertain time compared with alone (-3.0 %, 95 % between -"),
            "{said}"
        );
        let little = |nth: u32| alone(nth) + [0.6, -0.6][(nth % 2) as usize];
        busy.tidegate.each.ttft_ms = (0..52).map(little).collect();
        let said = verdict(&busy);
        assert!(
            said.contains("as long as alone, within noise (-3.0 %"),
            "{said}"
        );
        busy.tidegate.each.ttft_ms = all.collect();
        assert!(verdict(&busy).contains("With Tidegate they wait 3 % less than alone"));
        busy.tidegate.each.ttft_ms.pop();
        assert!(
            !verdict(&busy).contains("noise"),
            "other requests are no pairs"
        );
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = json(&header(), &results(1.0));
        for run in ["alone", "uncontrolled", "tidegate"] {
            for key in ["ttft_ms", "tpot_ms"] {
                for figure in ["mean", "p50", "p99"] {
                    assert!(
                        json["runs"][run][key][figure].is_f64(),
                        "{run}.{key}.{figure}"
                    );
                }
            }
            assert!(json["runs"][run]["offline_tokens_per_s"].is_f64(), "{run}");
        }
        let tidegate = &json["runs"]["tidegate"];
        assert_eq!(
            tidegate["preemptions_per_request"],
            json!({ "mean": 0.75, "max": 1 })
        );
        for figure in ["p50", "p99", "max"] {
            assert!(tidegate["preempt_latency_us"][figure].is_f64());
        }
        assert!(tidegate["harvest_ratio"].is_f64());
    }
}
