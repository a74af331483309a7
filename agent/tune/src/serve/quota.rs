//! How many tokens each owner has learnt today. Pure: the time is an argument.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A day in seconds. A day begins at midnight in UTC.
const DAY: u64 = 86_400;

/// Tokens learnt by each owner on one day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Days since 1970.
    day: u64,
    tokens: BTreeMap<String, u64>,
}

/// A quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// When it begins anew, in seconds since 1970.
    pub until: u64,
}

impl Spent {
    /// Counts tokens that `owner` learnt. `now` is in seconds since 1970.
    pub fn add(&mut self, owner: &str, tokens: u64, now: u64) {
        self.turn(now);
        let spent = self.tokens.entry(owner.to_owned()).or_default();
        *spent = spent.saturating_add(tokens);
    }

    /// Whether `owner` may learn more, with a quota of `limit` tokens a day. A step that is begun is ended, so that the
    /// last one may exceed the quota.
    ///
    /// # Errors
    /// With the time at which the owner may.
    pub fn check(&mut self, owner: &str, limit: Option<u64>, now: u64) -> Result<(), Over> {
        self.turn(now);
        let spent = self.tokens.get(owner).copied().unwrap_or(0);
        match limit {
            Some(limit) if spent >= limit => Err(Over {
                until: (now / DAY + 1) * DAY,
            }),
            _ => Ok(()),
        }
    }

    /// Begins a new day. A clock that is set back to an earlier day gives no tokens back.
    fn turn(&mut self, now: u64) {
        if now / DAY > self.day {
            self.day = now / DAY;
            self.tokens.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// P-TUNE-3: an owner gets no more than the quota a day and one piece of work, another owner's work counts
        /// nothing, and who is over hears a time at which work goes on.
        #[test]
        fn nobody_gets_more_than_a_quota_a_day(
            work in proptest::collection::vec((0u64..4000, 0u64..30, 0..2u8), 1..200), limit in 1u64..100,
        ) {
            let (mut spent, mut now, mut today) = (Spent::default(), 0, BTreeMap::new());
            for (pause, tokens, owner) in work {
                now += pause;
                let name = format!("owner{owner}");
                let done = today.entry((now / DAY, owner)).or_insert(0);
                match spent.check(&name, Some(limit), now) {
                    Ok(()) => {
                        prop_assert!(*done < limit);
                        *done += tokens;
                        spent.add(&name, tokens, now);
                    }
                    Err(Over { until }) => {
                        prop_assert!(*done >= limit);
                        prop_assert!(until > now && spent.clone().check(&name, Some(limit), until).is_ok());
                    }
                }
                prop_assert_eq!(spent.check(&name, None, now), Ok(()));
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_back() {
        let mut spent = Spent::default();
        spent.add("a", 5, 10 * DAY);
        assert!(spent.check("a", Some(5), 9 * DAY).is_err());
        assert!(spent.check("a", Some(5), 11 * DAY).is_ok());
    }
}
