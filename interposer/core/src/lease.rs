//! Whether a trainer may begin a unit, and what it reports of its lease.
//!
//! ```text
//!   gate        lease        a unit
//!   any         given        begins while units and time are left, unless the process said that the lease is over
//!   any         withdrawn    waits, also if there is none yet (number 0)
//!   open        none         begins: the job has the GPU, and needs no lease
//!   closed      none         waits
//! ```
//!
//! A lease opens the gate as well. A trainer must not take that for an open gate without a lease. So the agent writes a
//! lease before it opens the gate, and closes the gate before it takes the lease away. [`Seen::read`] relies on that.

use crate::word::Word;
use core::sync::atomic::Ordering::Acquire;
use tidegate_abi::gate::waits;
use tidegate_abi::page::{
    GateWords, LEASE_GIVEN, LEASE_NUMBER, LEASE_STATE, LEASE_WITHDRAWN, LEASED_NUMBER, LEASED_OVER,
    LEASED_UNITS, UNIT_BACKWARD, UNIT_MOST, UNIT_TOKENS,
};

/// What fits into [`tidegate_abi::page::MemoryWords::leased`] of a lease's number.
const NUMBER: u64 = u64::MAX >> LEASED_NUMBER;
/// What fits into [`tidegate_abi::page::ProcessWords::unit`] of how many units follow one another.
const MOST: u64 = u64::MAX >> UNIT_MOST;

/// What the words of a device said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// [`GateWords::gate`].
    pub gate: u64,
    /// [`GateWords::lease`].
    pub lease: u64,
    /// [`GateWords::lease_until_ns`].
    pub until_ns: u64,
    /// [`GateWords::lease_units`].
    pub units: u64,
    /// [`GateWords::lease_tokens`].
    pub tokens: u64,
    /// [`GateWords::resident_layers`].
    pub resident: u64,
}

impl Seen {
    /// Reads the words; `None`: they changed meanwhile.
    #[must_use]
    pub fn of(words: &GateWords) -> Option<Self> {
        let rest = [
            &words.lease_until_ns,
            &words.lease_units,
            &words.lease_tokens,
            &words.resident_layers,
        ];
        Self::read(&words.gate, &words.lease, rest)
    }

    /// The same of words of any kind.
    pub fn read<W: Word>(gate: &W, lease: &W, rest: [&W; 4]) -> Option<Self> {
        let seen = gate.load(Acquire);
        let given = lease.load(Acquire);
        let [until_ns, units, tokens, resident] = rest.map(|word| word.load(Acquire));
        let stands = lease.load(Acquire) == given && gate.load(Acquire) == seen;
        stands.then_some(Self {
            gate: seen,
            lease: given,
            until_ns,
            units,
            tokens,
            resident,
        })
    }

    const fn number(&self) -> u64 {
        self.lease >> LEASE_NUMBER & NUMBER
    }
}

/// What may run under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Its number.
    pub number: u64,
    /// Units that may still begin, the next one among them.
    pub units: u64,
    /// By when it has to be over.
    pub until_ns: u64,
    /// Tokens of the window that fits it; 0: as the trainer likes.
    pub tokens: u64,
}

/// What a trainer does before a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The gate is open: it runs what it likes.
    Free,
    /// It runs a unit under its lease.
    Run(Lent),
    /// It says that nothing of it runs under its lease any more, with this word, and asks again.
    Over(u64),
    /// It waits for the words to change.
    Wait,
}

/// The units of a lease in what the process said last; `None`: that it is over.
const fn ran(said: u64, number: u64) -> Option<u64> {
    if said >> LEASED_NUMBER != number {
        Some(0)
    } else if said & LEASED_OVER != 0 {
        None
    } else {
        Some(said & LEASED_UNITS)
    }
}

/// What the process says of a lease.
const fn word(number: u64, units: u64, over: bool) -> u64 {
    let units = if units > LEASED_UNITS {
        LEASED_UNITS
    } else {
        units
    };
    let over = if over { LEASED_OVER } else { 0 };
    (number & NUMBER) << LEASED_NUMBER | over | units
}

/// Whether there is no time for a unit. One unit is begun whatever it takes by the trainer's own account: the agent knows
/// that account, and sized the lease.
const fn too_late(seen: &Seen, ran: u64, unit_ns: u64, now: u64) -> bool {
    let ends = if ran == 0 {
        now
    } else {
        now.saturating_add(unit_ns)
    };
    now >= seen.until_ns || ends > seen.until_ns
}

