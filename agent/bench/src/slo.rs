//! What online's users are promised: times that each request keeps, or how much more than alone.

use crate::block::{Bounds, Paired};
use crate::stats::Estimate;

/// What is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Times; requests that keep them are goodput.
    pub bounds: Bounds,
    /// Percent more time to the first token than alone.
    pub ttft_pct: Option<f64>,
    /// Percent more time by further token than alone.
    pub tpot_pct: Option<f64>,
}

/// Whether a relative promise was kept, as far as can be known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The whole interval is within it.
    Kept,
    /// The whole interval is beyond it.
    Broken,
    /// The interval has both; half of its width, percent, if there is one.
    Unclear(Option<f64>),
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Kept => "kept".to_owned(),
            Self::Broken => "broken".to_owned(),
            Self::Unclear(Some(noise)) => {
                format!("not decided: the noise is +-{noise:.1} %; give more --seconds or --cycles")
            }
            Self::Unclear(None) => {
                "not decided: one pair has no noise; give more --cycles".to_owned()
            }
        }
    }
}

/// A time in ms.
fn time(text: &str) -> Option<f64> {
    let (number, ms) = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)]
        .into_iter()
        .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))?;
    let value: f64 = number.trim().parse().ok()?;
    (value > 0.0 && value.is_finite()).then_some(value * ms)
}

/// "+1%".
fn increase(text: &str) -> Option<f64> {
    let value: f64 = text
        .strip_prefix('+')?
        .strip_suffix('%')?
        .trim()
        .parse()
        .ok()?;
    (value >= 0.0 && value.is_finite()).then_some(value)
}

impl Slo {
    /// Of "ttft=500ms,tpot=50ms" or "ttft=+1%,tpot=+0.5%".
    ///
    /// # Errors
    /// With what is wrong, and what would fit.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let form = "give ttft=500ms,tpot=50ms, or over online alone ttft=+1%,tpot=+0.5%";
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}`: {form}"))?;
            let (time, increase) = (time(value.trim()), increase(value.trim()));
            if increase == Some(0.0) {
                return Err(format!(
                    "`{part}`: no measurement can show that nothing changes; give what is accepted, such as +1%"
                ));
            }
            let (bound, pct) = match name.trim() {
                "ttft" => (&mut slo.bounds.ttft_ms, &mut slo.ttft_pct),
                "tpot" => (&mut slo.bounds.tpot_ms, &mut slo.tpot_pct),
                other => return Err(format!("`{other}`: only ttft and tpot are known; {form}")),
            };
            if time.is_none() && increase.is_none() {
                return Err(format!("`{part}`: {form}"));
            }
            if bound.is_some() || pct.is_some() {
                return Err(format!("{} is given twice", name.trim()));
            }
            (*bound, *pct) = (time, increase);
        }
        if slo.bounds.any() && (slo.ttft_pct.is_some() || slo.tpot_pct.is_some()) {
            return Err(
                "times and percents do not mix: goodput counts requests that keep times, percents are of online alone"
                    .to_owned(),
            );
        }
        Ok(slo)
    }

    /// The verdicts on what `paired` measured: name, promise in percent, verdict.
    #[must_use]
    pub fn verdicts(&self, paired: &Paired) -> Vec<(&'static str, f64, Verdict)> {
        let judged = |name, promise: Option<f64>, measured: Option<Estimate>| {
            let (promise, measured) = (promise?, measured?);
            let verdict = match measured.ci95 {
                Some((_, high)) if high <= promise => Verdict::Kept,
                Some((low, _)) if low > promise => Verdict::Broken,
                _ => Verdict::Unclear(measured.half()),
            };
            Some((name, promise, verdict))
        };
        let both = [
            judged("ttft", self.ttft_pct, paired.ttft_pct),
            judged("tpot", self.tpot_pct, paired.tpot_pct),
        ];
        both.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;

    #[test]
    fn promises_are_taken_or_it_is_said_what_is_wrong() {
        let times = Slo::parse("ttft=0.5s, tpot=50ms").expect("times");
        assert_eq!(
            (times.bounds.ttft_ms, times.bounds.tpot_ms),
            (Some(500.0), Some(50.0))
        );
        let percents = Slo::parse("ttft=+1%,tpot=+0.5%").expect("percents");
        assert_eq!(
            (percents.ttft_pct, percents.tpot_pct),
            (Some(1.0), Some(0.5))
        );
        for (text, why) in [
            ("ttft=+0%", "no measurement"),
            ("ttft=+1%,tpot=50ms", "do not mix"),
            ("ttft=1%", "give ttft=500ms"),
            ("ttft=-5ms", "give ttft=500ms"),
            ("ttft=5", "give ttft=500ms"),
            ("e2e=5s", "only ttft and tpot"),
            ("ttft=1s,ttft=2s", "twice"),
            ("", "give ttft"),
        ] {
            let said = Slo::parse(text).expect_err(text);
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn a_promise_below_the_noise_is_not_decided() {
        let paired = |low: f64, high: f64| Paired {
            mode: Mode::Gated,
            reference: Mode::Drained,
            ttft_pct: Some(Estimate {
                mean: (low + high) / 2.0,
                ci95: Some((low, high)),
            }),
            tpot_pct: None,
            pairs: 4,
        };
        let slo = Slo::parse("ttft=+1%,tpot=+1%").expect("percents");
        let verdict = |low, high| slo.verdicts(&paired(low, high));
        assert_eq!(verdict(-0.5, 0.9), [("ttft", 1.0, Verdict::Kept)]);
        assert_eq!(verdict(1.5, 2.0)[0].2, Verdict::Broken);
        assert_eq!(verdict(-2.0, 4.0)[0].2, Verdict::Unclear(Some(3.0)));
        assert!(verdict(-2.0, 4.0)[0].2.words().contains("+-3.0 %"));
    }
}
