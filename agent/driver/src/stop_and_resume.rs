//! Whether work stands still while it is disabled, and goes on when it is enabled.
//!
//! What the driver answers proves nothing: firmware was seen that answers OK and stops nothing. So the work
//! counts its steps where the host sees them, and the counters are the judge:
//!
//! ```text
//!  disable -> settle -> look, wait, look again --- moved? --> past the end of its kernel, once more
//!                            | stands still                        | moved, or stopped inside of one
//!                            v                                     v
//!          enable -> looks until all have moved                 WentOn, and still disabled
//!                            |            | one has not
//!                            v            v
//!                          Held         Stuck
//! ```

use crate::sys::monotonic_ns;
use std::time::Duration;

/// Work that counts its steps.
pub trait Counters {
    /// Why they cannot be read.
    type Error;

    /// Steps made so far, one number for each GPU that works.
    ///
    /// # Errors
    /// When they cannot be read.
    fn counters(&mut self) -> Result<Vec<u64>, Self::Error>;

    /// Lets time pass.
    fn pass(&mut self, time: Duration);

    /// Called before a counter that has not moved is looked at again.
    fn look_again(&mut self) {}
}

/// Work that can be disabled.
pub trait Work: Counters {
    /// Disables or enables it, everywhere.
    ///
    /// # Errors
    /// The driver's answer, or that of who was asked to do it.
    fn set(&mut self, disable: bool) -> Result<(), Self::Error>;

    /// As [`Counters::counters`], once there is work queued behind each: what has nothing to do stands still
    /// whatever the driver did.
    ///
    /// # Errors
    /// When there is none.
    fn loaded(&mut self) -> Result<Vec<u64>, Self::Error> {
        self.counters()
    }

    /// Whether all work had ended at these counters, so that they prove nothing.
    fn has_ended(&mut self, _counters: &[u64]) -> bool {
        false
    }
}

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How often each order is given: orders are repeated, so each must be harmless the second time.
    pub orders: u32,
    /// After a disable returned, until what its last step wrote has reached the host.
    pub settle: Duration,
    /// How long disabled work must stand still.
    pub still: Duration,
    /// The kernels it is made of, where work may go on to the end of one.
    pub kernel: Option<Kernel>,
    /// How long enabled work may take to go on.
    pub resume: Duration,
}

/// A kernel of the work.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its steps.
    pub steps: u64,
    /// How long it runs alone.
    pub length: Duration,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It stood still, and went on.
    Held {
        /// Where it stood.
        at: Vec<u64>,
        /// It went on after the driver's word, to the end of its kernel.
        late: bool,
    },
    /// It went on while disabled, and still is disabled.
    WentOn {
        /// The first counter that did.
        counter: usize,
        /// Steps it made while it was watched.
        steps: u64,
    },
    /// It did not go on when enabled.
    Stuck {
        /// The first counter that did not.
        counter: usize,
    },
    /// It had ended, and is disabled.
    Ended,
}

/// Stops the work, sees it stand still, and lets it go on.
///
/// # Errors
/// As what the work is asked. It may be disabled then.
pub fn stop_and_resume<W: Work>(work: &mut W, terms: &Terms) -> Result<Seen, W::Error> {
    for _ in 0..terms.orders {
        work.set(true)?;
    }
    work.pass(terms.settle);
    let mut watched = watch(work, terms.still)?;
    if work.has_ended(&watched.after) {
        return Ok(Seen::Ended);
    }
    let mut late = false;
    if watched.went_on().is_some()
        && let Some(kernel) = terms.kernel
    {
        // What was inside of a kernel may go on to its end.
        work.pass(2 * kernel.length);
        watched = watch(work, terms.still)?;
        late = true;
        let inside = |steps: &u64| !steps.is_multiple_of(kernel.steps);
        if watched.went_on().is_none()
            && let Some(counter) = watched.after.iter().position(inside)
        {
            return Ok(Seen::WentOn { counter, steps: 0 });
        }
    }
    if let Some((counter, steps)) = watched.went_on() {
        return Ok(Seen::WentOn { counter, steps });
    }
    for _ in 0..terms.orders {
        work.set(false)?;
    }
    let at = watched.after;
    Ok(match goes_on(work, &at, terms.resume)? {
        Ok(()) => Seen::Held { at, late },
        Err(counter) => Seen::Stuck { counter },
    })
}

/// Waits until every counter has passed `from`; the first that has not in time.
///
/// # Errors
/// When they cannot be read.
pub fn goes_on<C: Counters>(
    work: &mut C,
    from: &[u64],
    limit: Duration,
) -> Result<Result<(), usize>, C::Error> {
    let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let end = monotonic_ns().saturating_add(limit);
    loop {
        let now = work.counters()?;
        let stands = from.iter().zip(&now).position(|(from, now)| now <= from);
        match stands {
            None => return Ok(Ok(())),
            Some(counter) if monotonic_ns() >= end => return Ok(Err(counter)),
            Some(_) => work.look_again(),
        }
    }
}

