//! What jobs report of their work: useful units, and the progress of a training. Nothing is decided by it.

use crate::text::Text;

/// What a training has done, as its trainer says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// Optimizer steps done.
    pub step: u64,
    /// Of so many; 0: not known.
    pub steps: u64,
    /// Of those done, before this process began.
    pub begun: u64,
    /// Tokens trained on by this process.
    pub tokens: u64,
    /// Units it ran.
    pub units: u64,
    /// And ran again, because memory was taken.
    pub units_redone: u64,
    /// Times that it found some taken.
    pub reclaims: u64,
    /// 0: it runs no units.
    pub layers: u32,
    /// Layers whose frozen weights are on the device.
    pub resident_layers: u32,
    /// As it says, where it is a number.
    pub loss: Option<f64>,
    /// Where the finished adapter is; empty: it is not finished.
    pub adapter: Text,
    /// Who answers with it; empty: nobody.
    pub served: Text,
}

/// An event that comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its kind.
    pub kind: &'static str,
    /// Its text.
    pub text: String,
}

/// Sums over processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Useful units, as jobs count them.
    pub useful: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Units done again.
    pub units_redone: u64,
}

impl Totals {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            useful: self.useful.saturating_add(other.useful),
            steps: self.steps.saturating_add(other.steps),
            tokens: self.tokens.saturating_add(other.tokens),
            units_redone: self.units_redone.saturating_add(other.units_redone),
        }
    }
}

/// A rate is of this long at least.
const WINDOW_NS: u64 = 2_000_000_000;
/// Units done again are told of no more often than this.
const TOLD_EVERY_NS: u64 = 1_000_000_000;

/// What one process says of its work.
#[derive(Debug, Default)]
pub struct Work {
    /// Useful units, of a process without a page.
    pub streamed: u64,
    /// None: it does not train.
    pub training: Option<Box<Training>>,
    /// When it said so last, ns.
    pub heard_ns: u64,
    /// When the rate's time began, with how many tokens.
    window: (u64, u64),
    per_s: f64,
    told_ns: u64,
    told_redone: u64,
    /// What of it is in no sum of this session: a process that comes back goes on counting where it was.
    before: Totals,
}

impl Work {
    /// Takes what a trainer says; the events that makes. `returned`: it was under an agent before
    /// this session.
    pub fn hear(&mut self, said: Training, returned: bool, now: u64) -> Vec<Told> {
        let mut events = Vec::new();
        let before = self.training.take().map(|before| *before);
        if before.is_none() {
            self.window = (now, said.tokens);
            if returned {
                self.before = sums(&said);
                self.told_redone = said.units_redone;
            }
        }
        let passed = now.saturating_sub(self.window.0);
        if passed >= WINDOW_NS {
            self.per_s = rate(said.tokens.saturating_sub(self.window.1), passed);
            self.window = (now, said.tokens);
        }
        let redone = said.units_redone.saturating_sub(self.told_redone);
        if redone > 0 && now.saturating_sub(self.told_ns) >= TOLD_EVERY_NS {
            (self.told_ns, self.told_redone) = (now, said.units_redone);
            events.push(Told {
                kind: "unit_redone",
                text: format!(
                    "{redone} more of {} units, after {} reclaims in all; {} of {} layers are resident",
                    said.units, said.reclaims, said.resident_layers, said.layers
                ),
            });
        }
        let old = before.unwrap_or_default();
        if old.adapter != said.adapter && !said.adapter.is_empty() {
            events.push(Told {
                kind: "adapter_saved",
                text: said.adapter.to_string(),
            });
        }
        if old.served != said.served && !said.served.is_empty() {
            events.push(Told {
                kind: "adapter_served",
                text: said.served.to_string(),
            });
        }
        self.heard_ns = now;
        self.training = Some(Box::new(said));
        events
    }

