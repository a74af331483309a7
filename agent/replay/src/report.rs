//! What is said of a replay: a table and plain words on a terminal, and one HTML file.
//!
//! Both are made from a [`Report`] and say the same; nothing is computed twice. Figures are means
//! over the seeds, except maxima, which are the largest of any.

pub mod html;
mod occupancy;
pub mod picture;
pub mod table;

use std::fmt::Write as _;

use crate::cases::{Case, ORACLE, TIDEGATE};
use crate::evaluation::Evaluation;
use crate::figures::Figures;
use crate::hardware::Gpu;
use crate::spec::{Compute, Spec};
use tidegate_text::spread::Spread;

use tidegate_text::numbers::{micros, thousands, three};

/// Bounds that online's users are promised: percent more time to first token, percent more time per
/// further token, preemptions of one request.
pub const BOUNDS: (f64, f64, u32) = (2.0, 0.5, 1);

/// One policy, over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The policies.
    pub case: Case,
    /// Percent more time to first token, percent more time per further token.
    pub increase: (f64, f64),
    /// Time to first token, milliseconds.
    pub ttft_ms: Spread,
    /// Time per further token, milliseconds.
    pub tpot_ms: Spread,
    /// Preemptions per request: mean and largest.
    pub per_request: (f64, u32),
    /// From the online launch to offline off the GPU, microseconds.
    pub preempt_us: Spread,
    /// Offline tokens per second.
    pub tokens_per_s: f64,
    /// Share of the time in which offline ran.
    pub gpu_share: f64,
    /// Offline tokens over the oracle's.
    pub vs_oracle: Option<f64>,
    /// Offline tokens over those of Channel+Prism.
    pub vs_channel_prism: Option<f64>,
    /// The cooldown learnt by the end, and twice the longest decode gap there was, milliseconds.
    pub cooldown_ms: Option<(f64, f64)>,
    /// Reclaims per minute, and their durations, milliseconds.
    pub reclaims: (f64, Spread),
    /// Offline tokens computed again because of reclaims and kills, per second.
    pub lost_per_s: f64,
    /// Offline tokens computed again, for whatever reason, per token generated.
    pub recompute_tax: Option<f64>,
    /// Offline requests that are larger than the engine's whole cache, which refuses them, of so many.
    pub refused: (u64, u64),
    /// Handles that were given beyond what the pool has, at the worst moment of each run: zero, or the policy is wrong.
    pub faults: u64,
}

/// Everything a replay of one pair says.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Which requests.
    pub source: String,
    /// What is run, in words, a line each: name and value.
    pub setting: Vec<(&'static str, String)>,
    /// Online alone.
    pub alone: Alone,
    /// The policies, as asked for.
    pub rows: Vec<Row>,
}

/// Online with the GPU to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alone {
    /// Time to first token, milliseconds.
    pub ttft_ms: Spread,
    /// Time per further token, milliseconds.
    pub tpot_ms: Spread,
    /// Share of the time in which it runs.
    pub gpu_share: f64,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// Means of the figures, and the largest of the largest.
fn spread<'a>(of: impl Iterator<Item = &'a Spread> + Clone) -> Spread {
    Spread {
        mean: mean(of.clone().map(|spread| spread.mean)),
        p50: mean(of.clone().map(|spread| spread.p50)),
        p99: mean(of.clone().map(|spread| spread.p99)),
        max: of.map(|spread| spread.max).fold(0.0, f64::max),
    }
}

impl Row {
    /// Of one case's figures, a seed each.
    #[must_use]
    pub fn of(case: Case, figures: &[&Figures]) -> Self {
        let each = || figures.iter().copied();
        let minutes = |f: &Figures| (f.seconds / 60.0).max(f64::MIN_POSITIVE);
        let over = |other: fn(&Figures) -> Option<f64>| {
            let ratios: Vec<f64> = each().filter_map(other).collect();
            (!ratios.is_empty()).then(|| mean(ratios.into_iter()))
        };
        let learnt: Option<Vec<f64>> = each().map(|f| f.cooldown_ms.1).collect();
        let longest = || mean(each().map(|f| f.cooldown_ms.0));
        Self {
            case,
            increase: (
                mean(each().map(|f| f.interference.ttft.mean_pct)),
                mean(each().map(|f| f.interference.tpot.mean_pct)),
            ),
            ttft_ms: spread(each().map(|f| &f.ttft_ms)),
            tpot_ms: spread(each().map(|f| &f.tpot_ms)),
            per_request: (
                mean(each().map(|f| f.per_request.0)),
                each().map(|f| f.per_request.1).max().unwrap_or(0),
            ),
            preempt_us: spread(each().map(|f| &f.preempt_us)),
            tokens_per_s: mean(each().map(|f| f.offline_tokens_per_s)),
            gpu_share: mean(each().map(|f| f.shares[1])),
            vs_oracle: over(|f| f.vs_oracle),
            vs_channel_prism: over(|f| f.vs_channel_prism),
            cooldown_ms: learnt
                .filter(|learnt| !learnt.is_empty())
                .map(|learnt| (mean(learnt.into_iter()), longest())),
            reclaims: (
                mean(each().map(|f| f.reclaims as f64 / minutes(f))),
                spread(each().map(|f| &f.reclaim_ms)),
            ),
            lost_per_s: mean(
                each().map(|f| f.lost_tokens as f64 / f.seconds.max(f64::MIN_POSITIVE)),
            ),
            recompute_tax: over(|f| f.recompute_tax),
            refused: each().fold((0, 0), |sum, f| (sum.0 + f.refused.0, sum.1 + f.refused.1)),
            faults: each().map(|f| f.faults).sum(),
        }
    }