/// What comes before a unit that takes `unit_ns` by the trainer's own account (0: it does not say). `said` is what the
/// process said of its lease last.
#[must_use]
pub const fn next(seen: &Seen, said: u64, unit_ns: u64, now: u64) -> Next {
    let number = seen.number();
    match (seen.lease & LEASE_STATE, ran(said, number)) {
        (LEASE_GIVEN | LEASE_WITHDRAWN, None) => Next::Wait,
        (LEASE_WITHDRAWN, _) if number == 0 => Next::Wait,
        (LEASE_GIVEN, Some(units))
            if units < seen.units && !too_late(seen, units, unit_ns, now) =>
        {
            Next::Run(Lent {
                number,
                units: seen.units - units,
                until_ns: seen.until_ns,
                tokens: seen.tokens,
            })
        }
        (LEASE_GIVEN | LEASE_WITHDRAWN, Some(units)) => Next::Over(word(number, units, true)),
        _ if waits(seen.gate) => Next::Wait,
        _ => Next::Free,
    }
}

/// What the process says when a unit has ended that began under the lease `number`, and whether the lease is over. `follow`:
/// another unit of its follows at once. `seen`: `None` while the words change.
#[must_use]
pub const fn done(
    seen: Option<&Seen>,
    said: u64,
    number: u64,
    follow: bool,
    unit_ns: u64,
    now: u64,
) -> (u64, bool) {
    let Some(before) = ran(said, number) else {
        return (said, false);
    };
    let units = before + 1;
    let over = match seen {
        // What changes is not the lease of this unit as it was given.
        None => true,
        Some(seen) => {
            seen.number() != number
                || seen.lease & LEASE_STATE != LEASE_GIVEN
                || units >= seen.units
                || too_late(seen, units, unit_ns, now)
        }
    };
    let over = over || !follow;
    (word(number, units, over), over)
}

/// What the process says of a lease that it needs no longer; `None`: it has none.
#[must_use]
pub const fn given_back(seen: &Seen, said: u64) -> Option<u64> {
    let number = seen.number();
    match (seen.lease & LEASE_STATE, ran(said, number)) {
        (LEASE_GIVEN | LEASE_WITHDRAWN, Some(units)) if number != 0 => {
            Some(word(number, units, true))
        }
        _ => None,
    }
}

/// The unit that could run next, as the page says it. What a word cannot hold is said as the most that it can.
#[must_use]
pub const fn unit(backward: bool, tokens: u64, most: u32) -> u64 {
    let tokens = if tokens > UNIT_TOKENS {
        UNIT_TOKENS
    } else {
        tokens
    };
    let most = if most as u64 > MOST {
        MOST
    } else {
        most as u64
    };
    let backward = if backward { UNIT_BACKWARD } else { 0 };
    most << UNIT_MOST | backward | tokens
}

/// How many units follow one another.
#[must_use]
pub const fn most(unit: u64) -> u64 {
    unit >> UNIT_MOST
}