    /// Tokens per second, lately: a trainer that has nothing to say makes none.
    #[must_use]
    pub fn tokens_per_s(&self, now: u64) -> f64 {
        let passed = now.saturating_sub(self.window.0);
        let tokens = self.training.as_ref().map_or(0, |said| said.tokens);
        if passed < 2 * WINDOW_NS && self.per_s > 0.0 {
            return self.per_s;
        }
        rate(tokens.saturating_sub(self.window.1), passed)
    }

    /// Its part of its job's sums, beside the useful units that its page says.
    #[must_use]
    pub fn totals(&self, paged: u64) -> Totals {
        let said = self.training.as_deref().map_or_else(Totals::default, sums);
        Totals {
            useful: paged.saturating_add(self.streamed),
            steps: said.steps.saturating_sub(self.before.steps),
            tokens: said.tokens.saturating_sub(self.before.tokens),
            units_redone: said.units_redone.saturating_sub(self.before.units_redone),
        }
    }
}

/// What a process did since it began.
const fn sums(said: &Training) -> Totals {
    Totals {
        useful: 0,
        steps: said.step.saturating_sub(said.begun),
        tokens: said.tokens,
        units_redone: said.units_redone,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
fn rate(tokens: u64, ns: u64) -> f64 {
    if ns == 0 {
        return 0.0;
    }
    tokens as f64 * 1e9 / ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn said(tokens: u64, units_redone: u64) -> Training {
        Training {
            step: tokens / 10,
            begun: 2,
            tokens,
            units: 50,
            units_redone,
            reclaims: 3,
            layers: 4,
            resident_layers: 2,
            ..Training::default()
        }
    }

    fn kinds(events: &[Told]) -> Vec<&'static str> {
        events.iter().map(|event| event.kind).collect()
    }

    /// P-TRAINER-10: what is taken of a trainer is told once, and not in every message.
    #[test]
    fn units_done_again_are_told_once_and_no_more_often_than_once_a_second() {
        let mut work = Work::default();
        assert!(work.hear(said(10, 0), false, 10 * S).is_empty());
        let told = work.hear(said(20, 3), false, 11 * S);
        assert_eq!(
            told,
            [Told {
                kind: "unit_redone",
                text: "3 more of 50 units, after 3 reclaims in all; 2 of 4 layers are resident"
                    .to_owned()
            }]
        );
        assert!(work.hear(said(20, 5), false, 11 * S + S / 2).is_empty());
        let told = work.hear(said(20, 5), false, 12 * S);
        assert!(told[0].text.starts_with("2 more of"), "{told:?}");
        assert!(work.hear(said(20, 5), false, 20 * S).is_empty());
    }

    #[test]
    fn a_trainer_that_comes_back_is_counted_from_there() {
        let mut work = Work::default();
        assert!(work.hear(said(100, 9), true, S).is_empty());
        assert_eq!(work.totals(0), Totals::default());
        assert_eq!(
            kinds(&work.hear(said(130, 10), true, 2 * S)),
            ["unit_redone"]
        );
        let (steps, tokens, units_redone) = (3, 30, 1);
        let expected = Totals {
            useful: 0,
            steps,
            tokens,
            units_redone,
        };
        assert_eq!(work.totals(0), expected);
    }

    #[test]
    fn an_adapter_is_told_of_when_it_is_there_and_when_somebody_answers_with_it() {
        let mut work = Work::default();
        let mut now = said(10, 0);
        now.adapter = Text::line("out");
        assert_eq!(kinds(&work.hear(now.clone(), false, S)), ["adapter_saved"]);
        now.served = Text::line("a server");
        assert_eq!(kinds(&work.hear(now.clone(), false, S)), ["adapter_served"]);
        assert!(work.hear(now, false, S).is_empty());
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds_and_falls_where_nothing_is_said() {
        let mut work = Work::default();
        for second in 0..10 {
            work.hear(said(100 * second, 0), false, (100 + second) * S);
        }
        assert!((work.tokens_per_s(109 * S) - 100.0).abs() < 1e-9);
        assert!(work.tokens_per_s(209 * S) < 2.0);
        assert_eq!(
            work.totals(7),
            Totals {
                useful: 7,
                steps: 88,
                tokens: 900,
                units_redone: 0
            }
        );
    }
}