    /// Whether online's users get what they are promised.
    #[must_use]
    pub fn within_bounds(&self) -> bool {
        let (ttft, tpot, preemptions) = BOUNDS;
        self.faults == 0
            && self.increase.0 <= ttft
            && self.increase.1 <= tpot
            && (self.per_request.1 <= preemptions || self.case.compute == Compute::NoControl)
    }

    /// Whether this policy stops offline at all, so that preemptions can be counted.
    #[must_use]
    pub fn preempts(&self) -> bool {
        !matches!(self.case.compute, Compute::NoControl | Compute::Standalone)
    }
}

/// One row for each of `cases`, of the figures in `evaluation`.
#[must_use]
pub fn rows(evaluation: &Evaluation, cases: &[Case]) -> Vec<Row> {
    let row = |case: &Case| {
        let ran = evaluation.ran.iter().map(|ran| &ran.figures);
        let own: Vec<&Figures> = ran.filter(|figures| figures.case == *case).collect();
        Row::of(*case, &own)
    };
    cases.iter().map(row).collect()
}

impl Alone {
    /// Of the runs alone.
    #[must_use]
    pub fn of(evaluation: &Evaluation) -> Self {
        let spreads = |of: fn(&crate::record::Outcome) -> Vec<f64>| {
            let each: Vec<Spread> = evaluation
                .alone
                .iter()
                .map(|one| Spread::of(of(one)))
                .collect();
            spread(each.iter())
        };
        let shares = evaluation.alone.iter().map(|one| {
            one.gpu.online.as_secs_f64() / one.length.as_secs_f64().max(f64::MIN_POSITIVE)
        });
        Self {
            ttft_ms: spreads(crate::figures::ttft_ms),
            tpot_ms: spreads(crate::figures::tpot_ms),
            gpu_share: mean(shares),
        }
    }
}

/// What `spec` runs, a line each.
#[must_use]
pub fn setting(spec: &Spec, seeds: u64) -> Vec<(&'static str, String)> {
    let ms = |cost: std::time::Duration| three(cost.as_secs_f64() * 1e3);
    let tokens = spec.offline.lengths.iter();
    let prompt = mean(tokens.map(|lengths| f64::from(lengths.input_tokens)));
    vec![
        (
            "Online",
            format!(
                "{}, {} requests in {}",
                spec.online.model.name,
                thousands(spec.online.trace.len() as f64),
                seconds(spec.online.trace.end().as_secs_f64()),
            ),
        ),
        (
            "Offline",
            format!(
                "{}, an endless batch, {} prompt tokens on average",
                spec.offline.model.name,
                thousands(prompt)
            ),
        ),
        (
            "GPU",
            format!(
                "{}, {} GiB of KV cache for both",
                gpu(&spec.gpu),
                three(spec.kv_pool_bytes as f64 / (1u64 << 30) as f64)
            ),
        ),
        (
            "Switch",
            format!(
                "{} ms to disable and save, {} ms to enable and restore",
                ms(spec.costs.disable_save),
                ms(spec.costs.enable_restore),
            ),
        ),
        (
            "Gaps",
            format!("between decodes as in preset \"{}\"", spec.online.gaps.name),
        ),
        ("Seeds", seeds.to_string()),
    ]
}

fn seconds(s: f64) -> String {
    if s < 120.0 {
        format!("{s:.0} s")
    } else if s < 7_200.0 {
        format!("{:.0} min", s / 60.0)
    } else {
        format!("{:.1} h", s / 3_600.0)
    }
}

