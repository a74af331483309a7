//! The monotonic clock of a process, compared with the agent's.
//!
//! The times of a process are not the agent's if the process is in a time namespace (a restored container, one with
//! `timeOffsets`), in a sandbox with its own kernel, or under a library that fakes clocks. The difference of the clocks
//! does not change during a session, because a process that is restored elsewhere connects anew. So the agent measures
//! the difference once, when the process attaches, and converts every time that passes between them.

/// A difference of two clocks above this is reported.
const TOLD_NS: u64 = 1_000_000;

/// The time that a process reported, and when, by the agent's clock, that must have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The time on the clock of the process.
    pub theirs_ns: u64,
    /// Not before this: the agent had not sent its greeting yet.
    pub from_ns: u64,
    /// Not after this: the agent had received the report.
    pub to_ns: u64,
}

/// The difference between the clock of a process and the agent's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessClock {
    /// Below 0: the process' clock is behind.
    ahead_ns: i64,
    /// The largest possible error.
    unsure_ns: u64,
}

impl ProcessClock {
    /// Finds the difference. `kernel`: what the kernel says about the time namespaces of both, if it can be asked.
    /// `stamp`: the time that the process reported; its library may be too old to report one. None: there is neither.
    ///
    /// The kernel's answer is exact, but covers time namespaces only. So it is used unless the stamp contradicts
    /// it. Clocks that can be the same count as the same.
    #[must_use]
    pub fn found(kernel: Option<i64>, stamp: Option<Stamp>) -> Option<Self> {
        let exact = |ahead_ns| Self {
            ahead_ns,
            unsure_ns: 0,
        };
        let Some(stamp) = stamp else {
            return kernel.map(exact);
        };
        let apart = |ours: u64| {
            let apart = i128::from(stamp.theirs_ns) - i128::from(ours);
            i64::try_from(apart).unwrap_or(if apart < 0 { i64::MIN } else { i64::MAX })
        };
        let (least, most) = (apart(stamp.to_ns), apart(stamp.from_ns));
        let fits = |ahead: i64| (least..=most).contains(&ahead).then(|| exact(ahead));
        let known = kernel.and_then(fits).or_else(|| fits(0));
        Some(known.unwrap_or_else(|| {
            let half = most.abs_diff(least) / 2;
            Self {
                ahead_ns: least.saturating_add_unsigned(half),
                unsure_ns: half + 1,
            }
        }))
    }

    /// Converts a time of the process' clock to the agent's. 0 means no time.
    #[must_use]
    pub fn here(self, theirs_ns: u64) -> u64 {
        match theirs_ns {
            0 => 0,
            _ => shifted(theirs_ns, -i128::from(self.ahead_ns)),
        }
    }

    /// Converts a time of the agent's clock to the process'. 0 means no time.
    #[must_use]
    pub fn there(self, ours_ns: u64) -> u64 {
        match ours_ns {
            0 => 0,
            _ => shifted(ours_ns, i128::from(self.ahead_ns)),
        }
    }

    /// For operators; None: it is the agent's clock.
    #[must_use]
    pub fn text(self) -> Option<String> {
        (self.ahead_ns.unsigned_abs() > TOLD_NS).then(|| {
            let side = if self.ahead_ns < 0 {
                "behind"
            } else {
                "ahead of"
            };
            let unsure = match self.unsure_ns {
                0 => String::new(),
                ns => format!(" (to {:.3} ms)", millis(ns)),
            };
            format!(
                "its clock is {:.3} s {side} the agent's{unsure}",
                millis(self.ahead_ns.unsigned_abs()) / 1_000.0
            )
        })
    }
}

fn shifted(at_ns: u64, by: i128) -> u64 {
    let at = i128::from(at_ns) + by;
    // Not 0, which is no time.
    u64::try_from(at.max(1)).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 400_000_000_000_000;

    proptest! {
        /// P-LIFECYCLE-12: whatever the distance and the delays, the distance found is no further from the true one
        /// than is said, and exact where the kernel knows it.
        #[test]
        fn the_distance_is_as_sure_as_is_said(
            ahead in prop_oneof![Just(0), -300_000_000_000_i64..90_000_000_000_000],
            (to, back) in (0_u64..50_000_000, 0_u64..50_000_000),
            asked in any::<bool>(),
        ) {
            let written = NOW + to;
            let stamp = Stamp {
                theirs_ns: written.checked_add_signed(ahead).expect("in range"),
                from_ns: NOW,
                to_ns: written + back,
            };
            let clock = ProcessClock::found(asked.then_some(ahead), Some(stamp)).expect("a stamp");
            let wrong = clock.ahead_ns.abs_diff(ahead);
            if asked || ahead == 0 {
                prop_assert_eq!(wrong, 0);
            }
            // A distance below the round trip cannot be told from none.
            prop_assert!(wrong <= clock.unsure_ns || (clock.ahead_ns == 0 && wrong <= to + back));
            let theirs = clock.there(NOW);
            prop_assert_eq!(clock.here(theirs), NOW);
            prop_assert_eq!((clock.here(0), clock.there(0)), (0, 0));
        }

        #[test]
        fn no_stamp_is_too_wild(theirs_ns: u64, from_ns: u64, to_ns: u64, kernel: Option<i64>, at: u64) {
            let stamp = Stamp { theirs_ns, from_ns, to_ns };
            let clock = ProcessClock::found(kernel, Some(stamp)).expect("a stamp");
            let _ = (clock.here(at), clock.there(at), clock.text());
        }
    }

    #[test]
    fn an_old_library_has_the_distance_that_the_kernel_tells_or_none() {
        assert_eq!(ProcessClock::found(None, None), None);
        let clock = ProcessClock::found(Some(-5_000_000), None).expect("the kernel tells");
        assert_eq!(clock.here(10_000_000), 15_000_000);
        assert_eq!(
            clock.text().as_deref(),
            Some("its clock is 0.005 s behind the agent's")
        );
    }

    #[test]
    fn a_stamp_outweighs_a_kernel_that_knows_only_namespaces() {
        // A sandbox with a kernel of its own: for ours it is in our namespace.
        let stamp = Stamp {
            theirs_ns: 1_000,
            from_ns: NOW,
            to_ns: NOW + 2_000_000,
        };
        let clock = ProcessClock::found(Some(0), Some(stamp)).expect("a stamp");
        let here = clock.here(1_000);
        assert!((NOW..=NOW + 2_000_000).contains(&here), "{here}");
        assert!(clock.unsure_ns <= 1_000_001);
    }
}
