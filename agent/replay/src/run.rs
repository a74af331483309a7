//! Runs one [`Spec`] in virtual time.

use crate::estimate::alone;
use crate::record::{GpuTotals, Outcome, Request};
use crate::spec::{Spec, SpecError};

/// Runs `spec` from its first arrival to its last token. The same spec gives the same outcome,
/// byte for byte.
///
/// # Errors
/// When the spec cannot be run: no requests, zero tokens, or one that never fits.
pub fn run(spec: &Spec) -> Result<Outcome, SpecError> {
    if spec.online.trace.is_empty() {
        return Err(SpecError::NoRequests);
    }
    if spec.offline.lengths.is_empty() {
        return Err(SpecError::NoOffline);
    }
    let estimate = alone(
        &spec.online.trace,
        spec.online.model.cost,
        &spec.online.gaps,
        spec.seed,
    );
    let length = estimate.end.since(crate::clock::Time::ZERO);
    let idle: std::time::Duration = estimate.idle.iter().map(|i| i.to.since(i.from)).sum();
    Ok(Outcome {
        length,
        requests: estimate
            .served
            .iter()
            .map(|served| Request {
                arrival: served.arrival,
                first_token: served.first_token,
                last_token: served.last_token,
                tokens: served.tokens,
                preemptions: 0,
            })
            .collect(),
        gpu: GpuTotals {
            online: length.saturating_sub(idle),
            ..GpuTotals::default()
        },
        ..Outcome::default()
    })
}
