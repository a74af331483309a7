//! A figure with its target, and the usual figures of many values.

/// One line of the table: key, value, unit, target or nothing.
#[derive(Debug)]
pub struct Row {
    pub key: String,
    pub value: f64,
    pub unit: &'static str,
    pub target: Option<Target>,
}

#[derive(Clone, Copy, Debug)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub fn judge(self, value: f64) -> String {
        let (sign, target, met) = match self {
            Self::AtMost(target) => ("<=", target, value <= target),
            Self::AtLeast(target) => (">=", target, value >= target),
        };
        let verdict = if met { "met" } else { "MISSED" };
        format!("{sign} {target}  {verdict}")
    }
}

impl Row {
    pub fn new(key: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            key: key.into(),
            value,
            unit,
            target: None,
        }
    }

    pub fn at_most(mut self, target: f64) -> Self {
        self.target = Some(Target::AtMost(target));
        self
    }

    pub fn at_least(mut self, target: f64) -> Self {
        self.target = Some(Target::AtLeast(target));
        self
    }
}

/// The value at `percent` of sorted values; 0 of none.
pub fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 50)
}
