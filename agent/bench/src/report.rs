//! What is said of a bench: a table and plain words, JSON, one HTML file. All three are made of a [`Bench`].

use crate::block::{Block, Paired, paired};
use crate::plan::Mode;
use crate::record::Figure;
use crate::slo::Slo;
use crate::stats::Estimate;
use serde_json::{Value, json};
use std::fmt::Write as _;
use tidegate_text::numbers::{thousands, three, wrapped};
use tidegate_text::page::{cards, facts, plot, section, side_by_side, whole};
use tidegate_text::served::{Lane, table, than_alone};
use tidegate_text::spread::Spread;
use tidegate_text::svg::{Curve, cumulative, escaped};

/// Everything that was measured, and what of.
#[derive(Clone, Debug, Default)]
pub struct Bench {
    /// What was measured, and how, a line each: name and value. Versions are among them.
    pub facts: Vec<(String, String)>,
    /// The blocks in the order in which they were measured.
    pub blocks: Vec<Block>,
    /// How many blocks were to be measured.
    pub planned: usize,
    /// What is promised.
    pub slo: Slo,
    /// What the reader has to know of these figures.
    pub notes: Vec<String>,
}

/// All blocks of one mode together.
#[derive(Clone, Debug, PartialEq)]
struct Whole {
    mode: Mode,
    ttft: Spread,
    tpot: Spread,
    itl: Spread,
    served: usize,
    failed: usize,
    good: Option<usize>,
    seconds: f64,
    launches_per_s: Option<f64>,
    tokens_per_s: Option<f64>,
    preemptions_per_request: Option<f64>,
}

impl Whole {
    fn of(blocks: &[Block], mode: Mode) -> Option<Self> {
        let own: Vec<&Block> = blocks
            .iter()
            .filter(|block| block.mode == Some(mode))
            .collect();
        if own.is_empty() {
            return None;
        }
        let sum = |of: fn(&Block) -> usize| own.iter().map(|block| of(block)).sum::<usize>();
        let per_s = |of: fn(&Block) -> Option<u64>| -> Option<f64> {
            let known = own
                .iter()
                .filter_map(|block| Some((of(block)?, block.offline.seconds)));
            let (all, seconds) = known.fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (seconds > 0.0).then(|| all as f64 / seconds)
        };
        let preempted: Vec<f64> = own
            .iter()
            .filter_map(|block| block.preemptions_per_request())
            .collect();
        Some(Self {
            mode,
            ttft: together(
                &own,
                |block| block.ttft,
                |one| one.ttft_ms.into_iter().collect(),
            ),
            tpot: together(
                &own,
                |block| block.tpot,
                |one| one.tpot_ms.into_iter().collect(),
            ),
            itl: together(&own, |block| block.itl, |one| one.itl_ms.clone()),
            served: sum(|block| block.served),
            failed: sum(|block| block.failed),
            good: own.iter().map(|block| block.good).sum(),
            seconds: own.iter().map(|block| block.seconds).sum(),
            launches_per_s: per_s(|block| block.offline.launches),
            tokens_per_s: per_s(|block| block.offline.tokens),
            preemptions_per_request: (!preempted.is_empty())
                .then(|| preempted.iter().sum::<f64>() / preempted.len() as f64),
        })
    }

    const fn title(&self) -> &'static str {
        match self.mode {
            Mode::Alone => "online as it is",
            Mode::Drained => "online alone (drained)",
            Mode::Ungated => "with offline, no control",
            Mode::Gated => "with offline, Tidegate",
            Mode::OneEngine => "one engine, batch at low priority",
        }
    }
}

/// The spread over several blocks: of all requests where they are known, else the means of the blocks' figures.
fn together(
    blocks: &[&Block],
    figure: fn(&Block) -> Option<Figure>,
    of: fn(&crate::record::Seen) -> Vec<f64>,
) -> Spread {
    if blocks
        .iter()
        .all(|block| !block.requests.is_empty() || block.ttft.is_none())
    {
        let all = blocks.iter().flat_map(|block| &block.requests);
        return Spread::of(all.flat_map(of).collect());
    }
    let figures: Vec<Spread> = blocks
        .iter()
        .filter_map(|block| Some(figure(block)?.spread))
        .collect();
    let mean =
        |of: fn(&Spread) -> f64| figures.iter().map(of).sum::<f64>() / figures.len().max(1) as f64;
    Spread {
        mean: mean(|one| one.mean),
        p50: mean(|one| one.p50),
        p99: mean(|one| one.p99),
        max: figures.iter().map(|one| one.max).fold(0.0, f64::max),
    }
}

