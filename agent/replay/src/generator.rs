//! Synthetic traces from published parameters.
//!
//! Arrivals are a renewal process with Gamma gaps, given by rate and coefficient of variation (CV):
//! the form that ServeGen (arXiv 2505.09999) and BurstGPT fit to production clients. CV 1 is
//! Poisson; a chat service is close to it, a coding assistant is not: its requests come in bursts
//! of tens. Lengths are drawn independently from quantiles, log-linear in between.
//!
//! The figures of each preset were computed from the trace that its `source` names; they are
//! figures of a slice, not a claim about a service.

use std::time::Duration;

use crate::clock::Time;
use crate::trace::{Request, Trace};
use tidegate_text::rng::Rng;

/// What a synthetic trace is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Whose figures these are.
    pub source: &'static str,
    /// Requests per second.
    pub rate: f64,
    /// Coefficient of variation of the gaps between arrivals.
    pub cv: f64,
    /// Prompt lengths.
    pub input_tokens: Quantiles,
    /// Generated lengths.
    pub output_tokens: Quantiles,
}

/// Values at [`LEVELS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles(pub [f64; LEVELS.len()]);

/// Where [`Quantiles`] are given.
pub const LEVELS: [f64; 9] = [0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

/// A chat service: steady arrivals, long answers.
pub const CONVERSATION: Preset = Preset {
    name: "conversation",
    source: "Azure LLM inference trace 2023, conversation, first 1200 s (Splitwise, ISCA 2024; CC-BY)",
    rate: 4.99,
    cv: 1.06,
    input_tokens: Quantiles([
        2.0, 181.0, 209.0, 402.0, 1042.0, 1159.0, 2375.0, 4107.0, 14_050.0,
    ]),
    output_tokens: Quantiles([10.0, 40.0, 55.0, 91.0, 202.0, 403.0, 429.0, 625.0, 1000.0]),
};

/// A coding assistant: long prompts, short answers, fierce bursts.
pub const CODE: Preset = Preset {
    name: "code",
    source: "Azure LLM inference trace 2023, code, first 1200 s (Splitwise, ISCA 2024; CC-BY)",
    rate: 3.03,
    cv: 14.65,
    input_tokens: Quantiles([
        6.0, 73.0, 146.0, 589.0, 1397.0, 2734.0, 4928.0, 7436.0, 7437.0,
    ]),
    output_tokens: Quantiles([6.0, 6.0, 7.0, 9.0, 13.0, 22.0, 55.0, 249.0, 1899.0]),
};

/// A program that calls a model: bursty, medium prompts, short answers.
pub const CALLER: Preset = Preset {
    name: "caller",
    source: "one client (m-large 140) of ServeGen's published parameters (arXiv 2505.09999; Apache-2.0)",
    rate: 1.46,
    cv: 1.8,
    input_tokens: Quantiles([
        291.0, 338.0, 377.0, 489.0, 770.0, 1310.0, 1549.0, 9438.0, 11_134.0,
    ]),
    output_tokens: Quantiles([1.0, 3.0, 7.0, 19.0, 30.0, 47.0, 54.0, 200.0, 4096.0]),
};

/// Every preset.
pub const PRESETS: [Preset; 3] = [CONVERSATION, CODE, CALLER];

impl Preset {
    /// The same load at `rate` requests per second.
    #[must_use]
    pub fn at_rate(self, rate: f64) -> Self {
        Self { rate, ..self }
    }

    /// The requests of the first `length` of a trace drawn from `seed`. A longer trace of the same
    /// seed begins with the same requests. Nothing arrives at a rate that is not a positive number.
    #[must_use]
    pub fn generate(&self, seed: u64, length: Duration) -> Trace {
        let mut arrivals = Rng::stream(seed, 0);
        let mut lengths = Rng::stream(seed, 1);
        let shape = 1.0 / (self.cv * self.cv);
        let scale = self.cv * self.cv / self.rate;
        let mut requests = Vec::new();
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return Trace::new(requests);
        }
        let mut at = 0.0;
        loop {
            at += arrivals.gamma(shape, scale);
            if at >= length.as_secs_f64() {
                return Trace::new(requests);
            }
            requests.push(Request {
                arrival: Time::from(Duration::from_secs_f64(at)),
                input_tokens: self.input_tokens.draw(&mut lengths),
                output_tokens: self.output_tokens.draw(&mut lengths),
            });
        }
    }
}

