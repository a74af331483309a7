//! What happened on the node, kept for readers and logged once.
//!
//! The control thread tells of something by handing a [`NodeEvent`] to a bounded queue and never
//! waits: when the queue is full the event is counted and lost. A thread of its own numbers them,
//! writes the log lines ([`super::minute`]), and keeps the last [`KEPT`]. What operators did is kept apart, [`KEPT_OF_OPERATORS`] of it, and
//! tenants have events at a rate ([`super::rates`]): nothing that a tenant does pushes out what an operator did.

use super::kinds::kind;
use super::minute::{Line, Minute};
use super::rates::{More, Rates, Verdict, WINDOW_NS};
use super::refusals::Refusals;
use crate::clock::now_ns;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_node::kinds::Tenant;
use tidegate_node::ports::{EventSink, NodeEvent};
use tidegate_proto::v1;
use tokio::sync::watch;

/// Events kept for `WatchEvents`.
pub const KEPT: usize = 65_536;
/// Events of operators that are kept beside them.
pub const KEPT_OF_OPERATORS: usize = 4_096;
/// Events on their way to the thread.
const QUEUE: usize = 8_192;
/// Longest text of an event of a tenant, in characters.
const TEXT: usize = 512;

/// What is on its way to the thread.
#[derive(Debug)]
enum Told {
    Event(NodeEvent),
    /// Events that are only counted.
    More(More),
}

/// The control thread's end.
#[derive(Debug)]
pub struct EventSender {
    told_tx: crossbeam_channel::Sender<Told>,
    lost: Arc<AtomicU64>,
    /// Only the control thread takes it.
    rates: Mutex<Rates>,
    refusals: Arc<Refusals>,
}

impl EventSink for EventSender {
    /// Sends it, or counts it: as lost, or as one of many of its tenant.
    fn event(&self, mut event: NodeEvent) {
        let mut told = None;
        if let Some(tenant) = &event.tenant {
            let warns = kind(event.kind).is_some_and(|kind| kind.warns);
            let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            match rates.hear(tenant, warns, event.at_ns) {
                Verdict::Kept => {}
                Verdict::Counted => return,
                Verdict::Begun(more) => told = Some(Told::More(more)),
            }
            if let Some((end, _)) = event.text.char_indices().nth(TEXT) {
                event.text.truncate(end);
                event.text.push_str("...");
            }
        }
        let told = told.unwrap_or(Told::Event(event));
        if self.told_tx.try_send(told).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn refused(&self, tenant: &Tenant, what: &'static str) {
        self.refusals.note(tenant, what);
    }
}

/// The events kept.
#[derive(Debug)]
pub struct EventLog {
    kept: Mutex<Kept>,
    newest_rx: watch::Receiver<u64>,
    lost: Arc<AtomicU64>,
}

/// Two lists, each by number.
#[derive(Debug, Default)]
struct Kept {
    operators: VecDeque<v1::Event>,
    all_others: VecDeque<v1::Event>,
    /// Number of the last that was dropped.
    dropped: u64,
}

/// Why a reader cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest event still kept.
    pub oldest: u64,
}

impl Kept {
    fn put(&mut self, event: v1::Event, by_operators: bool) {
        let (list, most) = if by_operators {
            (&mut self.operators, KEPT_OF_OPERATORS)
        } else {
            (&mut self.all_others, KEPT)
        };
        if list.len() == most
            && let Some(oldest) = list.pop_front()
        {
            self.dropped = self.dropped.max(oldest.seq);
        }
        list.push_back(event);
    }

    /// At most `limit` events from number `from` on.
    fn since(&self, from: u64, limit: usize) -> Vec<v1::Event> {
        let start = |list: &VecDeque<v1::Event>| list.partition_point(|event| event.seq < from);
        let mut operators = self.operators.range(start(&self.operators)..).peekable();
        let mut others = self.all_others.range(start(&self.all_others)..).peekable();
        let next = || match (operators.peek(), others.peek()) {
            (Some(one), Some(other)) if one.seq > other.seq => others.next(),
            (Some(_), _) => operators.next(),
            (None, _) => others.next(),
        };
        std::iter::from_fn(next).take(limit).cloned().collect()
    }
}

