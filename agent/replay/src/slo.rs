//! What online promised, as sets that are compared, and whether a run kept one.
//!
//! A set is judged from what users saw: from arrival to first token, and the mean time per further
//! token of each request. Percentiles are by nearest rank, so that a share of requests is meant and
//! not an average.

use tidegate_policy::lease::slo::Promise;

use crate::run::beside::Tuned;
use tidegate_text::spread::Spread;

const MS: u64 = 1_000_000;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Set {
    /// Means rise by at most 2 % (first token) and 0.5 % (further ones): Valve, section 7.
    Valve,
    /// Each decode within 40 ms, in 99.9 % of them: HARLI, section 8.1.
    Harli,
    /// 90 % of requests within 50 ms a further token and 5 s to the first: FlexLLM, section 8.1.
    FlexLlm,
    /// 99 % within 500 ms and 50 ms: LLMStation, section 6.1.
    LlmStation,
    /// 99 % within so many times the 99th percentiles alone, both.
    Times(f64),
    /// 99 % within so many ns a further token, and twice the 99th percentile alone to the first.
    Tpot(u64),
}

impl Set {
    /// Those of the table.
    pub const ALL: [Self; 7] = [
        Self::Valve,
        Self::Harli,
        Self::FlexLlm,
        Self::LlmStation,
        Self::Times(1.5),
        Self::Times(2.0),
        Self::Times(4.0),
    ];

    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Valve => "valve".to_owned(),
            Self::Harli => "harli".to_owned(),
            Self::FlexLlm => "flexllm".to_owned(),
            Self::LlmStation => "llmstation".to_owned(),
            Self::Times(times) => format!("x{times}"),
            Self::Tpot(ns) => format!("tpot-{}ms", ns as f64 / 1e6),
        }
    }

    /// What a policy is told, where online alone has these latencies.
    #[must_use]
    pub fn promise(self, alone: &Latencies) -> Promise {
        let tail = |ttft: f64, tpot: f64, late_permille| Promise::Tail {
            ttft_ns: (ttft * 1e6) as u64,
            tpot_ns: (tpot * 1e6) as u64,
            late_permille,
        };
        match self {
            Self::Valve => Promise::Mean {
                ttft: 200,
                tpot: 50,
            },
            Self::Harli => Promise::Each { decode_ns: 40 * MS },
            Self::FlexLlm => tail(5_000.0, 50.0, 100),
            Self::LlmStation => tail(500.0, 50.0, 10),
            Self::Times(times) => tail(times * alone.ttft.p99, times * alone.tpot.p99, 10),
            Self::Tpot(ns) => tail(2.0 * alone.ttft.p99, ns as f64 / 1e6, 10),
        }
    }

    /// Whether a run with these latencies kept it.
    #[must_use]
    pub fn kept(self, alone: &Latencies, with: &Latencies) -> bool {
        match (self, self.promise(alone)) {
            (Self::Valve, _) => {
                with.ttft.mean <= 1.02 * alone.ttft.mean
                    && with.tpot.mean <= 1.005 * alone.tpot.mean
            }
            (Self::Harli, _) => with.late_decodes <= 0.001,
            (
                Self::FlexLlm,
                Promise::Tail {
                    ttft_ns,
                    tpot_ns,
                    late_permille,
                },
            ) => {
                let late = with.late(ttft_ns as f64 / 1e6, tpot_ns as f64 / 1e6);
                late <= f64::from(late_permille) / 1e3
            }
            (
                _,
                Promise::Tail {
                    ttft_ns, tpot_ns, ..
                },
            ) => with.ttft.p99 <= ttft_ns as f64 / 1e6 && with.tpot.p99 <= tpot_ns as f64 / 1e6,
            _ => false,
        }
    }
}

/// What users saw in a run, ms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    /// To the first token.
    pub ttft: Spread,
    /// Per further token, of requests that have any.
    pub tpot: Spread,
    /// Both of each request; no further token counts as none.
    pub each: Vec<(f64, f64)>,
    /// Share of decodes that took too long.
    pub late_decodes: f64,
}

impl Latencies {
    /// Those of `run`.
    #[must_use]
    pub fn of(run: &Tuned) -> Self {
        let ms = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        let each = run.requests.iter().map(|request| {
            let tpot = request.tpot().map_or(0.0, ms);
            (ms(request.ttft()), tpot)
        });
        let each: Vec<(f64, f64)> = each.collect();
        let further = run.requests.iter().filter_map(|request| request.tpot());
        Self {
            ttft: Spread::of(each.iter().map(|both| both.0).collect()),
            tpot: Spread::of(further.map(ms).collect()),
            late_decodes: run.iterations.late as f64 / run.iterations.decodes.max(1) as f64,
            each,
        }
    }

    /// Share of the requests that were above either, both in ms.
    #[must_use]
    pub fn late(&self, ttft: f64, tpot: f64) -> f64 {
        let late = self
            .each
            .iter()
            .filter(|both| both.0 > ttft || both.1 > tpot);
        late.count() as f64 / self.each.len().max(1) as f64
    }
}
