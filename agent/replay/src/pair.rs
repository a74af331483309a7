//! The price online pays: the same requests, alone and colocated.
//!
//! Runs are paired: the same arrivals, lengths and decode gaps (a gap belongs to a request and its
//! token, so that a run that is a little later meets the same gaps). An increase is the mean of the
//! differences over the mean alone; the median and the 99th percentile are of the differences,
//! each over the mean alone.

use crate::record::{Outcome, Request};

/// How much longer, in percent of the mean alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Increase {
    /// Of the mean.
    pub mean_pct: f64,
    /// Median of the differences.
    pub median_pct: f64,
    /// 99th percentile of the differences.
    pub p99_pct: f64,
    /// Pairs compared.
    pub pairs: usize,
}

/// What colocation does to online.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interference {
    /// Time to first token.
    pub ttft: Increase,
    /// Time per further token, over requests that have any.
    pub tpot: Increase,
}

/// Compares `with` to `alone`, request by request.
#[must_use]
pub fn interference(alone: &Outcome, with: &Outcome) -> Interference {
    let both = |metric: fn(&Request) -> Option<f64>| {
        let pairs = alone.requests.iter().zip(&with.requests);
        increase(pairs.filter_map(|(alone, with)| Some((metric(alone)?, metric(with)?))))
    };
    Interference {
        ttft: both(|request| Some(request.ttft().as_secs_f64())),
        tpot: both(|request| request.tpot().map(|tpot| tpot.as_secs_f64())),
    }
}

fn increase(pairs: impl Iterator<Item = (f64, f64)>) -> Increase {
    let mut sum = 0.0;
    let mut differences: Vec<f64> = pairs
        .map(|(alone, with)| {
            sum += alone;
            with - alone
        })
        .collect();
    let pairs = differences.len();
    if sum <= 0.0 {
        return Increase::default();
    }
    let pct = 100.0 * pairs as f64 / sum;
    let mean = differences.iter().sum::<f64>() / pairs as f64;
    differences.sort_by(f64::total_cmp);
    let at = |share: f64| differences[((pairs - 1) as f64 * share) as usize];
    Increase {
        mean_pct: mean * pct,
        median_pct: at(0.5) * pct,
        p99_pct: at(0.99) * pct,
        pairs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Time;

    fn outcome(ttft_and_tpot_ms: &[(u64, u64)]) -> Outcome {
        let requests = ttft_and_tpot_ms.iter().map(|(ttft, tpot)| {
            let first_token = Time(ttft * 1_000_000);
            Request {
                first_token,
                last_token: Time(first_token.0 + 2 * tpot * 1_000_000),
                tokens: if *tpot > 0 { 3 } else { 1 },
                ..Request::default()
            }
        });
        Outcome {
            requests: requests.collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn an_increase_is_the_mean_difference_over_the_mean_alone() {
        let alone = outcome(&[(10, 5), (30, 5), (20, 0)]);
        let with = outcome(&[(13, 5), (30, 6), (20, 0)]);
        let found = interference(&alone, &with);
        assert!((found.ttft.mean_pct - 5.0).abs() < 1e-9, "{found:?}");
        assert!((found.tpot.mean_pct - 10.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.ttft.pairs, found.tpot.pairs), (3, 2));
        assert!(found.ttft.median_pct.abs() < 1e-9);
    }
}
