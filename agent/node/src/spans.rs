//! When online was recently busy on each GPU. Timelines need this; totals are not enough for them.
//!
//! The last [`KEPT`] spans of each GPU are kept. Nothing is allocated after the start.

use crate::kinds::gpu_id;
use std::collections::VecDeque;
use tidegate_policy::ids::GpuSet;

/// Spans kept of each GPU: half a minute of an engine that makes a hundred steps a second.
pub const KEPT: usize = 4_096;

/// A time in which online was busy, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The busy edge.
    pub begin: u64,
    /// The idle edge; None: it is busy still.
    pub end: Option<u64>,
}

/// The spans of one GPU.
#[derive(Clone, Debug)]
struct Line {
    ended: VecDeque<Span>,
    since: Option<u64>,
    /// Every span that ended later is here.
    complete_from: u64,
}

/// The spans of every GPU.
#[derive(Clone, Debug)]
pub struct Spans(Vec<Line>);

impl Spans {
    /// Of `count` GPUs that are idle.
    #[must_use]
    pub fn new(count: usize, now: u64) -> Self {
        let line = || Line {
            ended: VecDeque::with_capacity(KEPT),
            since: None,
            complete_from: now,
        };
        Self((0..count).map(|_| line()).collect())
    }

    /// From `now` on online is busy on these GPUs and no others.
    pub fn stand(&mut self, busy: GpuSet, now: u64) {
        for (index, line) in self.0.iter_mut().enumerate() {
            match (line.since, busy.contains(gpu_id(index))) {
                (None, true) => line.since = Some(now),
                (Some(begin), false) => {
                    line.since = None;
                    if line.ended.len() == KEPT
                        && let Some(oldest) = line.ended.pop_front()
                    {
                        line.complete_from = oldest.end.unwrap_or(now);
                    }
                    line.ended.push_back(Span {
                        begin,
                        end: Some(now),
                    });
                }
                _ => {}
            }
        }
    }

    /// The spans of a GPU that ended at `since` or later, in order, and from when on they are complete.
    #[must_use]
    pub fn of(&self, gpu: usize, since: u64) -> (Vec<Span>, u64) {
        let Some(line) = self.0.get(gpu) else {
            return (Vec::new(), 0);
        };
        let first = line.ended.partition_point(|span| span.end < Some(since));
        let goes_on = line.since.map(|begin| Span { begin, end: None });
        let spans = line.ended.range(first..).copied().chain(goes_on);
        (spans.collect(), line.complete_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_policy::ids::GpuId;

    fn set(bits: u8) -> GpuSet {
        (0..2u8)
            .filter(|bit| bits & (1 << bit) != 0)
            .map(GpuId)
            .collect()
    }

    #[test]
    fn spans_are_from_edge_to_edge_and_the_oldest_go_first() {
        let span = |begin, end| Span { begin, end };
        let mut spans = Spans::new(2, 5);
        spans.stand(set(1), 10);
        spans.stand(set(1), 15);
        spans.stand(set(3), 20);
        spans.stand(set(2), 30);
        assert_eq!(spans.of(0, 0), (vec![span(10, Some(30))], 5));
        assert_eq!(spans.of(0, 31).0, []);
        assert_eq!(spans.of(1, 1_000).0, [span(20, None)]);
        for nth in 0..=KEPT as u64 {
            spans.stand(set(1), 100 + 2 * nth);
            spans.stand(set(0), 101 + 2 * nth);
        }
        let (kept, from) = spans.of(0, 0);
        assert_eq!((kept.len(), from), (KEPT, 101));
        assert_eq!(kept[0], span(102, Some(103)));
        assert_eq!(spans.of(9, 0), (vec![], 0));
    }
}
