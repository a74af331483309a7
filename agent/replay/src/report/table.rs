//! The table on a terminal, 80 columns wide.

use super::{Alone, Report, Row, percent};
use crate::cases::{Case, memories, times};
use std::fmt::Write as _;
use tidegate_text::numbers::{thousands, three, wrapped};

const NAME: usize = 20;

/// Setting, table and conclusion.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::from("\n");
    out += &wrapped(&report.source, 78);
    for (name, value) in &report.setting {
        let value = wrapped(value, 66).trim_end().replace('\n', "\n           ");
        let _ = writeln!(out, "  {name:<8} {value}");
    }
    out.push('\n');
    out += &head();
    out += &alone(&report.alone);
    for row in &report.rows {
        out += &line(row);
    }
    out += LEGEND;
    out += &policies(&report.rows.iter().map(|row| row.case).collect::<Vec<_>>());
    out.push('\n');
    out += &wrapped(&report.conclusion(), 78);
    out
}

const LEGEND: &str = "
  TTFT: arrival to first token; TPOT: time per further token (mean of the
  paired differences over the mean alone). Tokens again: what offline computed
  again per token that it generated. Virtual time: nothing here was measured
  on a GPU.
";

/// What the policies of these cases do.
fn policies(cases: &[Case]) -> String {
    let mut out = String::from(
        "  TIME+MEMORY: who has the GPU when, and who its memory; one name for both.\n",
    );
    for (what, named) in [("Time", times(cases)), ("Memory", memories(cases))] {
        let _ = writeln!(out, "  {what}");
        for (name, about) in named {
            let _ = writeln!(out, "    {name:<22}{about}");
        }
    }
    out
}

fn head() -> String {
    format!(
        "{:NAME$} {:>9} {:>8} {:>12} {:>9} {:>8} {:>6}\n{:<NAME$} {:>9} {:>8} {:>12} {:>9} {:>8} {:>6}\n",
        "",
        "TTFT",
        "TPOT",
        "preemptions",
        "offline",
        "share of",
        "tokens",
        "",
        "",
        "",
        "mean    max",
        "tokens/s",
        "oracle",
        "again"
    )
}

fn alone(alone: &Alone) -> String {
    let ms = |ms: f64| format!("{} ms", three(ms));
    format!(
        "{:<NAME$} {:>9} {:>8} {:>12} {:>9} {:>8} {:>6}\n",
        "online alone",
        ms(alone.ttft_ms.mean),
        ms(alone.tpot_ms.mean),
        "-",
        "-",
        "-",
        "-"
    )
}

fn ratio(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"))
}

/// In its column; a long one on a line of its own.
fn name(row: &Row) -> String {
    let name = row.case.to_string();
    if name.len() < NAME {
        name
    } else {
        format!("{name}\n{:NAME$}", "")
    }
}

fn line(row: &Row) -> String {
    let name = name(row);
    let preemptions = if row.preempts() {
        let (mean, most) = row.per_request;
        let digits = if mean < 100.0 { 2 } else { 1 };
        format!("{mean:.digits$} {most:>6}")
    } else {
        "-".to_owned()
    };
    let share = ratio(row.vs_oracle);
    let again = ratio(row.recompute_tax);
    format!(
        "{name:<NAME$} {:>9} {:>8} {preemptions:>12} {:>9} {share:>8} {again:>6}\n",
        percent(row.increase.0),
        percent(row.increase.1),
        thousands(row.tokens_per_s),
    )
}

