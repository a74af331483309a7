//! How many of many scenarios kept online's promise, and what they harvested of what the oracle did.
//!
//! Judged from what users saw ([`crate::pair`]), never from what the agent says of itself.

use std::fmt::Write as _;

use crate::figures::Figures;

/// What a run has to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Most that the mean time to first token may rise, percent.
    pub ttft_pct: f64,
    /// Most that the mean time per further token may rise, percent.
    pub tpot_pct: f64,
    /// Most preemptions of one request.
    pub preemptions: u32,
}

impl Default for Bounds {
    /// Those of the evaluation: Valve, section 7.
    fn default() -> Self {
        Self {
            ttft_pct: 2.0,
            tpot_pct: 0.5,
            preemptions: 1,
        }
    }
}

impl Bounds {
    /// Whether this run kept them. One with more memory than there is kept nothing.
    #[must_use]
    pub fn keeps(&self, figures: &Figures) -> bool {
        figures.faults == 0
            && figures.interference.ttft.mean_pct <= self.ttft_pct
            && figures.interference.tpot.mean_pct <= self.tpot_pct
            && figures.per_request.1 <= self.preemptions
    }
}

/// What many runs were like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Runs.
    pub runs: usize,
    /// Of them, those that kept the bounds.
    pub kept: usize,
    /// Largest increase of the mean time to first token, percent.
    pub ttft_pct: f64,
    /// Largest increase of the mean time per further token, percent.
    pub tpot_pct: f64,
    /// Most preemptions of one request.
    pub preemptions: u32,
    /// Offline tokens over the oracle's: mean.
    pub mean: f64,
    /// Nine of ten runs have at least this.
    pub tenth: f64,
    /// The least of those that kept the bounds.
    pub least_keeping: f64,
    /// Runs in which the offline engine refused a request that is larger than its whole cache.
    pub refusing: usize,
    /// Runs in which more memory was given than there is: what they say is wrong.
    pub overdrawn: usize,
}

impl Verdict {
    /// Of `figures`; `None` of none. A run whose oracle harvests nothing counts as 1.
    #[must_use]
    pub fn of(bounds: &Bounds, figures: &[&Figures]) -> Option<Self> {
        let share = |figures: &Figures| figures.vs_oracle.unwrap_or(1.0);
        let most = |of: fn(&Figures) -> f64| {
            figures
                .iter()
                .map(|figures| of(figures))
                .fold(f64::NEG_INFINITY, f64::max)
        };
        let mut shares: Vec<f64> = figures.iter().map(|figures| share(figures)).collect();
        shares.sort_by(f64::total_cmp);
        let keeping = figures.iter().filter(|figures| bounds.keeps(figures));
        let least_keeping = keeping.clone().map(|figures| share(figures));
        Some(Self {
            runs: figures.len(),
            kept: keeping.count(),
            ttft_pct: most(|figures| figures.interference.ttft.mean_pct),
            tpot_pct: most(|figures| figures.interference.tpot.mean_pct),
            preemptions: figures.iter().map(|figures| figures.per_request.1).max()?,
            mean: shares.iter().sum::<f64>() / shares.len() as f64,
            tenth: *shares.get(shares.len() / 10)?,
            least_keeping: least_keeping.fold(f64::INFINITY, f64::min),
            refusing: figures
                .iter()
                .filter(|figures| figures.refused.0 > 0)
                .count(),
            overdrawn: figures.iter().filter(|figures| figures.faults > 0).count(),
        })
    }
}

/// The verdicts as lines under one head, each with its name, 80 columns wide.
#[must_use]
pub fn text(bounds: &Bounds, verdicts: &[(String, Verdict)]) -> String {
    let mut out = format!(
        "{:22}{:>9}{:>9}{:>9}{:>6}{:>8}{:>8}{:>8}\n{:22}{:>9}{:>9}{:>9}{:>6}{:>8}{:>8}{:>8}\n",
        "",
        "kept",
        "TTFT",
        "TPOT",
        "pre-",
        "oracle:",
        "tenth",
        "least",
        "",
        "",
        "most",
        "most",
        "empt.",
        "mean",
        "perc.",
        "keeping",
    );
    for (name, verdict) in verdicts {
        let _ = writeln!(
            out,
            "{name:22}{:>9}{:>+8.2}%{:>+8.2}%{:>6}{:>8.3}{:>8.3}{:>8.3}",
            format!("{}/{}", verdict.kept, verdict.runs),
            verdict.ttft_pct,
            verdict.tpot_pct,
            verdict.preemptions,
            verdict.mean,
            verdict.tenth,
            verdict.least_keeping,
        );
    }
    let _ = writeln!(
        out,
        "\n  Kept: mean TTFT +{} % and mean TPOT +{} % at most, {} preemption per request.\n  \
         Oracle: offline tokens over those of a policy that knows the future.",
        bounds.ttft_pct, bounds.tpot_pct, bounds.preemptions,
    );
    // A part of a row is indented.
    let whole = verdicts.iter().filter(|(name, _)| !name.starts_with(' '));
    for (name, verdict) in whole {
        let Verdict {
            runs,
            refusing,
            overdrawn,
            ..
        } = verdict;
        if *overdrawn > 0 {
            let _ = writeln!(
                out,
                "  {name}: WRONG in {overdrawn} of {runs}: more memory was given than\n  \
                 there is (column faults). Please report this.",
            );
        }
        if *refusing > 0 {
            let _ = writeln!(
                out,
                "  {name}: in {refusing} of {runs} the offline engine refuses requests\n  \
                 that are larger than its whole cache.",
            );
        }
    }
    out
}

/// One line for each run that did not keep them.
#[must_use]
pub fn missed(bounds: &Bounds, figures: &[&Figures]) -> String {
    let mut out = String::new();
    for one in figures.iter().filter(|figures| !bounds.keeps(figures)) {
        let _ = writeln!(
            out,
            "  missed: {} seed {}: TTFT {:+.2} %, TPOT {:+.2} %, {} preemptions{}",
            one.scenario,
            one.seed,
            one.interference.ttft.mean_pct,
            one.interference.tpot.mean_pct,
            one.per_request.1,
            if one.faults > 0 {
                ", more memory than there is"
            } else {
                ""
            },
        );
    }
    out
}
