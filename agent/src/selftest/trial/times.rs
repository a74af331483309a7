//! How long a stop takes, GPU by GPU: until the stopped kernel makes no more progress, and until the call returns.
//!
//! The two are not the same. Firmware takes work off the GPU before it has answered for every channel of the list, and
//! some takes it off only at the end of a kernel. The child watches the counter of a kernel of short steps, and says
//! when it last moved.

use super::{ANSWER_NS, RESUME, Trial};
use crate::clock::{nanos, now_ns};
use crate::config::{Level, Method};
use crate::rm::Driver;
use crate::selftest::verdict::{Spread, Times};
use crate::selftest::work::FINE_STEP_NS;
use tidegate_abi::uuid::Uuid;
use tidegate_driver::stop_and_resume::goes_on;
use tidegate_node::kinds::Switch;

/// Stops on each GPU, at most.
const STOPS: usize = 15;
/// Stops on each GPU whose last progress somebody saw, at least, if so many are seen at all.
const LEAST: usize = 3;
/// No further stop begins after this long on one GPU.
const ENOUGH_NS: u64 = 500_000_000;
/// A counter that was looked at no more often than this says nothing.
const BLIND_NS: u64 = 1_000_000;

/// One stop, in nanoseconds from the order.
struct Stop {
    /// To the last progress; None: nobody looked at that moment.
    off_gpu: Option<u64>,
    /// To the return of the call.
    call: u64,
}

impl Trial {
    /// Times stops of the work on each GPU. A GPU on which they cannot be timed has no entry; that says nothing of
    /// the level.
    pub(super) fn times(&mut self, driver: &Driver, by: (Level, Method)) -> Vec<Times> {
        let mut all = Vec::new();
        for (index, gpu) in driver.gpus.iter().enumerate() {
            match self.times_on(driver, index, by) {
                Ok(times) => all.push(times),
                Err(why) => {
                    let _ = self.set_on(driver, index, by, Switch::Enable);
                    tracing::warn!(gpu = gpu.minor, "the self-test timed no stops: {why}");
                }
            }
        }
        all
    }

    fn times_on(
        &mut self,
        driver: &Driver,
        index: usize,
        by: (Level, Method),
    ) -> Result<Times, String> {
        let uuid = driver.gpus[index].uuid;
        let named = Uuid(uuid).to_string();
        let device = self.devices.iter().position(|known| *known == named);
        let device = device.ok_or("CUDA does not show this GPU to the self-test")?;
        self.switch(&format!("fine {device}"))?;
        let begun = now_ns();
        let mut stops: Vec<Stop> = Vec::new();
        let seen = |stops: &[Stop]| stops.iter().filter(|stop| stop.off_gpu.is_some()).count();
        while stops.len() < STOPS && (seen(&stops) < LEAST || now_ns() - begun < ENOUGH_NS) {
            stops.push(self.stop(driver, (index, device), by)?);
        }
        let off_gpu = stops.iter().filter_map(|stop| stop.off_gpu).collect();
        Ok(Times {
            uuid,
            method: by.1,
            off_gpu: Spread::of(off_gpu),
            call: Spread::of(stops.iter().map(|stop| stop.call).collect()),
            stops: u32::try_from(stops.len()).unwrap_or(u32::MAX),
        })
    }

    fn stop(
        &mut self,
        driver: &Driver,
        (index, device): (usize, usize),
        by: (Level, Method),
    ) -> Result<Stop, String> {
        self.loaded()?;
        let watch = format!("watch {device} {}", nanos(self.still));
        if self.ask(&watch)? != "watching" {
            return Err("its GPU work is not watched".to_owned());
        }
        let entered = now_ns();
        self.set_on(driver, index, by, Switch::Disable)?;
        let call = now_ns() - entered;
        let seen = self.until(ANSWER_NS, Self::line);
        let seen = seen.ok_or("its GPU work does not answer")?;
        let (last, blind, value) = stood_still(&seen).ok_or(seen)?;
        let before: Vec<u64> = self.read()?.into_iter().map(|(value, _)| value).collect();
        self.set_on(driver, index, by, Switch::Enable)?;
        goes_on(self, &before, RESUME)?.map_err(|_| "its GPU work does not go on".to_owned())?;
        // It made no further step, so it stopped within the one that follows its last.
        let stopped = (last + FINE_STEP_NS).saturating_sub(entered);
        let known = blind <= BLIND_NS && before.get(device) == Some(&value) && stopped != 0;
        Ok(Stop {
            off_gpu: known.then_some(stopped),
            call,
        })
    }
}

/// When a counter last moved, how long nobody had looked at it then, and where it stands.
fn stood_still(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.strip_prefix("still ")?.split(' ');
    let mut number = || words.next()?.parse().ok();
    Some((number()?, number()?, number()?))
}