impl Bench {
    fn wholes(&self) -> Vec<Whole> {
        Mode::ALL
            .iter()
            .filter_map(|mode| Whole::of(&self.blocks, *mode))
            .collect()
    }

    /// What a mode costs over online alone.
    #[must_use]
    pub fn cost(&self, mode: Mode) -> Option<Paired> {
        paired(&self.blocks, mode)
    }

    /// Whether every block is whole and served something.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.blocks.is_empty()
            && self
                .blocks
                .iter()
                .all(|block| block.partial.is_none() && block.served > 0)
    }

    /// For people; fits 80 columns where names and numbers do.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::from("\n");
        for (name, value) in &self.facts {
            let _ = writeln!(out, "{name:<10} {value}");
        }
        out.push('\n');
        let wholes = self.wholes();
        let tokens = wholes.iter().any(|whole| whole.tokens_per_s.is_some());
        let lanes: Vec<Lane<'_>> = wholes
            .iter()
            .map(|whole| Lane {
                name: whole.title(),
                ttft_ms: whole.ttft,
                tpot_ms: whole.tpot,
                offline_per_s: if tokens {
                    whole.tokens_per_s
                } else {
                    whole.launches_per_s
                },
            })
            .collect();
        out += &table(&lanes, if tokens { "tokens/s" } else { "launches/s" });
        for whole in &wholes {
            out += &line_of(whole);
        }
        for mode in [Mode::Gated, Mode::Ungated, Mode::OneEngine] {
            if let Some(paired) = self.cost(mode) {
                out += &self.cost_in_words(&paired);
            }
        }
        for (place, block) in self.blocks.iter().enumerate() {
            if let Some(why) = &block.partial {
                let _ = writeln!(out, "\nBlock {} is not whole: {why}.", place + 1);
            }
        }
        if self.blocks.len() < self.planned {
            let _ = writeln!(
                out,
                "\nOnly {} of {} blocks were measured.",
                self.blocks.len(),
                self.planned
            );
        }
        for note in &self.notes {
            out.push('\n');
            out += &wrapped(&format!("Note: {note}"), 78);
        }
        out
    }

    fn cost_in_words(&self, paired: &Paired) -> String {
        let what = match paired.mode {
            Mode::Gated => "With Tidegate",
            Mode::OneEngine => "With a batch at low priority in the same engine",
            _ => "Without control",
        };
        let mut out = format!(
            "\n{what} over online alone, the same requests in {} pair{} of blocks, 95 % confidence:\n",
            paired.pairs,
            if paired.pairs == 1 { "" } else { "s" }
        );
        for (name, estimate) in [("TTFT", paired.ttft_pct), ("TPOT", paired.tpot_pct)] {
            if let Some(estimate) = estimate {
                let _ = writeln!(
                    out,
                    "  {name}  {}: {}",
                    percents(&estimate),
                    than_alone(estimate.mean / 100.0)
                );
            }
        }
        if paired.mode == Mode::Gated {
            for (name, promise, verdict) in self.slo.verdicts(paired) {
                let _ = writeln!(out, "  promised {name} +{promise} %: {}", verdict.words());
            }
        }
        out
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let facts = self
            .facts
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)));
        let cost = |mode| self.cost(mode).map(|paired| paired_json(&paired));
        let verdicts = self.cost(Mode::Gated).map(|paired| {
            let all = self.slo.verdicts(&paired);
            let one = |(name, pct, verdict): (&str, f64, crate::slo::Verdict)| {
                json!({ "figure": name, "promised_pct": pct, "verdict": verdict.words() })
            };
            all.into_iter().map(one).collect::<Vec<_>>()
        });
        json!({
            "about": Value::Object(facts.collect()),
            "blocks": self.blocks.iter().map(block_json).collect::<Vec<_>>(),
            "modes": self.wholes().iter().map(whole_json).collect::<Vec<_>>(),
            "paired": cost(Mode::Gated),
            "paired_ungated": cost(Mode::Ungated),
            "paired_one_engine": cost(Mode::OneEngine),
            "slo": {
                "ttft_ms": self.slo.bounds.ttft_ms,
                "tpot_ms": self.slo.bounds.tpot_ms,
                "verdicts": verdicts,
            },
            "notes": self.notes,
            "whole": self.is_whole(),
        })
    }

    /// One HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let target = self.facts.first().map_or("", |(_, value)| value);
        let mut body = format!(
            "<header><p class=\"kicker\">Tidegate bench</p><h1>What does sharing the GPU cost my users?</h1>\
             <p class=\"source\">{}</p></header>\n",
            escaped(target)
        );
        if let Some(paired) = self.cost(Mode::Gated) {
            let of =
                |estimate: Option<Estimate>| estimate.map_or("-".to_owned(), |one| percents(&one));
            let figures = [
                (
                    "more time to first token, 95 % confidence",
                    of(paired.ttft_pct),
                ),
                (
                    "more time per further token, 95 % confidence",
                    of(paired.tpot_pct),
                ),
            ];
            cards(&mut body, &figures);
        }
        facts(&mut body, &self.facts);
        for note in &self.notes {
            let _ = writeln!(body, "<p class=\"note\">{}</p>", escaped(note));
        }
        let wholes = self.wholes();
        body.push_str("<p class=\"legend\">");
        for whole in &wholes {
            let _ = write!(
                body,
                "<span><i class=\"{}\"></i>{}</span>",
                class(whole.mode),
                whole.title()
            );
        }
        body.push_str("</p>\n");
        let plots = [
            self.curves(
                "Time to first token",
                "share of requests served within",
                |one| one.ttft_ms,
            ),
            self.curves(
                "Time per further token",
                "share of requests at most this slow",
                |one| one.tpot_ms,
            ),
        ];
        section(&mut body, "How long users wait", &side_by_side(&plots));
        section(
            &mut body,
            "The table",
            &format!("<pre>{}</pre>", escaped(&self.text())),
        );
        section(&mut body, "Block by block", &self.rows());
        whole("Tidegate bench", &body)
    }

    fn curves(
        &self,
        title: &str,
        what: &str,
        of: fn(&crate::record::Seen) -> Option<f64>,
    ) -> String {
        let values: Vec<(Mode, Vec<f64>)> = Mode::ALL
            .into_iter()
            .map(|mode| {
                let own = self.blocks.iter().filter(|block| block.mode == Some(mode));
                (
                    mode,
                    own.flat_map(|block| &block.requests)
                        .filter_map(of)
                        .collect(),
                )
            })
            .collect();
        let curves: Vec<Curve<'_>> = values
            .iter()
            .map(|(mode, values)| Curve {
                name: mode.name(),
                class: class(*mode).to_owned(),
                values,
            })
            .collect();
        let svg = cumulative(title, "milliseconds", &curves);
        let none = || "<p class=\"none\">Only sums are known.</p>".to_owned();
        plot(title, what, &svg.unwrap_or_else(none))
    }

    fn rows(&self) -> String {
        let mut out = String::from("<div class=\"scroll\"><table><tr><th>block</th>");
        for head in [
            "TTFT, ms",
            "95 %",
            "TPOT, ms",
            "95 %",
            "requests",
            "failed",
            "not whole",
        ] {
            let _ = write!(out, "<th>{head}</th>");
        }
        out.push_str("</tr>\n");
        for (place, block) in self.blocks.iter().enumerate() {
            let mode = block.mode.map_or("-", Mode::name);
            let _ = write!(
                out,
                "<tr><td>{} {mode} {}</td>",
                place + 1,
                escaped(&block.source)
            );
            for figure in [block.ttft, block.tpot] {
                let mean = figure.map_or("-".to_owned(), |figure| three(figure.spread.mean));
                let ci95 = figure.and_then(|figure| figure.ci95);
                let ci95 = ci95.map_or("-".to_owned(), |(low, high)| {
                    format!("{} to {}", three(low), three(high))
                });
                let _ = write!(out, "<td>{mean}</td><td>{ci95}</td>");
            }
            let partial = escaped(block.partial.as_deref().unwrap_or(""));
            let _ = writeln!(
                out,
                "<td>{}</td><td>{}</td><td>{partial}</td></tr>",
                block.served, block.failed
            );
        }
        out + "</table></div>\n"
    }
}

