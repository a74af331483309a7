//! What a run was worth, from two witnesses that Tidegate does not write: the online program's own
//! request log and the virtual GPU's history.
//!
//! Words: a *served* request has an arrival, a first and a last token. TTFT is arrival to first
//! token, TPOT the mean time between two of its tokens. A *preemption* is a disable of an offline
//! process' channels that were enabled; it counts for every request between whose arrival and last
//! token it begins. *Harvestable* is the time in which no online kernel ran and none had for a
//! cooldown, that is twice the longest decode gap: the time a perfect gate would give away.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_text::spread::Spread;
use tidegate_vgpu::history::{Kind, Record};

/// One request as the online program logged it, in `CLOCK_MONOTONIC` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// When the schedule sent it.
    pub arrival_ns: u64,
    /// When its first token was out.
    pub first_ns: u64,
    /// When its last token was out.
    pub last_ns: u64,
    /// Tokens generated.
    pub output_tokens: u32,
}

/// A stretch of time, `CLOCK_MONOTONIC` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
}

/// Preemptions of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemptions {
    /// In all.
    pub total: usize,
    /// For each request, in the order given.
    pub per_request: Vec<usize>,
}

impl Span {
    /// Its length.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_nanos(self.to_ns.saturating_sub(self.from_ns))
    }

    fn contains(&self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }

    fn overlap(&self, from_ns: u64, to_ns: u64) -> u64 {
        to_ns
            .min(self.to_ns)
            .saturating_sub(from_ns.max(self.from_ns))
    }
}

/// The requests of an online program's log, in the order of arrival. Lines of other kinds are
/// passed over, and so is a last line that is not finished.
#[must_use]
pub fn served(log: &str) -> Vec<Served> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let mut served: Vec<Served> = whole
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("request ")?.split(' ');
            let mut number = || words.next()?.parse::<u64>().ok();
            let (arrival_ns, first_ns, last_ns) = (number()?, number()?, number()?);
            let _input_tokens = number()?;
            let output_tokens = u32::try_from(number()?).ok()?;
            Some(Served {
                arrival_ns,
                first_ns,
                last_ns,
                output_tokens,
            })
        })
        .collect();
    served.sort_by_key(|request| request.arrival_ns);
    served
}

/// Time to first token of each request, milliseconds.
#[must_use]
pub fn each_ttft_ms(served: &[Served]) -> Vec<f64> {
    let ttft = |r: &Served| ms(r.first_ns.saturating_sub(r.arrival_ns));
    served.iter().map(ttft).collect()
}

/// Time to first token, milliseconds.
#[must_use]
pub fn ttft_ms(served: &[Served]) -> Spread {
    Spread::of(each_ttft_ms(served))
}

/// Time per output token after the first of each request that has any, milliseconds.
#[must_use]
pub fn each_tpot_ms(served: &[Served]) -> Vec<f64> {
    let more = served.iter().filter(|request| request.output_tokens > 1);
    let tpot =
        |r: &Served| ms(r.last_ns.saturating_sub(r.first_ns)) / f64::from(r.output_tokens - 1);
    more.map(tpot).collect()
}

/// Time per output token after the first, milliseconds; of requests that have any.
#[must_use]
pub fn tpot_ms(served: &[Served]) -> Spread {
    Spread::of(each_tpot_ms(served))
}

/// Tokens of the kernels of `pid` that finished within `span`: each carries its worth as its tag.
#[must_use]
pub fn finished_tokens(history: &[Record], pid: u32, span: Span) -> u64 {
    let mine = history
        .iter()
        .filter(|r| r.kind == Kind::KernelEnd && r.pid == pid);
    mine.filter(|record| span.contains(record.at_ns))
        .map(|record| record.tag)
        .sum()
}

/// Stretches of `span` in which no kernel of `pid` ran, in order.
#[must_use]
pub fn idle(history: &[Record], pid: u32, span: Span) -> Vec<Span> {
    let mut idle = Vec::new();
    let mut running = 0usize;
    let mut since = Some(span.from_ns);
    let mut mine: Vec<&Record> = history.iter().filter(|record| record.pid == pid).collect();
    mine.sort_by_key(|record| record.at_ns);
    for record in mine {
        match record.kind {
            Kind::KernelStart => {
                running += 1;
                if let Some(from_ns) = since.take() {
                    push(&mut idle, span, from_ns, record.at_ns);
                }
            }
            Kind::KernelEnd => {
                running = running.saturating_sub(1);
                if running == 0 {
                    since = Some(record.at_ns);
                }
            }
            _ => {}
        }
    }
    if let Some(from_ns) = since {
        push(&mut idle, span, from_ns, span.to_ns);
    }
    idle
}

fn push(idle: &mut Vec<Span>, within: Span, from_ns: u64, to_ns: u64) {
    if within.overlap(from_ns, to_ns) > 0 {
        let from_ns = from_ns.max(within.from_ns);
        idle.push(Span {
            from_ns,
            to_ns: to_ns.min(within.to_ns),
        });
    }
}

