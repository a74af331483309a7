//! Answers to orders: only the answer to a lane's latest order moves it.

use super::{Job, Lane, LaneState, Mode};
use crate::config::Config;
use crate::effect::{Effect, Report};
use crate::event::Order;
use crate::ids::GpuSet;
use crate::time::Instant;
use core::time::Duration;

/// How long an enable that was skipped because online turned out busy is not tried again, should
/// the reading that says so never come.
const SKIP_HOLD: Duration = Duration::from_millis(1);

impl Job {
    fn answered(&mut self, order: Order, expected: LaneState) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| {
            lane.gpu == order.gpu && lane.generation == order.generation && lane.state == expected
        })
    }

    pub fn disabled(&mut self, order: Order, entered: Instant, returned: Instant) {
        if let Some(lane) = self.answered(order, LaneState::Disabling) {
            lane.state = LaneState::Disabled;
            self.stop.entered = self.stop.entered.max(entered);
            self.stop.returned = self.stop.returned.max(returned);
        }
    }

    pub fn disable_failed(&mut self, order: Order, status: u32, out: &mut Vec<Effect>) {
        if self.answered(order, LaneState::Disabling).is_none() {
            return;
        }
        self.trouble.failures += 1;
        self.ordered.mode = Mode::Recovering;
        self.ordered.reread = true;
        self.disturb(self.gpus);
        let report = Report::DisableFailed {
            order,
            status,
            failures: self.trouble.failures,
        };
        out.push(Effect::Emit(report));
    }

    pub fn enabled(&mut self, order: Order) {
        if let Some(lane) = self.answered(order, LaneState::Enabling) {
            lane.state = LaneState::Enabled;
            lane.retry = Duration::ZERO;
            lane.failures = 0;
        }
    }

    pub fn enable_failed(
        &mut self,
        order: Order,
        status: Option<u32>,
        config: &Config,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let Some(lane) = self.answered(order, LaneState::Enabling) else {
            return;
        };
        if lane.retry.is_zero()
            && let Some(status) = status
        {
            out.push(Effect::Emit(Report::EnableFailed { order, status }));
        }
        lane.failures = lane.failures.saturating_add(1);
        lane.retry = (lane.retry * 2).clamp(config.enable_retry, Config::ENABLE_RETRY_MAX);
        lane.state = LaneState::Failed {
            retry_at: now.after(lane.retry),
        };
    }

    pub fn enable_skipped(
        &mut self,
        order: Order,
        config: &Config,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if self.ordered.mode != Mode::Managed {
            // That order was unconditional.
            return self.enable_failed(order, None, config, now, out);
        }
        if let Some(lane) = self.answered(order, LaneState::Enabling) {
            // It need not have been disabled before, so it is disabled now.
            lane.state = LaneState::Unknown;
            self.trouble.skip_until = Some(now.after(SKIP_HOLD));
            out.push(Effect::ReadActivity {
                gpus: GpuSet::of(order.gpu),
            });
        }
    }
}