impl EventLog {
    /// Starts the thread; it ends when the sender is dropped. Who is refused something goes to `refusals`.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(refusals: Arc<Refusals>) -> std::io::Result<(EventSender, Arc<Self>)> {
        let (told_tx, told_rx) = crossbeam_channel::bounded(QUEUE);
        let (newest_tx, newest_rx) = watch::channel(0);
        let lost = Arc::new(AtomicU64::new(0));
        let log = Arc::new(Self {
            kept: Mutex::default(),
            newest_rx,
            lost: Arc::clone(&lost),
        });
        let own = Arc::clone(&log);
        std::thread::Builder::new()
            .name("tg-events".to_owned())
            .spawn(move || own.run(&told_rx, &newest_tx))?;
        let sender = EventSender {
            told_tx,
            lost,
            rates: Mutex::default(),
            refusals,
        };
        Ok((sender, log))
    }

    fn run(&self, told_rx: &Receiver<Told>, newest_tx: &watch::Sender<u64>) {
        let (mut seq, mut minute) = (0, Minute::default());
        let mut keep = |event: NodeEvent, minute: &mut Minute| {
            seq += 1;
            log(&event, minute.hear(&event, kind(event.kind)));
            self.keep(seq, event);
            newest_tx.send_replace(seq);
        };
        // By when they are complete.
        let mut counted: VecDeque<More> = VecDeque::new();
        loop {
            let now = now_ns();
            while let Some(more) = counted.pop_front_if(|more| more.at_ns + WINDOW_NS < now) {
                keep(summary(&more), &mut minute);
            }
            if let Some(counts) = minute.over(now) {
                tracing::info!("last minute: {counts}");
            }
            let complete = counted.front().map(|more| more.at_ns + WINDOW_NS);
            let told = match complete.into_iter().chain(minute.ends_ns()).min() {
                None => told_rx.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(next) => {
                    let left = next.saturating_sub(now) + 1_000_000;
                    told_rx.recv_timeout(Duration::from_nanos(left))
                }
            };
            match told {
                Ok(Told::Event(event)) => keep(event, &mut minute),
                Ok(Told::More(more)) => counted.push_back(more),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    for more in &counted {
                        keep(summary(more), &mut minute);
                    }
                    if let Some(counts) = minute.over(u64::MAX) {
                        tracing::info!("since the last minute: {counts}");
                    }
                    return;
                }
            }
        }
    }

    fn keep(&self, seq: u64, event: NodeEvent) {
        let by_operators = kind(event.kind).is_some_and(|kind| kind.by_operators);
        let ago = now_ns().saturating_sub(event.at_ns);
        let unix_ns = crate::clock::unix_ns().saturating_sub(ago);
        let event = v1::Event {
            seq,
            at_ns: event.at_ns,
            kind: event.kind.to_owned(),
            gpu: event
                .gpu
                .and_then(|gpu| i32::try_from(gpu).ok())
                .unwrap_or(-1),
            session: event.session,
            job: event.job.as_deref().unwrap_or_default().to_owned(),
            text: event.text,
            value_ns: event.value_ns,
            pid: event.pid,
            unix_ns,
        };
        self.lock().put(event, by_operators);
    }

    /// At most `limit` events from number `from` on (0: from the oldest kept).
    ///
    /// # Errors
    /// When event `from`, or one after it, is no longer kept.
    pub fn since(&self, from: u64, limit: usize) -> Result<Vec<v1::Event>, Compacted> {
        let kept = self.lock();
        if from != 0 && from <= kept.dropped {
            let oldest = kept.dropped + 1;
            return Err(Compacted { oldest });
        }
        Ok(kept.since(from, limit))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the newest event, to wait on.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest_rx.clone()
    }

    /// Events lost because the queue was full.
    #[must_use]
    pub fn lost(&self) -> v1::Counter {
        v1::Counter {
            name: "events_lost".to_owned(),
            help: "Events lost because the queue to the log was full".to_owned(),
            value: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// Writes an event's line. The subscriber drops what is below the level in force.
fn log(event: &NodeEvent, line: Line) {
    // A level is a constant of the line that logs.
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                gpu = event.gpu,
                session = (event.session != 0).then_some(event.session),
                job = event.job.as_deref(),
                pid = (event.pid != 0).then_some(event.pid),
                value_us = (event.value_ns != 0).then_some(event.value_ns / 1_000),
                "{}{}{}",
                event.kind,
                if event.text.is_empty() { "" } else { ": " },
                event.text
            )
        };
    }
    match line {
        Line::Warning => log!(warn),
        Line::Info => log!(info),
        Line::Detail => log!(debug),
    }
}

/// The event that tells of events which were counted.
fn summary(more: &More) -> NodeEvent {
    let count = more.count.load(Ordering::Relaxed);
    NodeEvent {
        at_ns: more.at_ns + WINDOW_NS,
        kind: "more",
        text: format!("{count} more events of {}", more.tenant),
        ..NodeEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_with(events: u64) -> EventLog {
        let (_newest_tx, newest_rx) = watch::channel(0);
        let log = EventLog {
            kept: Mutex::default(),
            newest_rx,
            lost: Arc::default(),
        };
        for seq in 1..=events {
            log.keep(seq, NodeEvent::default());
        }
        log
    }

    #[test]
    fn a_reader_gets_what_follows_its_last_event_once() {
        let log = log_with(10);
        let seqs = |from, limit| -> Vec<u64> {
            let events = log.since(from, limit).expect("kept");
            events.iter().map(|event| event.seq).collect()
        };
        assert_eq!(seqs(0, 3), [1, 2, 3]);
        assert_eq!(seqs(4, 100), [4, 5, 6, 7, 8, 9, 10]);
        assert!(seqs(11, 100).is_empty());
    }

    /// P-SECURITY-22: what operators did is kept whatever tenants do.
    #[test]
    fn what_an_operator_did_is_kept_behind_any_number_of_other_events() {
        let log = log_with(10);
        let drained = NodeEvent {
            kind: "drained",
            text: "by uid 0".to_owned(),
            ..NodeEvent::default()
        };
        log.keep(11, drained);
        for seq in 12..=2 * KEPT as u64 {
            log.keep(seq, NodeEvent::default());
        }
        let first = log.since(0, 2).expect("from the oldest");
        assert_eq!((first[0].seq, &*first[0].kind), (11, "drained"));
        assert_eq!(
            first[1].seq,
            KEPT as u64 + 1,
            "and the others in their order"
        );
        assert_eq!(
            log.since(first[1].seq, 1).expect("kept")[0].seq,
            first[1].seq
        );
    }

    #[test]
    fn a_reader_that_is_too_late_is_told_so() {
        let log = log_with(KEPT as u64 + 5);
        assert_eq!(log.since(3, 1), Err(Compacted { oldest: 6 }));
        assert!(log.since(0, 1).is_ok());
    }
}
