//! What many values are like, in four figures.

/// Mean and quantiles of something; zero of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`, in any order. Quantiles by nearest rank: each is a value that occurred.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else {
            return Self::default();
        };
        let rank = |p: f64| values[((values.len() as f64 * p).ceil() as usize).max(1) - 1];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self {
            mean,
            p50: rank(0.50),
            p99: rank(0.99),
            max,
        }
    }
}