/// Changes up to this many percent are called none.
const NOISE_PCT: f64 = 0.05;

/// An increase in percent, with its sign.
#[must_use]
pub fn percent(increase: f64) -> String {
    match increase {
        v if v.abs() < NOISE_PCT => "0.0 %".to_owned(),
        v if v.abs() >= 100.0 => format!("{v:+.0} %"),
        v => format!("{v:+.1} %"),
    }
}

impl Report {
    /// The row of the policy that the agent runs, or of the one that harvests the most within the
    /// bounds.
    #[must_use]
    pub fn chosen(&self) -> Option<&Row> {
        let own = self.rows.iter().find(|row| row.case == TIDEGATE);
        let fit = |row: &&Row| row.within_bounds() && row.case.compute != Compute::Standalone;
        let most = || {
            let fit = self.rows.iter().filter(fit);
            fit.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s))
        };
        own.or_else(most).or_else(|| self.rows.first())
    }

    /// The answer to "what would I harvest, and what would it cost?", in sentences.
    #[must_use]
    pub fn conclusion(&self) -> String {
        let Some(chosen) = self.chosen() else {
            return "Nothing was compared.".to_owned();
        };
        let mut said = format!(
            "With {} you would harvest {:.0} % of the GPU's time: {} offline tokens per second. \
             Online alone uses {:.0} % of it. ",
            chosen.case,
            100.0 * chosen.gpu_share,
            thousands(chosen.tokens_per_s),
            100.0 * self.alone.gpu_share,
        );
        let (ttft, tpot) = chosen.increase;
        let _ = write!(
            said,
            "It would cost online's users {} of time to first token ({} ms alone, {} ms with) and \
             {} of time per further token ({} and {} ms). ",
            percent(ttft),
            three(self.alone.ttft_ms.mean),
            three(chosen.ttft_ms.mean),
            percent(tpot),
            three(self.alone.tpot_ms.mean),
            three(chosen.tpot_ms.mean),
        );
        if chosen.preempts() {
            let _ = write!(
                said,
                "{}; offline is off the GPU {} after an online launch (99th percentile). ",
                match chosen.per_request.1 {
                    0 => "No request is preempted".to_owned(),
                    1 => "No request is preempted more than once".to_owned(),
                    n => format!("A request is preempted up to {n} times"),
                },
                micros(chosen.preempt_us.p99),
            );
        }
        if let Some(share) = chosen.vs_oracle.filter(|_| chosen.case != ORACLE) {
            let _ = write!(
                said,
                "A policy that knew the future and kept the same promises would get {}. ",
                if share > 1.005 {
                    format!("{:.0} % of that", 100.0 / share)
                } else if share >= 0.995 {
                    "as much".to_owned()
                } else {
                    format!("{:.0} % more", 100.0 / share - 100.0)
                },
            );
        }
        self.add_caveats(chosen, &mut said);
        said.trim_end().to_owned()
    }

    /// What the operator must know besides: refused requests, no control at all, and promises that are not kept.
    fn add_caveats(&self, chosen: &Row, said: &mut String) {
        if let (refused @ 1.., offered) = chosen.refused {
            let _ = write!(
                said,
                "The offline engine would refuse {:.1} % of the requests, which are larger than its \
                 whole cache. ",
                100.0 * refused as f64 / offered.max(1) as f64,
            );
        }
        if let Some(worst) = self
            .rows
            .iter()
            .find(|row| row.case.compute == Compute::NoControl)
        {
            let _ = write!(
                said,
                "Without any control users would wait {} for the first token and {} per further \
                 one. ",
                percent(worst.increase.0),
                percent(worst.increase.1),
            );
        }
        if chosen.faults > 0 {
            *said += "More memory was given than there is, so that none of this holds: please report it. ";
        } else if !chosen.within_bounds() {
            let (ttft, tpot, preemptions) = BOUNDS;
            let _ = write!(
                said,
                "This misses the promise of at most +{ttft} % and +{tpot} % and {preemptions} \
                 preemption a request: look at where the time goes before you deploy. ",
            );
        } else if self.alone.gpu_share > 0.9 {
            *said += "Online leaves little: this GPU is near its peak load. ";
        }
    }
}
/// What a GPU is called, and where its iteration times are from, if not from itself.
fn gpu(gpu: &Gpu) -> String {
    let scaled = gpu.scaled_from();
    scaled.map_or_else(
        || gpu.name.to_owned(),
        |from| {
            format!(
                "{} (times scaled from {}'s by data sheet)",
                gpu.name, from.name
            )
        },
    )
}
