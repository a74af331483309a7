//! Which request a preemption on one GPU is charged to.
//!
//! If an engine reports requests: to every online request in flight at the disable. If there is none, to the next
//! request: its busy edge is what stopped offline, and its report merely came later. Otherwise to the busy period of
//! the GPU.

use crate::ids::{RequestId, SessionId};
use crate::view::{PerUnit, Unit};

/// Requests charged one by one per GPU; those beyond go uncharged.
const REQUESTS: usize = 4096;

/// The books of one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges {
    requests: Vec<(SessionId, RequestId, u64)>,
    /// Waits for the next request to start.
    next: u64,
    hinted: bool,
    period: u64,
    by_request: PerUnit,
    by_period: PerUnit,
}

impl Charges {
    pub fn request_started(&mut self, session: SessionId, request: RequestId) {
        self.hinted = true;
        if self.requests.len() < REQUESTS {
            self.requests
                .push((session, request, core::mem::take(&mut self.next)));
        }
    }

    pub fn request_ended(&mut self, session: SessionId, request: RequestId) {
        if let Some(at) = self
            .requests
            .iter()
            .position(|r| (r.0, r.1) == (session, request))
        {
            let (_, _, charged) = self.requests.swap_remove(at);
            add(&mut self.by_request, charged);
        }
    }

    /// A process is gone: what it had in flight ended.
    pub fn session_gone(&mut self, session: SessionId) {
        while let Some(&(_, request, _)) = self.requests.iter().find(|r| r.0 == session) {
            self.request_ended(session, request);
        }
    }

    pub fn preempted(&mut self) {
        self.period += 1;
        for request in &mut self.requests {
            request.2 += 1;
        }
        if self.hinted && self.requests.is_empty() {
            self.next += 1;
        }
    }

    pub fn period_ended(&mut self) {
        let charged = core::mem::take(&mut self.period);
        add(&mut self.by_period, charged);
    }

    pub fn per_unit(&self) -> PerUnit {
        if self.hinted {
            PerUnit {
                unit: Unit::Request,
                ..self.by_request
            }
        } else {
            PerUnit {
                unit: Unit::BusyPeriod,
                ..self.by_period
            }
        }
    }
}

fn add(sum: &mut PerUnit, charged: u64) {
    sum.units += 1;
    sum.preemptions += charged;
    sum.max = sum.max.max(charged);
    sum.untouched += u64::from(charged == 0);
    sum.once += u64::from(charged == 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: SessionId = SessionId(1);

    #[test]
    fn a_preemption_is_charged_to_every_request_in_flight_or_to_the_next() {
        let mut charges = Charges::default();
        charges.request_started(ENGINE, RequestId(0));
        charges.request_ended(ENGINE, RequestId(0));
        charges.preempted();
        charges.request_started(ENGINE, RequestId(1));
        charges.request_started(ENGINE, RequestId(2));
        charges.preempted();
        charges.request_ended(ENGINE, RequestId(1));
        charges.request_ended(ENGINE, RequestId(2));
        let sum = charges.per_unit();
        assert_eq!(
            (sum.unit, sum.units, sum.preemptions, sum.max),
            (Unit::Request, 3, 3, 2)
        );
        assert_eq!((sum.untouched, sum.once), (1, 1));
    }

    #[test]
    fn without_hints_the_unit_is_the_busy_period() {
        let mut charges = Charges::default();
        charges.preempted();
        charges.period_ended();
        charges.period_ended();
        let sum = charges.per_unit();
        assert_eq!(
            (sum.unit, sum.units, sum.preemptions, sum.max),
            (Unit::BusyPeriod, 2, 1, 1)
        );
        assert_eq!((sum.untouched, sum.once), (1, 1));
    }
}