/// The longest decode gap that the online program chose to make, by its log; those that its host
/// added are not of the schedule.
#[must_use]
pub fn longest_decode_gap(log: &str) -> Duration {
    let end = log
        .lines()
        .find_map(|line| line.strip_prefix("end "))
        .unwrap_or_default();
    let mut words = end
        .split(' ')
        .skip_while(|word| *word != "longest_gap_ns")
        .skip(1);
    let longest = words.next().and_then(|word| word.parse().ok());
    Duration::from_nanos(longest.unwrap_or_default())
}

/// Twice the longest decode gap, within the bounds that the agent keeps too (2 ms to 200 ms).
#[must_use]
pub fn true_cooldown(longest_gap: Duration) -> Duration {
    (2 * longest_gap).clamp(Duration::from_millis(2), Duration::from_millis(200))
}

/// Share of `span` that `idle` leaves when each stretch first costs a `cooldown`.
#[must_use]
pub fn harvestable_share(idle: &[Span], cooldown: Duration, span: Span) -> f64 {
    let beyond: Duration = idle
        .iter()
        .map(|gap| gap.length().saturating_sub(cooldown))
        .sum();
    beyond.as_secs_f64() / span.length().as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Preemptions of process `offline`, and how many fell to each request.
///
/// A process' channels are many and are disabled together, in one call or several; they are one
/// preemption. It begins with the first disable of any object while all are enabled, and the next
/// can begin once all are enabled again.
#[must_use]
pub fn preemptions(history: &[Record], offline: u32, served: &[Served], span: Span) -> Preemptions {
    let stops = stops(history, |pid| pid == offline, span);
    let begins: Vec<u64> = stops.iter().map(|stop| stop.from_ns).collect();
    Preemptions::at(&begins, served)
}

/// Stretches that began within `span` and in which a channel of these processes was disabled, in order: from the first
/// disable while all are enabled until all are enabled again, or until the end of `span`.
#[must_use]
pub fn stops(history: &[Record], of: impl Fn(u32) -> bool, span: Span) -> Vec<Span> {
    let mut disabled = BTreeSet::new();
    let mut stops = Vec::new();
    let mut since = None;
    for record in history.iter().filter(|record| of(record.pid)) {
        let object = (record.gpu, record.client, record.object);
        match record.kind {
            Kind::DisableBegin => {
                if disabled.is_empty() && span.contains(record.at_ns) {
                    since = Some(record.at_ns);
                }
                disabled.insert(object);
            }
            Kind::EnableEnd | Kind::ChannelDown => {
                disabled.remove(&object);
                if disabled.is_empty() {
                    stops.extend(since.take().map(|from_ns| Span {
                        from_ns,
                        to_ns: record.at_ns.max(from_ns),
                    }));
                }
            }
            _ => {}
        }
    }
    stops.extend(since.map(|from_ns| Span {
        from_ns,
        to_ns: span.to_ns,
    }));
    stops
}

impl Preemptions {
    /// Those that began at `begins_ns`.
    #[must_use]
    pub fn at(begins_ns: &[u64], served: &[Served]) -> Self {
        let within = |r: &Served| {
            begins_ns
                .iter()
                .filter(|at| (r.arrival_ns..=r.last_ns).contains(at))
                .count()
        };
        Self {
            total: begins_ns.len(),
            per_request: served.iter().map(within).collect(),
        }
    }
}

/// Stretches of `span` in which no request was in flight: what is known of idle time where the device
/// keeps no history. `served` is in the order of arrival.
#[must_use]
pub fn idle_between(served: &[Served], span: Span) -> Vec<Span> {
    let mut idle = Vec::new();
    let mut since = span.from_ns;
    for request in served {
        if request.arrival_ns > since {
            push(&mut idle, span, since, request.arrival_ns);
        }
        since = since.max(request.last_ns);
    }
    push(&mut idle, span, since, span.to_ns);
    idle
}

fn ms(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLINE: u32 = 10;
    const OFFLINE: u32 = 20;

    fn record(at_ns: u64, kind: Kind, pid: u32, object: u32, tag: u64) -> Record {
        Record {
            pid,
            object,
            tag,
            ..Record::new(at_ns, kind)
        }
    }

    fn kernel(from_ns: u64, to_ns: u64, pid: u32, tag: u64) -> [Record; 2] {
        [
            record(from_ns, Kind::KernelStart, pid, 1, tag),
            record(to_ns, Kind::KernelEnd, pid, 1, tag),
        ]
    }

    fn span(from_ns: u64, to_ns: u64) -> Span {
        Span { from_ns, to_ns }
    }

    fn request(arrival_ns: u64, first_ns: u64, last_ns: u64, output_tokens: u32) -> Served {
        Served {
            arrival_ns,
            first_ns,
            last_ns,
            output_tokens,
        }
    }

    #[test]
    fn a_log_is_read_up_to_its_last_whole_line() {
        let log = "ready 5\nrequest 20 30 40 100 3\nrequest 10 15 15 7 1\nend 9 served 2\nrequest 1 2 3 4 5";
        assert_eq!(
            served(log),
            [request(10, 15, 15, 1), request(20, 30, 40, 3)]
        );
        assert_eq!(served(""), []);
    }

    #[test]
    fn latencies_are_of_the_right_requests() {
        let served = [
            request(0, 1_000_000, 1_000_000, 1),
            request(0, 3_000_000, 13_000_000, 6),
        ];
        let ttft = ttft_ms(&served);
        assert_eq!(
            (ttft.mean, ttft.p50, ttft.p99, ttft.max),
            (2.0, 1.0, 3.0, 3.0)
        );
        assert_eq!(
            tpot_ms(&served).mean,
            2.0,
            "a request of one token has no time per further token"
        );
        assert_eq!(tpot_ms(&served[..1]), Spread::default());
    }

    #[test]
    fn without_a_history_idle_is_where_no_request_is_in_flight() {
        let served = [
            request(10, 20, 40, 2),
            request(30, 50, 60, 2),
            request(80, 85, 90, 2),
        ];
        let idle = [span(0, 10), span(60, 80), span(90, 100)];
        assert_eq!(idle_between(&served, span(0, 100)), idle);
        assert_eq!(idle_between(&[], span(0, 100)), [span(0, 100)]);
    }

    #[test]
    fn only_finished_kernels_of_the_process_within_the_span_count() {
        let mut history = Vec::new();
        history.extend(kernel(0, 10, OFFLINE, 1));
        history.extend(kernel(10, 20, OFFLINE, 2));
        history.extend(kernel(15, 20, ONLINE, 4));
        history.extend(kernel(20, 30, OFFLINE, 8));
        history.push(record(25, Kind::KernelStart, OFFLINE, 1, 16));
        assert_eq!(finished_tokens(&history, OFFLINE, span(10, 30)), 3);
        assert_eq!(finished_tokens(&history, OFFLINE, span(0, 100)), 11);
    }

    #[test]
    fn idle_is_what_no_kernel_of_the_process_covers() {
        let mut history = Vec::new();
        history.extend(kernel(5, 12, ONLINE, 0));
        history.extend(kernel(14, 30, OFFLINE, 0));
        history.extend([
            record(20, Kind::KernelStart, ONLINE, 1, 0),
            record(22, Kind::KernelStart, ONLINE, 2, 0),
            record(25, Kind::KernelEnd, ONLINE, 1, 0),
            record(30, Kind::KernelEnd, ONLINE, 2, 0),
        ]);
        assert_eq!(
            idle(&history, ONLINE, span(10, 50)),
            [span(12, 20), span(30, 50)]
        );
        assert_eq!(
            idle(&history, ONLINE, span(0, 22)),
            [span(0, 5), span(12, 20)]
        );
        assert_eq!(idle(&history, 99, span(3, 9)), [span(3, 9)]);
    }

    #[test]
    fn the_cooldown_is_twice_the_longest_gap_of_the_schedule() {
        let log = "ready 5\nend 9 served 2 iterations 7 longest_gap_ns 8000000\n";
        assert_eq!(
            true_cooldown(longest_decode_gap(log)),
            Duration::from_millis(16)
        );
        assert_eq!(longest_decode_gap("ready 5\n"), Duration::ZERO);
        assert_eq!(true_cooldown(Duration::ZERO), Duration::from_millis(2));
    }

    #[test]
    fn each_idle_stretch_costs_a_cooldown() {
        let idle = [span(0, 10), span(20, 60), span(90, 100)];
        let share = harvestable_share(&idle, Duration::from_nanos(10), span(0, 100));
        assert!((share - 0.3).abs() < 1e-9, "{share}");
    }

    #[test]
    fn channels_disabled_together_are_one_preemption() {
        let history = [
            record(5, Kind::DisableBegin, OFFLINE, 1, 0),
            record(6, Kind::EnableEnd, OFFLINE, 1, 0),
            record(100, Kind::DisableBegin, OFFLINE, 1, 0),
            record(100, Kind::DisableBegin, OFFLINE, 2, 0),
            record(110, Kind::DisableBegin, OFFLINE, 1, 0),
            record(120, Kind::DisableBegin, 77, 1, 0),
            record(200, Kind::EnableEnd, OFFLINE, 1, 0),
            record(210, Kind::DisableBegin, OFFLINE, 1, 0),
            record(220, Kind::EnableEnd, OFFLINE, 1, 0),
            record(220, Kind::EnableEnd, OFFLINE, 2, 0),
            record(300, Kind::DisableBegin, OFFLINE, 2, 0),
        ];
        let served = [
            request(90, 150, 310, 5),
            request(95, 96, 99, 2),
            request(250, 260, 300, 2),
        ];
        let found = preemptions(&history, OFFLINE, &served, span(50, 400));
        assert_eq!(
            found,
            Preemptions {
                total: 2,
                per_request: vec![2, 0, 1]
            }
        );
    }
}
