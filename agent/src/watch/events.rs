//! What happened on the node, kept for readers and logged once.
//!
//! The control thread tells of something by handing a [`NodeEvent`] to a bounded queue and never
//! waits: when the queue is full the event is counted and lost. A thread of its own numbers them,
//! writes the log line, and keeps the last [`KEPT`].

use super::kinds::kind;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::ports::{EventSink, NodeEvent};
use tidegate_proto::v1;
use tokio::sync::watch;

/// Events kept for `WatchEvents`.
pub const KEPT: usize = 65_536;
/// Events on their way to the thread.
const QUEUE: usize = 8_192;

/// The control thread's end.
#[derive(Debug)]
pub struct EventSender {
    event_tx: crossbeam_channel::Sender<NodeEvent>,
    lost: Arc<AtomicU64>,
}

impl EventSink for EventSender {
    /// Sends it, or counts it lost.
    fn event(&self, event: NodeEvent) {
        if self.event_tx.try_send(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The events kept.
#[derive(Debug)]
pub struct EventLog {
    kept: Mutex<VecDeque<v1::Event>>,
    newest_rx: watch::Receiver<u64>,
    lost: Arc<AtomicU64>,
}

/// Why a reader cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest event still kept.
    pub oldest: u64,
}

impl EventLog {
    /// Starts the thread; it ends when the sender is dropped.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start() -> std::io::Result<(EventSender, Arc<Self>)> {
        let (event_tx, event_rx) = crossbeam_channel::bounded(QUEUE);
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
            .spawn(move || {
                let mut seq = 0;
                for event in event_rx {
                    seq += 1;
                    own.keep(seq, event);
                    newest_tx.send_replace(seq);
                }
            })?;
        Ok((EventSender { event_tx, lost }, log))
    }

    fn keep(&self, seq: u64, event: NodeEvent) {
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
        if kind(event.kind).is_some_and(|kind| kind.warns) {
            log!(warn);
        } else {
            log!(info);
        }
        let ago = crate::clock::now_ns().saturating_sub(event.at_ns);
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
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event);
    }

    /// At most `limit` events from number `from` on (0: from the oldest kept).
    ///
    /// # Errors
    /// When event `from` is no longer kept.
    pub fn since(&self, from: u64, limit: usize) -> Result<Vec<v1::Event>, Compacted> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(oldest) = kept.front().map(|event| event.seq) else {
            return Ok(Vec::new());
        };
        if from != 0 && from < oldest {
            return Err(Compacted { oldest });
        }
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        Ok(kept.iter().skip(skip).take(limit).cloned().collect())
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

    #[test]
    fn a_reader_that_is_too_late_is_told_so() {
        let log = log_with(KEPT as u64 + 5);
        assert_eq!(log.since(3, 1), Err(Compacted { oldest: 6 }));
        assert!(log.since(0, 1).is_ok());
    }
}
