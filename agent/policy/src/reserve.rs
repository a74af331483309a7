//! How much memory online keeps mapped ahead of need.
//!
//! * *Reservation*: what online has mapped.
//! * *Headroom*: what it has mapped beyond its use.
//! * *Pressure*: 90 % of the reservation is in use, so the headroom is mapped anew before it is needed.
//! * *Shortage* (an allocation stall): the use exceeded the reservation, so online waited for a reclaim.
//!
//! The operator sets how often shortages may occur, and the headroom is adjusted to that:
//!
//! ```text
//!   pressure                        map up to use and headroom
//!   shortage                        headroom x 1.12 (x 2 until it once sufficed); map up to it
//!   no shortage for an interval T   headroom - one step
//!   use falls                       what is mapped beyond use and headroom is given back
//!   T = step / (headroom x ln 1.12) x the accepted time between two shortages
//! ```
//!
//! Pressure alone does not grow the headroom. A burst that rises more slowly than memory is mapped causes pressure
//! again and again, but never waits; when it grew the headroom, offline had the memory for half of the day only.
//!
//! If a budget says how often shortages may occur, a shortage adds what it lacked, 12 to 100 per cent, and T divides by
//! the logarithm of that instead. The headroom begins as if a shortage had just doubled its minimum: nothing is earned
//! yet from which a shortage could be paid, and the addition is gone when the next one is accepted.
//!
//! T is chosen so that what one shortage adds is gone when the next one is due. So the headroom is stable only where
//! shortages occur as often as accepted, whatever the load is. If they occur more often, T soon exceeds the time
//! between them, and the headroom grows. The plain rule (T x 2 if a sliding window contains too many events, T - delta
//! otherwise) kept the rate at a tenth of the target for hours, and offline without most of the memory: a window
//! forgets how far the headroom is from where it should be, and one outlier takes as long to give back as many.
//!
//! Invariants: the headroom stays within its bounds; the reservation never falls to where the current use would be
//! pressure; the answer to pressure ends it.

use crate::config::Reserving;
use crate::ids::Bytes;
use crate::time::{Instant, nanos};
use core::time::Duration;
use std::collections::VecDeque;

/// Shortages remembered for the rate that status shows.
const REMEMBERED: usize = 64;

/// What changed, and to which reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pressure: map up to this.
    Grow(Bytes),
    /// Give back down to this.
    Shrink(Bytes),
}

/// The reservation of one online process on one GPU.
#[derive(Clone, Debug)]
pub struct Reserve {
    config: Reserving,
    started: Instant,
    used: Bytes,
    reservation: Bytes,
    headroom: Bytes,
    /// The last shortage, or the start.
    short: Instant,
    /// Since when the headroom is what it is.
    since: Instant,
    /// It has sufficed for `pressure_every` once.
    sufficed: bool,
    /// A budget says how often shortages may come.
    steered: bool,
    /// It may be steered from its beginning on: neither was it yet, nor went it on by other rules.
    begins: bool,
    /// What the last shortage made of the headroom, in per cent of what that was.
    grew: u64,
    /// Shortages, oldest first.
    recent: VecDeque<Instant>,
    events: u64,
}

/// The natural logarithm of a growth of 100 to 200 per cent, in thousandths: 2 artanh y with y = (g - 1) / (g + 1),
/// which is at most a third, so that three terms are within two thousandths.
fn ln_thousandths(percent: u64) -> u64 {
    const ONE: u64 = 1_000_000;
    let y = percent.saturating_sub(100) * ONE / (percent + 100);
    let cube = y * y / ONE * y / ONE;
    let fifth = cube * y / ONE * y / ONE;
    2 * (y + cube / 3 + fifth / 5) / 1_000
}

/// Rules that can be kept.
fn sane(config: Reserving) -> Reserving {
    Reserving {
        step: config.step.max(Bytes(1)),
        min: config.min.max(config.step).max(Bytes(1)),
        max: config.max.max(config.min).max(config.step),
        pressure_percent: config.pressure_percent.clamp(1, 100),
        ..config
    }
}

impl Reserve {
    /// Nothing used, the least headroom mapped.
    #[must_use]
    pub fn new(config: Reserving, now: Instant) -> Self {
        let config = sane(config);
        Self {
            started: now,
            used: Bytes::ZERO,
            reservation: config.min.round_up(config.step),
            headroom: config.min,
            short: now,
            since: now,
            sufficed: false,
            steered: false,
            begins: true,
            grew: Reserving::GROWTH,
            recent: VecDeque::with_capacity(REMEMBERED),
            events: 0,
            config,
        }
    }

    /// Goes on by other rules: the headroom moves into their bounds at once.
    pub fn configure(&mut self, config: Reserving, now: Instant) {
        self.config = sane(config);
        (self.steered, self.begins) = (false, false);
        self.headroom = self.headroom.clamp(self.config.min, self.config.max);
        self.since = now;
        // What it has too much is given back when it is settled next.
        self.reservation = self.reservation.max(self.wanted());
    }