/// What could run next when one of them has run.
#[must_use]
pub const fn one_less(unit: u64) -> u64 {
    if most(unit) == 0 {
        unit
    } else {
        unit - (1 << UNIT_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_abi::page::{GATE_CLOSED, GATE_OPEN, LEASE_NONE};

    const OPEN: u64 = 4 | GATE_OPEN;
    const CLOSED: u64 = 8 | GATE_CLOSED;

    fn given(number: u64, units: u64, until_ns: u64) -> Seen {
        Seen {
            gate: OPEN,
            lease: number << LEASE_NUMBER | LEASE_GIVEN,
            until_ns,
            units,
            ..Seen::default()
        }
    }

    #[test]
    fn an_open_gate_needs_no_lease_and_a_closed_one_keeps_units_back() {
        let mut seen = Seen {
            gate: OPEN,
            ..Seen::default()
        };
        assert_eq!(next(&seen, 0, 0, 5), Next::Free);
        seen.gate = CLOSED;
        assert_eq!(next(&seen, 0, 0, 5), Next::Wait);
        seen.gate = 0;
        assert_eq!(next(&seen, 0, 0, 5), Next::Wait, "nobody has written it");
        seen.lease = LEASE_WITHDRAWN;
        seen.gate = OPEN;
        assert_eq!(
            next(&seen, 0, 0, 5),
            Next::Wait,
            "leases are on, and none was given"
        );
        assert_eq!(given_back(&seen, 0), None);
        seen.lease = 7 << LEASE_NUMBER | LEASE_NONE;
        seen.gate = OPEN;
        assert_eq!(next(&seen, word(7, 2, true), 0, 5), Next::Free);
    }

    #[test]
    fn a_lease_is_over_once_and_with_the_units_that_ran() {
        let seen = given(3, 2, 100);
        let Next::Run(lent) = next(&seen, word(2, 9, true), 10, 50) else {
            panic!("it is a new lease");
        };
        assert_eq!((lent.number, lent.units, lent.until_ns), (3, 2, 100));
        let (said, over) = done(Some(&seen), word(2, 9, true), 3, true, 10, 60);
        assert_eq!((said, over), (word(3, 1, false), false));
        assert!(matches!(next(&seen, said, 10, 60), Next::Run(_)));
        let (said, over) = done(Some(&seen), said, 3, true, 10, 70);
        assert_eq!((said, over), (word(3, 2, true), true));
        assert_eq!(next(&seen, said, 10, 70), Next::Wait, "it was said");
        assert_eq!(done(Some(&seen), said, 3, true, 10, 80), (said, false));
    }

    #[test]
    fn what_is_withdrawn_late_or_last_is_over() {
        let seen = given(3, 9, 100);
        let withdrawn = Seen {
            lease: 3 << LEASE_NUMBER | LEASE_WITHDRAWN,
            ..seen
        };
        assert_eq!(next(&withdrawn, 0, 0, 50), Next::Over(word(3, 0, true)));
        assert_eq!(
            done(Some(&withdrawn), 0, 3, true, 0, 50),
            (word(3, 1, true), true)
        );
        assert_eq!(next(&seen, 0, 0, 100), Next::Over(word(3, 0, true)));
        assert!(
            matches!(next(&seen, 0, 1000, 99), Next::Run(_)),
            "the agent sized it for one unit at least"
        );
        let said = word(3, 1, false);
        assert_eq!(next(&seen, said, 20, 90), Next::Over(word(3, 1, true)));
        assert_eq!(
            done(Some(&seen), 0, 3, false, 0, 50),
            (word(3, 1, true), true),
            "no unit follows"
        );
        assert_eq!(
            done(Some(&given(4, 9, 100)), 0, 3, true, 0, 50),
            (word(3, 1, true), true),
            "it was of an earlier lease"
        );
        assert_eq!(done(None, 0, 3, true, 0, 50), (word(3, 1, true), true));
        assert_eq!(given_back(&withdrawn, said), Some(word(3, 1, true)));
        assert_eq!(given_back(&seen, word(3, 1, true)), None);
        assert_eq!(given_back(&Seen::default(), 0), None);
    }

    #[test]
    fn a_unit_is_said_in_one_word() {
        let said = unit(true, 512, 3);
        assert_eq!(said, 3 << UNIT_MOST | UNIT_BACKWARD | 512);
        assert_eq!(most(one_less(said)), 2);
        assert_eq!(one_less(unit(false, 1, 0)), 1);
        assert_eq!(most(unit(false, u64::MAX, u32::MAX)), MOST);
        assert_eq!(unit(false, u64::MAX, 0), UNIT_TOKENS);
    }

    proptest! {
        /// Whatever an agent gives and takes away: units begin only with an open gate or within their lease, never more of
        /// them than it has and never after its end, and each lease in which one began is over once and names its units.
        #[test]
        fn units_stay_within_their_leases(
            script in proptest::collection::vec((0_u64..4, 0_u64..4, 1_u64..60, 0_u64..3, any::<bool>()), 1..60),
            unit_ns in 0_u64..20,
        ) {
            let (mut seen, mut said, mut now) = (Seen::default(), 0, 0);
            let (mut number, mut ran, mut overs) = (0, 0, 0);
            for (what, units, span, passes, follow) in script {
                match what {
                    // The agent gives one only when the one before is over, or has been taken away.
                    0 => {
                        number += 1;
                        (ran, overs) = (0, 0);
                        seen = given(number, units, now + span);
                    }
                    1 if seen.lease & LEASE_STATE == LEASE_GIVEN => seen.lease ^= LEASE_GIVEN ^ LEASE_WITHDRAWN,
                    2 => {
                        seen.gate = CLOSED;
                        seen.lease &= !LEASE_STATE;
                    }
                    _ => {}
                }
                now += passes;
                match next(&seen, said, unit_ns, now) {
                    Next::Free => prop_assert!(!waits(seen.gate) && seen.lease & LEASE_STATE == LEASE_NONE),
                    Next::Over(word) => {
                        prop_assert_eq!(word & LEASED_UNITS, ran);
                        said = word;
                        overs += 1;
                        prop_assert_eq!(next(&seen, said, unit_ns, now), Next::Wait);
                    }
                    Next::Run(lent) => {
                        prop_assert_eq!(lent.number, number);
                        prop_assert!(ran < seen.units && now < seen.until_ns && overs == 0);
                        ran += 1;
                        now += span;
                        let (word, over) = done(Some(&seen), said, number, follow, unit_ns, now);
                        prop_assert_eq!(word & LEASED_UNITS, ran);
                        said = word;
                        overs += u64::from(over);
                        prop_assert!(over || (follow && now < seen.until_ns && ran < seen.units));
                    }
                    Next::Wait => {}
                }
                prop_assert!(overs <= 1);
            }
        }
    }
}