const fn class(mode: Mode) -> &'static str {
    match mode {
        Mode::Alone | Mode::Drained => "alone",
        Mode::Ungated => "s0",
        Mode::OneEngine => "s1",
        Mode::Gated => "own",
    }
}

fn line_of(whole: &Whole) -> String {
    let mut out = format!(
        "\n{}: {} requests",
        whole.title(),
        thousands(whole.served as f64)
    );
    if whole.failed > 0 {
        let _ = write!(out, ", {} FAILED", thousands(whole.failed as f64));
    }
    if whole.itl.p99 > 0.0 {
        let _ = write!(
            out,
            "; ITL {} ms, p99 {}",
            three(whole.itl.mean),
            three(whole.itl.p99)
        );
    }
    if let Some(good) = whole.good {
        let share = 100.0 * good as f64 / (whole.served + whole.failed).max(1) as f64;
        let _ = write!(out, "; goodput {share:.1} %");
    }
    if let Some(per) = whole.preemptions_per_request {
        let _ = write!(out, "; preempted {per:.2} times a request");
    }
    out + "\n"
}

/// "+1.2 % (-0.3 to +2.7)".
fn percents(estimate: &Estimate) -> String {
    let mut out = format!("{:+.1} %", estimate.mean);
    if let Some((low, high)) = estimate.ci95 {
        let _ = write!(out, " ({low:+.1} to {high:+.1})");
    }
    out
}