struct Watched {
    before: Vec<u64>,
    after: Vec<u64>,
}

impl Watched {
    fn went_on(&self) -> Option<(usize, u64)> {
        let each = self.before.iter().zip(&self.after).enumerate();
        let mut steps = each.map(|(counter, (before, after))| (counter, after.abs_diff(*before)));
        steps.find(|(_, steps)| *steps != 0)
    }
}

fn watch<W: Work>(work: &mut W, time: Duration) -> Result<Watched, W::Error> {
    let before = work.loaded()?;
    work.pass(time);
    let after = work.loaded()?;
    Ok(Watched { before, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a kernel.
    const STEPS: u64 = 10;

    /// What a driver makes of an order.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Firmware {
        Stops,
        StopsAtKernelEnd,
        OnlySaysSo,
        NeverResumes,
    }

    /// Two GPUs: one always does as it is told, in whole kernels; the other is what firmware makes of it.
    struct Fake {
        firmware: Firmware,
        disabled: bool,
        orders: Vec<bool>,
        counters: [u64; 2],
        launched: u64,
    }

    impl Fake {
        fn new(firmware: Firmware) -> Self {
            Self {
                firmware,
                disabled: false,
                orders: Vec::new(),
                counters: [0, 3],
                launched: u64::MAX,
            }
        }

        fn step(&mut self) {
            let [told, firmware] = &mut self.counters;
            *told += STEPS * u64::from(!self.disabled);
            *firmware += u64::from(match self.firmware {
                Firmware::Stops => !self.disabled,
                Firmware::StopsAtKernelEnd => !self.disabled || !firmware.is_multiple_of(STEPS),
                Firmware::OnlySaysSo => true,
                Firmware::NeverResumes => false,
            });
        }
    }

    impl Counters for Fake {
        type Error = ();

        fn counters(&mut self) -> Result<Vec<u64>, ()> {
            Ok(self.counters.to_vec())
        }

        fn pass(&mut self, time: Duration) {
            for _ in 0..time.as_millis() {
                self.step();
            }
        }

        fn look_again(&mut self) {
            self.step();
        }
    }

    impl Work for Fake {
        fn set(&mut self, disable: bool) -> Result<(), ()> {
            self.disabled = disable;
            self.orders.push(disable);
            Ok(())
        }

        fn has_ended(&mut self, counters: &[u64]) -> bool {
            counters[1] >= self.launched
        }
    }

    fn terms(kernel: bool) -> Terms {
        Terms {
            orders: 2,
            settle: Duration::ZERO,
            still: Duration::from_millis(5),
            kernel: kernel.then_some(Kernel {
                steps: STEPS,
                length: Duration::from_millis(STEPS),
            }),
            resume: Duration::from_millis(1),
        }
    }

    #[test]
    fn work_holds_that_stands_still_while_disabled_and_goes_on_when_enabled() {
        let mut fake = Fake::new(Firmware::Stops);
        let at = vec![0, 3];
        let held = Seen::Held { at, late: false };
        assert_eq!(stop_and_resume(&mut fake, &terms(true)), Ok(held));
        assert_eq!(fake.orders, [true, true, false, false]);
    }

    #[test]
    fn work_that_goes_on_to_the_end_of_its_kernel_is_late_and_elsewhere_went_on() {
        let mut fake = Fake::new(Firmware::StopsAtKernelEnd);
        let at = vec![0, STEPS];
        let late = Seen::Held { at, late: true };
        assert_eq!(stop_and_resume(&mut fake, &terms(true)), Ok(late));
        let mut fake = Fake::new(Firmware::StopsAtKernelEnd);
        let (counter, steps) = (1, 5);
        let went_on = Seen::WentOn { counter, steps };
        assert_eq!(stop_and_resume(&mut fake, &terms(false)), Ok(went_on));
    }

    #[test]
    fn a_driver_that_only_says_so_is_seen_and_leaves_the_work_disabled() {
        let mut fake = Fake::new(Firmware::OnlySaysSo);
        let seen = stop_and_resume(&mut fake, &terms(true));
        assert!(matches!(seen, Ok(Seen::WentOn { counter: 1, .. })));
        assert_eq!(fake.orders, [true, true]);
    }

    #[test]
    fn work_that_does_not_go_on_is_stuck_and_work_that_had_ended_proves_nothing() {
        let mut fake = Fake::new(Firmware::NeverResumes);
        let seen = stop_and_resume(&mut fake, &terms(true));
        assert_eq!(seen, Ok(Seen::Stuck { counter: 1 }));
        let mut fake = Fake::new(Firmware::Stops);
        fake.launched = 3;
        assert_eq!(stop_and_resume(&mut fake, &terms(true)), Ok(Seen::Ended));
    }
}