    /// Shortages may come this often from here on, as a budget says. From then on one adds what it lacked,
    /// from [`Reserving::GROWTH`] up to [`Reserving::FIRST_GROWTH`], as there is no saying when it has sufficed.
    pub fn steer(&mut self, every: Duration, now: Instant) {
        if core::mem::take(&mut self.begins) {
            let begins = self.config.min.times(Reserving::FIRST_GROWTH).0 / 100;
            self.headroom = self.headroom.max(Bytes(begins).min(self.config.max));
            self.grew = Reserving::FIRST_GROWTH;
            self.reservation = self.reservation.max(self.wanted());
        }
        self.steered = true;
        if every == self.config.pressure_every {
            return;
        }
        self.age(now);
        // The part of an interval that is over stays the same part.
        let (over, before) = (nanos(now.since(self.since)), nanos(self.interval()));
        self.config.pressure_every = every;
        let after = u128::from(over) * u128::from(nanos(self.interval())) / u128::from(before);
        let after = Duration::from_nanos(u64::try_from(after).unwrap_or(u64::MAX));
        self.since = Instant::from_nanos(now.as_nanos().saturating_sub(nanos(after)));
    }

    /// What is to be mapped.
    #[must_use]
    pub const fn reservation(&self) -> Bytes {
        self.reservation
    }

    /// What is to be mapped beyond use.
    #[must_use]
    pub const fn headroom(&self) -> Bytes {
        self.headroom
    }

    /// T: calm that costs the headroom one step.
    #[must_use]
    pub fn interval(&self) -> Duration {
        // 128 bits hold any step times any span.
        let every = u128::from(nanos(self.config.pressure_every));
        let ln = match self.steered {
            true => ln_thousandths(self.grew),
            false => Reserving::GROWTH_LN,
        };
        let lost = u128::from(self.headroom.0.max(1)) * u128::from(ln);
        let ns = every * u128::from(self.config.step.0) * 1_000 / lost;
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX).max(1))
    }

    /// Shortages so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Shortages per minute: over the last 64 of them, or since the start.
    #[must_use]
    pub fn rate_per_minute(&self, now: Instant) -> f64 {
        let begin = match self.recent.front() {
            Some(oldest) if self.recent.len() == REMEMBERED => *oldest,
            _ => self.started,
        };
        self.recent.len() as f64 * 60.0 / now.since(begin).as_secs_f64().max(1.0)
    }

    /// What that is steered towards; `None` if shortages may follow each other at once.
    #[must_use]
    pub fn target_per_minute(&self) -> Option<f64> {
        let every = self.config.pressure_every.as_secs_f64();
        (every > 0.0).then_some(60.0 / every)
    }

    /// When the headroom loses a step if nothing happens before.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        (self.headroom > self.config.min).then(|| self.since.after(self.interval()))
    }

    /// The use is this. Also to be called, with the same, when [`Reserve::due`] has come.
    pub fn settle(&mut self, used: Bytes, now: Instant) -> Option<Change> {
        let lacked = used.minus(self.used);
        self.used = used;
        self.age(now);
        let every = self.config.pressure_every;
        self.sufficed = self.sufficed || (self.events > 0 && now.since(self.short) > every);
        if used >= self.mark() {
            return Some(self.press(lacked, now));
        }
        let wanted = self.wanted();
        (wanted < self.reservation).then(|| {
            self.reservation = wanted;
            Change::Shrink(wanted)
        })
    }

    /// Takes from the headroom what calm has cost it by now.
    fn age(&mut self, now: Instant) {
        while let Some(due) = self.due().filter(|due| *due <= now) {
            self.since = due;
            self.headroom = self.headroom.minus(self.config.step).max(self.config.min);
        }
        if self.due().is_none() {
            self.since = now;
        }
    }

    fn press(&mut self, lacked: Bytes, now: Instant) -> Change {
        if self.used > self.reservation {
            self.fell_short(lacked, now);
        }
        self.reservation = self.wanted();
        Change::Grow(self.reservation)
    }

    fn fell_short(&mut self, lacked: Bytes, now: Instant) {
        let Reserving { min, max, .. } = self.config;
        let growth = if self.sufficed {
            Reserving::GROWTH
        } else {
            Reserving::FIRST_GROWTH
        };
        self.events += 1;
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        (self.short, self.since) = (now, now);
        let times = |percent: u64| Bytes(self.headroom.times(percent).0 / 100);
        let grown = if self.steered {
            lacked
                .min(times(Reserving::FIRST_GROWTH))
                .max(times(Reserving::GROWTH))
        } else {
            times(growth)
        };
        let grown = grown.clamp(min, max);
        let grew = grown.0.saturating_mul(100) / self.headroom.0.max(1);
        self.grew = grew.clamp(Reserving::GROWTH, Reserving::FIRST_GROWTH);
        self.headroom = grown;
    }

    /// Use and headroom, and never so little that this use is pressure.
    fn wanted(&self) -> Bytes {
        let percent = u64::from(self.config.pressure_percent);
        let relieved = Bytes(self.used.0.saturating_mul(100) / percent).plus(Bytes(1));
        let wanted = self.used.plus(self.headroom).max(relieved);
        wanted.round_up(self.config.step)
    }

    /// The use from which on there is pressure.
    fn mark(&self) -> Bytes {
        let percent = u64::from(self.config.pressure_percent);
        Bytes(self.reservation.0.saturating_mul(percent).div_ceil(100))
    }
}
