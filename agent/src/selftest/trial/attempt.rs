//! One level by one method, tried once.

use super::{RESUME, SETTLE, Trial};
use crate::config::{Level, Method};
use crate::rm::Driver;
use crate::selftest::work::{KERNEL_NS, STEPS};
use std::time::Duration;
use tidegate_driver::stop_and_resume::{Counters, Kernel, Seen, Terms, Work, stop_and_resume};
use tidegate_node::kinds::Switch;

impl Trial {
    /// Stops the work, sees it stand still, and lets it go on; where it stood, and whether it went on to the
    /// end of its kernel first.
    pub(super) fn round(
        &mut self,
        driver: &Driver,
        level: Level,
        method: Method,
    ) -> Result<(Vec<u64>, bool), String> {
        let mut attempt = Attempt {
            trial: self,
            driver,
            level,
            method,
        };
        attempt.round()
    }
}

/// One level by one method.
struct Attempt<'a> {
    trial: &'a mut Trial,
    driver: &'a Driver,
    level: Level,
    method: Method,
}

impl Attempt<'_> {
    fn round(&mut self) -> Result<(Vec<u64>, bool), String> {
        let terms = Terms {
            orders: 2,
            settle: SETTLE,
            still: self.trial.still,
            kernel: Some(Kernel {
                steps: STEPS,
                length: Duration::from_nanos(KERNEL_NS),
            }),
            resume: RESUME,
        };
        match stop_and_resume(self, &terms)? {
            Seen::Held { at, late } => Ok((at, late)),
            Seen::WentOn { counter, .. } => Err(format!(
                "the driver says disabled, and work on CUDA device {counter} goes on"
            )),
            Seen::Stuck { counter } => Err(format!(
                "the driver says enabled, and work on CUDA device {counter} stands still"
            )),
            Seen::Ended => Err("its GPU work is not kept queued".to_owned()),
        }
    }
}

impl Counters for Attempt<'_> {
    type Error = String;

    fn counters(&mut self) -> Result<Vec<u64>, String> {
        self.trial.counters()
    }

    fn pass(&mut self, time: Duration) {
        self.trial.pass(time);
    }
}

impl Work for Attempt<'_> {
    fn set(&mut self, disable: bool) -> Result<(), String> {
        let (level, method) = (self.level, self.method);
        let switch = if disable {
            Switch::Disable
        } else {
            Switch::Enable
        };
        self.trial.set_all(self.driver, level, method, switch)
    }

    fn loaded(&mut self) -> Result<Vec<u64>, String> {
        self.trial.loaded()
    }
}
