//! Who had the GPU when, by the device's history.

use tidegate_abi::class::ENGINE_TYPE_GR0;
use tidegate_tests::figures::{self, Span};
use tidegate_vgpu::history::{Kind, Record};

/// Who had the GPU when, in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The run.
    pub span: Option<Span>,
    /// When a kernel of the online program ran.
    pub online: Vec<Span>,
    /// When a kernel of the offline program ran.
    pub offline: Vec<Span>,
}

/// When kernels of `pid` ran: while its group of channels was on the engine. A kernel that is stopped, or waits for its
/// time slice, has begun and does not run.
#[must_use]
pub fn ran(history: &[Record], pid: u32, span: Span) -> Vec<Span> {
    let begun = busy(&figures::idle(history, pid, span), span);
    let mut on = Vec::new();
    let mut since = None;
    let mut mine: Vec<&Record> = history.iter().filter(|record| record.pid == pid).collect();
    mine.sort_by_key(|record| record.at_ns);
    let engine = u64::from(ENGINE_TYPE_GR0);
    for record in mine {
        match record.kind {
            Kind::TsgRun | Kind::TsgStop if record.value != engine => {}
            Kind::TsgRun => since = since.or(Some(record.at_ns)),
            Kind::TsgStop => on.extend(since.take().map(|from_ns| Span {
                from_ns,
                to_ns: record.at_ns,
            })),
            _ => {}
        }
    }
    on.extend(since.map(|from_ns| Span {
        from_ns,
        to_ns: span.to_ns,
    }));
    both(&begun, &on)
}

/// What two lists have in common; each is in order, and apart.
fn both(one: &[Span], other: &[Span]) -> Vec<Span> {
    let (mut common, mut rest) = (Vec::new(), other);
    for own in one {
        while let [first, later @ ..] = rest {
            let (from_ns, to_ns) = (own.from_ns.max(first.from_ns), own.to_ns.min(first.to_ns));
            if from_ns < to_ns {
                common.push(Span { from_ns, to_ns });
            }
            if first.to_ns > own.to_ns {
                break;
            }
            rest = later;
        }
    }
    common
}

/// What is left of `span` beside the stretches of `idle`, which are in order.
fn busy(idle: &[Span], span: Span) -> Vec<Span> {
    let mut busy = Vec::new();
    let mut from_ns = span.from_ns;
    for rest in idle {
        if rest.from_ns > from_ns {
            let to_ns = rest.from_ns;
            busy.push(Span { from_ns, to_ns });
        }
        from_ns = from_ns.max(rest.to_ns);
    }
    if from_ns < span.to_ns {
        let to_ns = span.to_ns;
        busy.push(Span { from_ns, to_ns });
    }
    busy
}

/// A stretch from one millisecond to another.
#[cfg(test)]
pub const fn span(from_ms: u64, to_ms: u64) -> Span {
    Span {
        from_ns: from_ms * 1_000_000,
        to_ns: to_ms * 1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        let idle = [span(0, 10), span(20, 30), span(90, 100)];
        assert_eq!(busy(&idle, span(0, 100)), [span(10, 20), span(30, 90)]);
        assert_eq!(busy(&[], span(5, 9)), [span(5, 9)]);
        assert_eq!(busy(&[span(5, 9)], span(5, 9)), []);
    }

    /// P-OPERATE-27: what is stopped has no bar.
    #[test]
    fn a_kernel_that_is_stopped_does_not_run() {
        let record = |at_ms: u64, kind| Record {
            pid: 7,
            value: u64::from(ENGINE_TYPE_GR0),
            ..Record::new(at_ms * 1_000_000, kind)
        };
        let history = [
            record(10, Kind::TsgRun),
            record(10, Kind::KernelStart),
            record(30, Kind::TsgStop),
            record(50, Kind::TsgRun),
            record(60, Kind::KernelEnd),
        ];
        assert_eq!(ran(&history, 7, span(0, 100)), [span(10, 30), span(50, 60)]);
        assert_eq!(ran(&history, 8, span(0, 100)), []);
        assert_eq!(
            both(
                &[span(0, 5), span(6, 20)],
                &[span(4, 8), span(9, 10), span(15, 30)]
            ),
            [span(4, 5), span(6, 8), span(9, 10), span(15, 20)]
        );
    }
}