fn ends(ci95: Option<(f64, f64)>) -> Value {
    ci95.map_or(Value::Null, |(low, high)| json!([low, high]))
}

fn figure_json(figure: &Option<Figure>) -> Value {
    figure.map_or(Value::Null, |figure| {
        let Spread { mean, p50, p99, max } = figure.spread;
        json!({
            "mean": mean, "p50": p50, "p99": p99, "max": max, "ci95": ends(figure.ci95), "count": figure.count,
        })
    })
}

fn block_json(block: &Block) -> Value {
    let per_s = |count: usize| (block.seconds > 0.0).then(|| count as f64 / block.seconds);
    json!({
        "mode": block.mode.map(Mode::name),
        "source": block.source,
        "seconds": block.seconds,
        "ttft_ms": figure_json(&block.ttft),
        "tpot_ms": figure_json(&block.tpot),
        "itl_ms": figure_json(&block.itl),
        "requests": block.served,
        "failed": block.failed,
        "uncounted": block.uncounted,
        "output_tokens": block.output_tokens,
        "good": block.good,
        "goodput_per_s": block.good.and_then(per_s),
        "failures": block.failures.iter()
            .map(|failure| json!({ "what": failure.what, "count": failure.count }))
            .collect::<Vec<_>>(),
        "late_p99_ms": block.late_p99_ms,
        "partial": block.partial,
        "offline": {
            "launches": block.offline.launches, "tokens": block.offline.tokens, "seconds": block.offline.seconds,
        },
        "preemptions": block.offline.preemptions,
        "preemptions_per_request": block.preemptions_per_request(),
    })
}

fn whole_json(whole: &Whole) -> Value {
    let spread = |s: &Spread| json!({ "mean": s.mean, "p50": s.p50, "p99": s.p99, "max": s.max });
    json!({
        "mode": whole.mode.name(),
        "ttft_ms": spread(&whole.ttft),
        "tpot_ms": spread(&whole.tpot),
        "itl_ms": spread(&whole.itl),
        "requests": whole.served,
        "failed": whole.failed,
        "good": whole.good,
        "seconds": whole.seconds,
        "offline_launches_per_s": whole.launches_per_s,
        "offline_tokens_per_s": whole.tokens_per_s,
        "preemptions_per_request": whole.preemptions_per_request,
    })
}

fn paired_json(paired: &Paired) -> Value {
    let mean = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.mean);
    let interval = |estimate: Option<Estimate>| ends(estimate.and_then(|estimate| estimate.ci95));
    json!({
        "mode": paired.mode.name(),
        "reference": paired.reference.name(),
        "ttft_pct": mean(paired.ttft_pct),
        "tpot_pct": mean(paired.tpot_pct),
        "ci95": { "ttft_pct": interval(paired.ttft_pct), "tpot_pct": interval(paired.tpot_pct) },
        "pairs": paired.pairs,
    })
}