/// Many scenarios: a block for each, then each policy over all of them. `scenarios` are names with
/// their rows, in the same order of policies.
#[must_use]
pub fn scenarios(scenarios: &[(String, Vec<Row>)]) -> String {
    let mut out = String::new();
    for (name, rows) in scenarios {
        let _ = writeln!(out, "\n{name}");
        out += &head();
        for row in rows {
            out += &line(row);
        }
        // Whoever learns sees the same gaps.
        if let Some((learnt, there_was)) = rows.iter().find_map(|row| row.cooldown_ms) {
            let _ = writeln!(
                out,
                "  cooldown learnt {learnt:.2} ms, twice the longest decode gap {there_was:.2} ms"
            );
        }
    }
    let Some((_, first)) = scenarios.first() else {
        return out;
    };
    let cases: Vec<Case> = first.iter().map(|row| row.case).collect();
    let words = format!("\n{}", policies(&cases));
    if scenarios.len() == 1 {
        return out + &words;
    }
    let _ = writeln!(
        out,
        "\nAll {} scenarios: largest increases and preemptions, mean tokens over those of\n\
         Channel+Prism and over the oracle's\n\
         {:NAME$} {:>8} {:>8} {:>10} {:>6} {:>6} {:>9}",
        scenarios.len(),
        "",
        "TTFT",
        "TPOT",
        "preempt.",
        "Prism",
        "oracle",
        "in bounds",
    );
    for (place, first) in first.iter().enumerate() {
        let each = || scenarios.iter().filter_map(|(_, rows)| rows.get(place));
        let most = |of: fn(&Row) -> f64| each().map(of).fold(f64::MIN, f64::max);
        let preemptions = each().map(|row| row.per_request.1).max().unwrap_or(0);
        let mean = |of: fn(&Row) -> Option<f64>| {
            let known: Vec<f64> = each().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let within = each().filter(|row| row.within_bounds()).count();
        let _ = writeln!(
            out,
            "{:<NAME$} {:>8} {:>8} {:>10} {:>6} {:>6} {:>9}",
            name(first),
            percent(most(|row| row.increase.0)),
            percent(most(|row| row.increase.1)),
            if first.preempts() {
                preemptions.to_string()
            } else {
                "-".to_owned()
            },
            ratio(mean(|row| row.vs_channel_prism)),
            ratio(mean(|row| row.vs_oracle)),
            format!("{within} of {}", scenarios.len()),
        );
    }
    out + &words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Compute, Memory};
    use tidegate_text::spread::Spread;

    fn row(case: Case, scale: f64) -> Row {
        let spread = |mean: f64| Spread {
            mean,
            p50: mean,
            p99: 4.0 * mean,
            max: 9.0 * mean,
        };
        Row {
            case,
            increase: (0.11 * scale, 0.02 * scale),
            ttft_ms: spread(24.6 * (1.0 + 0.001 * scale)),
            tpot_ms: spread(5.8),
            per_request: (0.44, if scale > 50.0 { 16_181 } else { 1 }),
            preempt_us: spread(85.0 * scale),
            tokens_per_s: 10_102.0 * scale,
            gpu_share: 0.18,
            vs_oracle: Some(0.93),
            vs_channel_prism: Some(0.98),
            cooldown_ms: Some((19.8 * scale, 20.0)),
            reclaims: (0.1, spread(3.0)),
            lost_per_s: 1.0,
            recompute_tax: Some(0.07 * scale.min(100.0)),
            refused: (0, 0),
            faults: 0,
        }
    }

    fn report(scale: f64) -> Report {
        let cases = [
            Case::of(Compute::NoControl, Memory::Prism),
            Case::of(Compute::TemporalShare(128), Memory::TidegateLayerBoundary),
            crate::cases::TIDEGATE,
        ];
        Report {
            source: "trace.csv, one request in 4".to_owned(),
            setting: vec![("Online", "llama-3.1-8b".to_owned())],
            alone: Alone {
                ttft_ms: Spread {
                    mean: 24.6 * scale,
                    ..Spread::default()
                },
                tpot_ms: Spread {
                    mean: 5.84,
                    ..Spread::default()
                },
                gpu_share: 0.741,
            },
            rows: cases.map(|case| row(case, scale)).to_vec(),
        }
    }

    #[test]
    fn tables_fit_80_columns() {
        for scale in [0.001, 1.0, 99.0, 9_999.0] {
            let report = report(scale);
            let blocks = [
                ("P01".to_owned(), report.rows.clone()),
                ("P02".to_owned(), report.rows.clone()),
            ];
            for line in (text(&report) + &scenarios(&blocks)).lines() {
                assert!(line.chars().count() <= 80, "{line:?}");
            }
        }
    }

    /// P-REPLAY-4: a run that was given more memory than there is keeps no promise, and says so.
    #[test]
    fn a_run_with_more_memory_than_there_is_is_worth_nothing() {
        let mut report = report(1.0);
        assert!(report.rows.iter().all(Row::within_bounds));
        let said = |report: &Report| {
            text(report)
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(!said(&report).contains("More memory was given than there is"));
        for row in &mut report.rows {
            row.faults = 3;
        }
        assert!(!report.rows.iter().any(Row::within_bounds));
        assert!(said(&report).contains("More memory was given than there is"));
    }

    /// P-OPERATE-16: whoever reads the name of a policy in a table finds there what it does.
    #[test]
    fn every_policy_of_a_table_is_explained_in_it() {
        let report = report(1.0);
        let blocks = [("P01".to_owned(), report.rows.clone())];
        for table in [text(&report), scenarios(&blocks)] {
            for row in &report.rows {
                let Case { compute, memory } = row.case;
                for about in [compute.about(), memory.about()] {
                    assert_eq!(table.matches(about).count(), 1, "{about:?} in {table}");
                }
            }
        }
    }

    /// P-REPLAY-1: however long figures are, no two of them touch.
    #[test]
    fn columns_never_touch() {
        let figures = |line: &str, from: usize| {
            let figures = line.get(from..).unwrap_or_default().replace(" %", "%");
            figures.split_whitespace().count()
        };
        for scale in [1.0, 60.0, 9_999.0, 1e7] {
            let mut report = report(scale);
            for row in &mut report.rows {
                row.per_request = (240.2 * scale, 16_181);
            }
            for row in &report.rows {
                // Preemptions are two figures, or a dash.
                let wanted = if row.preempts() { 7 } else { 6 };
                let text = line(row);
                let last = text.lines().last().unwrap_or_default();
                let from = if last.starts_with(' ') { 0 } else { NAME };
                assert_eq!(figures(last, from), wanted, "{text}");
            }
        }
    }

    #[test]
    fn the_words_say_what_the_figures_say() {
        let said = report(1.0).conclusion();
        for part in [
            "With Tidegate you would harvest 18 % of the GPU's time: 10,102 offline tokens per second",
            "Online alone uses 74 % of it",
            "+0.1 % of time to first token (24.6 ms alone, 24.6 ms with)",
            "0.0 % of time per further token",
            "preempted more than once; offline is off the GPU 340 us after",
            "would get 8 % more",
            "Without any control users would wait +0.1 %",
        ] {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(!said.contains("misses"), "{said}");
        let said = report(60.0).conclusion();
        assert!(
            said.contains("misses the promise of at most +2 % and +0.5 %"),
            "{said}"
        );
        let mut without = report(1.0);
        without.rows.truncate(1);
        assert!(
            without
                .conclusion()
                .starts_with("With NoControl+Prism you would")
        );
    }
}
