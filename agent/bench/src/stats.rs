//! Means and how sure they are.
//!
//! An interval is Student's: mean, plus and minus the quantile of the t distribution times the standard error. That
//! holds for independent values. Latencies of requests that follow one another are not: they meet the same queue. So
//! values in the order of their arrival are first averaged in [`BATCHES`] batches of neighbours, whose means depend on
//! each other far less (non-overlapping batch means; B. Schmeiser, "Batch size effects in the analysis of simulation
//! output", Operations Research 30(3), 1982, which finds that 10 to 30 batches are enough).

/// Batches that values are averaged in, where there are at least twice as many values.
pub const BATCHES: usize = 20;
/// Two-sided confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// A mean and where the true one lies with [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Arithmetic mean of all values.
    pub mean: f64,
    /// Both ends; none of fewer than two values.
    pub ci95: Option<(f64, f64)>,
}

impl Estimate {
    /// Half of the interval's width.
    #[must_use]
    pub fn half(&self) -> Option<f64> {
        self.ci95.map(|(low, high)| (high - low) / 2.0)
    }
}

/// Share of the t distribution with `df` degrees of freedom within `t` of zero: P(|T| <= t).
///
/// The finite sums of Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
#[must_use]
pub fn within(t: f64, df: u32) -> f64 {
    let theta = (t / f64::from(df.max(1)).sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    // Terms go by twos from the first power of the cosine to df - 2.
    let odd = df % 2 == 1;
    let (mut term, mut power) = if odd { (cos, 1) } else { (1.0, 0) };
    let mut sum = 0.0;
    while power + 2 <= df {
        sum += term;
        let (above, below) = (f64::from(power + 1), f64::from(power + 2));
        term *= cos * cos * above / below;
        power += 2;
    }
    if odd {
        std::f64::consts::FRAC_2_PI * (theta + sin * sum)
    } else {
        sin * sum
    }
}

/// The t so that a share `confidence` of the distribution with `df` degrees of freedom lies within it.
#[must_use]
pub fn t_quantile(confidence: f64, df: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while within(high, df) < confidence && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if within(middle, df) < confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// The mean of independent `values` and its interval; none of no values.
#[must_use]
pub fn interval(values: &[f64]) -> Option<Estimate> {
    let count = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let ci95 =
        (values.len() > 1).then(|| around(mean, (squares / (count - 1.0)).sqrt(), values.len()));
    Some(Estimate { mean, ci95 })
}

/// The interval of a mean of `count` independent values with this sample standard deviation, two values at least.
#[must_use]
pub fn around(mean: f64, deviation: f64, count: usize) -> (f64, f64) {
    let df = u32::try_from(count.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .clamp(1, 10_000);
    let half = t_quantile(CONFIDENCE, df) * deviation / (count as f64).sqrt();
    (mean - half, mean + half)
}

/// The mean of `values`, which are in the order of their arrival, and its interval by batch means.
#[must_use]
pub fn batch_interval(values: &[f64]) -> Option<Estimate> {
    if values.len() < 2 * BATCHES {
        return interval(values);
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let of_batches = interval(&batches(values, BATCHES))?;
    // Batches differ by one value at most, so the means of both are the same but for rounding of the batches.
    let ci95 = of_batches.half().map(|half| (mean - half, mean + half));
    Some(Estimate { mean, ci95 })
}

/// The means of `count` runs of neighbours among `values`, whose lengths differ by one at most.
#[must_use]
pub fn batches(values: &[f64], count: usize) -> Vec<f64> {
    let edge = |batch: usize| batch * values.len() / count.max(1);
    let means = (0..count).filter_map(|batch| {
        let own = values.get(edge(batch)..edge(batch + 1))?;
        (!own.is_empty()).then(|| own.iter().sum::<f64>() / own.len() as f64)
    });
    means.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_text::rng::Rng;

    /// P-BENCH-1: quantiles are those of the published table (NIST/SEMATECH e-Handbook of Statistical Methods,
    /// 1.3.6.7.2, "Critical Values of the Student's-t Distribution", three decimals).
    #[test]
    fn quantiles_are_those_of_the_published_table() {
        let two_sided_95 = [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (6, 2.447),
            (7, 2.365),
            (9, 2.262),
            (10, 2.228),
            (15, 2.131),
            (19, 2.093),
            (20, 2.086),
            (25, 2.060),
            (30, 2.042),
            (40, 2.021),
            (60, 2.000),
            (80, 1.990),
            (100, 1.984),
        ];
        let two_sided_90 = [
            (1, 6.314),
            (5, 2.015),
            (10, 1.812),
            (30, 1.697),
            (100, 1.660),
        ];
        let two_sided_99 = [
            (1, 63.657),
            (5, 4.032),
            (10, 3.169),
            (30, 2.750),
            (100, 2.626),
        ];
        for (confidence, table) in [
            (0.95, &two_sided_95[..]),
            (0.90, &two_sided_90[..]),
            (0.99, &two_sided_99[..]),
        ] {
            for &(df, published) in table {
                let t = t_quantile(confidence, df);
                assert!((t - published).abs() <= 5.1e-4, "{confidence}, {df}: {t}");
            }
        }
        // Of many degrees the normal distribution's.
        assert!((t_quantile(0.95, 10_000) - 1.960).abs() < 6e-4);
    }

    /// P-BENCH-1: the interval of a published example (the same handbook, 1.3.5.2: mean 9.261460, standard deviation
    /// 0.022789, 195 values, from 9.258242 to 9.264679).
    #[test]
    fn an_interval_is_that_of_the_published_example() {
        let (low, high) = around(9.261_460, 0.022_789, 195);
        assert!(
            (low - 9.258_242).abs() < 2e-6 && (high - 9.264_679).abs() < 2e-6,
            "{low} {high}"
        );
    }

    #[test]
    fn few_values_have_no_interval() {
        assert_eq!(interval(&[]), None);
        assert_eq!(
            batch_interval(&[3.0]),
            Some(Estimate {
                mean: 3.0,
                ci95: None
            })
        );
        let same = batch_interval(&[2.0; 100]).expect("values");
        assert_eq!(same.ci95, Some((2.0, 2.0)));
    }

    #[test]
    fn batches_hold_every_value_once() {
        let values: Vec<f64> = (0..103).map(f64::from).collect();
        let edges: Vec<usize> = (0..=BATCHES)
            .map(|batch| batch * values.len() / BATCHES)
            .collect();
        assert!(
            edges
                .windows(2)
                .all(|pair| (5..=6).contains(&(pair[1] - pair[0])))
        );
        let sum: f64 = batches(&values, BATCHES)
            .iter()
            .zip(edges.windows(2))
            .map(|(mean, pair)| mean * (pair[1] - pair[0]) as f64)
            .sum();
        assert!((sum - values.iter().sum::<f64>()).abs() < 1e-6);
    }

    /// How many of `runs` intervals have the true mean of a first-order autoregressive process, zero.
    fn covered(correlation: f64, of: fn(&[f64]) -> Option<Estimate>, runs: u64) -> u64 {
        let hit = |seed: &u64| {
            let mut rng = Rng::new(*seed);
            let mut value = rng.normal() / (1.0 - correlation * correlation).sqrt();
            let values: Vec<f64> = (0..800)
                .map(|_| {
                    value = correlation * value + rng.normal();
                    value
                })
                .collect();
            let (low, high) = of(&values)
                .and_then(|estimate| estimate.ci95)
                .expect("values");
            low <= 0.0 && 0.0 <= high
        };
        (0..runs).filter(hit).count() as u64
    }

    /// P-BENCH-2: requests that meet the same queue do not make an interval too narrow. Without batches they would.
    #[test]
    fn an_interval_covers_also_where_neighbours_depend_on_each_other() {
        let (runs, seeds) = (400, "seeds 0 to 399");
        let batched = covered(0.7, batch_interval, runs);
        let plain = covered(0.7, interval, runs);
        assert!(batched >= runs * 90 / 100, "{seeds}: {batched} of {runs}");
        assert!(plain < runs * 75 / 100, "{seeds}: {plain} of {runs}");
        let independent = covered(0.0, batch_interval, runs);
        assert!(
            (runs * 91 / 100..=runs * 99 / 100).contains(&independent),
            "{seeds}: {independent}"
        );
    }
}
