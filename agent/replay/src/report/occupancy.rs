//! How much of the GPU's time something had, column by column of a drawing.

use crate::clock::Time;
use crate::record::{Outcome, SpanKind};

/// Shares of the time, from 0 to 1, that spans of these kinds have in each of `columns` equal parts of the `seconds` that
/// begin at `from`.
#[must_use]
pub fn occupancy(
    outcome: &Outcome,
    kinds: &[SpanKind],
    from: f64,
    seconds: f64,
    columns: usize,
) -> Vec<f64> {
    let mut shares = vec![0.0; columns];
    let width = seconds / columns as f64;
    let column = |at: Time| (at.as_secs_f64() - from) / width;
    let spans = outcome.timeline.iter();
    for span in spans.filter(|span| kinds.contains(&span.kind)) {
        let (begin, end) = (
            column(span.from).max(0.0),
            column(span.to).min(columns as f64),
        );
        let mut at = begin;
        while at < end {
            let next = (at.floor() + 1.0).min(end);
            shares[at as usize] += next - at;
            at = next;
        }
    }
    shares
}
