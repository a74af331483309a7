//! When online will be back, learnt from how long it stayed away.
//!
//! Two parts ask this: the lease policy for a trainer, and [`crate::patience`] for what a preemption stops.
//!
//! A trainer that stops at the end of its unit, or that the gate stops in the middle of one,
//! costs online at most `delay` at its return. It may start at the first idle age at which that
//! cost, times the probability that an idle time lasts that long, is within the budget: then the mean
//! delay over all returns is too. Most idle times of an engine under load are decode gaps, which are
//! short; an idle time that outlasts them is worth its cost.
//!
//! Future idle times differ from past ones: if a client's requests arrive in bunches, what was
//! learnt is too bold for minutes. So the delays themselves are also counted. Every return adds to the
//! budget and pays its delay, and if less than one delay is left, the accepted probability
//! shrinks in proportion. The mean over all returns is then within the budget whatever they do, except for a
//! delay or two.
//!
//! The idle times are kept as counts in eighths of octaves. A bucket counts as its whole
//! width, so that every answer errs in online's favour, by at most 9 %. Once [`KEPT`] are counted, all
//! counts are halved: what was learnt fades.

/// Idle times counted before anything is said.
pub const LEAST: u64 = 32;
/// Idle times counted before all are halved.
pub const KEPT: u64 = 8_192;
/// Returns whose budgets may be saved up: what a quiet hour earned must not be spent in a bad minute.
pub const SAVED: u64 = 1_024;

/// Places in an octave.
const FINE: u64 = 8;
/// The first place ends here, ns: shorter idle times are all the same.
const FIRST: u64 = 1 << 14;
/// The last begins here, ns: 137 s.
const PLACES: usize = 8 * (37 - 14) + 1;

fn place(ns: u64) -> usize {
    if ns < FIRST {
        return 0;
    }
    let octave = u64::from(ns.ilog2()) - 14;
    let part = ((ns >> (octave + 11)) & (FINE - 1)) + FINE * octave + 1;
    (part as usize).min(PLACES - 1)
}

/// The least idle time of a place, ns.
fn begin(place: usize) -> u64 {
    match place.checked_sub(1) {
        None => 0,
        Some(above) => {
            let (octave, part) = (above as u64 / FINE, above as u64 % FINE);
            (FINE + part) << (octave + 11)
        }
    }
}

/// How long online stays away.
#[derive(Clone, Debug)]
pub struct Forecast {
    counts: [u32; PLACES],
    total: u64,
    /// What is left of the budgets of all returns, ns.
    left: i64,
}

impl Default for Forecast {
    fn default() -> Self {
        Self {
            counts: [0; PLACES],
            total: 0,
            left: 0,
        }
    }
}

impl Forecast {
    /// Online was away for `ns`, and its return, which may be delayed by `budget_ns` on average, was by
    /// `delayed_ns`.
    pub fn ended(&mut self, ns: u64, budget_ns: u64, delayed_ns: u64) {
        let [budget, delayed] = [budget_ns, delayed_ns].map(|ns| ns.min(1 << 52) as i64);
        let most = budget.saturating_mul(SAVED as i64);
        self.left = self.left.saturating_add(budget - delayed).min(most);
        self.counts[place(ns)] += 1;
        self.total += 1;
        if self.total >= KEPT {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += u64::from(*count);
            }
        }
    }

    /// A return was delayed by so much, which was not told with it.
    pub fn delayed(&mut self, ns: u64) {
        self.left = self.left.saturating_sub(ns.min(1 << 52) as i64);
    }

    /// Idle times that count.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.total
    }

    /// How many last beyond `age`, and perhaps a little less.
    fn beyond(&self, age: u64) -> u64 {
        let counts = self.counts[place(age)..].iter();
        counts.map(|count| u64::from(*count)).sum()
    }

    /// The first idle age, ns, from which on a trainer may run that costs a return `delay_ns`, so that
    /// the mean return is delayed by no more than `budget_ns`. Nothing before [`LEAST`] returns
    /// were seen, unless it is within the budget at every return.
    #[must_use]
    pub fn from(&self, delay_ns: u64, budget_ns: u64) -> Option<u64> {
        if delay_ns <= budget_ns {
            return Some(0);
        }
        if self.total < LEAST {
            return None;
        }
        let delay = u128::from(delay_ns.max(1));
        let allowed = u128::from(budget_ns) * u128::from(self.total) / delay;
        let allowed = allowed * u128::from(self.left.max(0) as u64).min(delay) / delay;
        let mut left = 0;
        for at in (0..PLACES).rev() {
            left += u128::from(self.counts[at]);
            if left > allowed {
                return (at + 1 < PLACES).then(|| begin(at + 1));
            }
        }
        Some(0)
    }

    /// The chance that online is back within `span_ns`, having been away for `age_ns`; one where
    /// nothing is known.
    #[must_use]
    pub fn returns(&self, age_ns: u64, span_ns: u64) -> f64 {
        let away = self.beyond(age_ns);
        if away == 0 {
            return 1.0;
        }
        let end = place(age_ns.saturating_add(span_ns)) + 1;
        let later: u64 = self.counts.iter().skip(end).map(|c| u64::from(*c)).sum();
        1.0 - later as f64 / away as f64
    }

    /// The longest run, ns, from an idle age of `age_ns` on, in which a return that costs `delay_ns`
    /// costs no more than `budget_ns` on average.
    #[must_use]
    pub fn longest(&self, age_ns: u64, delay_ns: u64, budget_ns: u64) -> u64 {
        if delay_ns <= budget_ns {
            return u64::MAX;
        }
        let away = self.beyond(age_ns);
        let allowed = u128::from(budget_ns) * u128::from(away) / u128::from(delay_ns.max(1));
        let mut back = 0;
        for (at, count) in self.counts.iter().enumerate().skip(place(age_ns)) {
            back += u128::from(*count);
            if back > allowed {
                return begin(at).saturating_sub(age_ns);
            }
        }
        // Online was never away for longer.
        if away == 0 { 0 } else { u64::MAX }
    }
}