impl Quantiles {
    /// The value at level `p` of `[0, 1]`.
    #[must_use]
    pub fn at(&self, p: f64) -> f64 {
        let above = LEVELS
            .partition_point(|level| *level < p)
            .clamp(1, LEVELS.len() - 1);
        let (low, high) = (self.0[above - 1], self.0[above]);
        let share = (p - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1]);
        low * (high / low).powf(share.clamp(0.0, 1.0))
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        // In range: every preset lies between 1 and 2^20 tokens.
        self.at(rng.uniform()).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(mut values: Vec<f64>, p: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        values[((values.len() - 1) as f64 * p) as usize]
    }

    #[test]
    fn a_long_trace_has_the_published_figures() {
        for preset in [CONVERSATION, CALLER] {
            let trace = preset.generate(1, Duration::from_secs(20_000));
            let requests = trace.requests();
            let rate = requests.len() as f64 / 20_000.0;
            assert!(
                (rate / preset.rate - 1.0).abs() < 0.03,
                "{}: rate {rate}",
                preset.name
            );
            let gaps: Vec<f64> = requests
                .windows(2)
                .map(|two| two[1].arrival.since(two[0].arrival).as_secs_f64())
                .collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance =
                gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let cv = variance.sqrt() / mean;
            assert!(
                (cv / preset.cv - 1.0).abs() < 0.05,
                "{}: CV {cv}",
                preset.name
            );
            for p in [0.1, 0.5, 0.9] {
                let input = at(
                    requests.iter().map(|r| f64::from(r.input_tokens)).collect(),
                    p,
                );
                let output = at(
                    requests
                        .iter()
                        .map(|r| f64::from(r.output_tokens))
                        .collect(),
                    p,
                );
                assert!(
                    (input / preset.input_tokens.at(p) - 1.0).abs() < 0.05,
                    "input p{p}: {input}"
                );
                assert!(
                    (output / preset.output_tokens.at(p) - 1.0).abs() < 0.05,
                    "output p{p}: {output}"
                );
            }
        }
    }

    #[test]
    fn code_comes_in_bursts() {
        let trace = CODE.generate(3, Duration::from_secs(20_000));
        let crowded = trace.requests().windows(2);
        let near =
            crowded.filter(|two| two[1].arrival.since(two[0].arrival) < Duration::from_millis(1));
        assert!(
            near.count() * 10 > trace.len() * 9,
            "gaps below a millisecond are the rule"
        );
    }

    #[test]
    fn a_seed_gives_the_same_trace_for_ever() {
        let trace = CALLER.generate(1, Duration::from_secs(60));
        let first: Vec<(u64, u32, u32)> = trace.requests()[..3]
            .iter()
            .map(|r| (r.arrival.0 / 1_000_000, r.input_tokens, r.output_tokens))
            .collect();
        assert_eq!(first, [(750, 1158, 30), (1628, 597, 27), (2278, 1350, 50)]);
    }

    proptest! {
        #[test]
        fn a_longer_trace_begins_with_the_shorter(seed: u64, seconds in 1u64..60) {
            let short = CALLER.generate(seed, Duration::from_secs(seconds));
            let long = CALLER.generate(seed, Duration::from_secs(2 * seconds));
            prop_assert_eq!(short.requests(), &long.requests()[..short.len()]);
        }

        #[test]
        fn lengths_stay_within_the_published_range(seed: u64) {
            for preset in PRESETS {
                let within = |quantiles: Quantiles, tokens: u32| {
                    (quantiles.0[0]..=quantiles.0[LEVELS.len() - 1]).contains(&f64::from(tokens))
                };
                for request in preset.generate(seed, Duration::from_secs(20)).requests() {
                    prop_assert!(within(preset.input_tokens, request.input_tokens), "{:?}", request);
                    prop_assert!(within(preset.output_tokens, request.output_tokens), "{:?}", request);
                }
            }
        }
    }

    #[test]
    fn no_rate_no_requests() {
        for rate in [0.0, -1.0, f64::NAN] {
            assert!(
                CALLER
                    .at_rate(rate)
                    .generate(1, Duration::from_secs(10))
                    .is_empty()
            );
        }
    }
}
