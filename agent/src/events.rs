//! What happened on the node, kept for readers and logged once.
//!
//! The control thread tells of something by handing a [`Happening`] to a bounded queue and never
//! waits: when the queue is full the happening is counted and lost. A thread of its own numbers them,
//! writes the log line, and keeps the last [`KEPT`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_proto::v1;
use tokio::sync::watch;

/// Events kept for `WatchEvents`.
pub const KEPT: usize = 65_536;
/// Happenings on their way to the thread.
const QUEUE: usize = 8_192;

/// Something that happened. Making one allocates nothing unless it carries a text.
#[derive(Clone, Debug, Default)]
pub struct Happening {
    /// When.
    pub at_ns: u64,
    /// Stable name in `snake_case`.
    pub kind: &'static str,
    /// None: not about one GPU.
    pub gpu: Option<u32>,
    /// 0: not about one session.
    pub session: u64,
    /// The session's process; 0: unknown, or not about one.
    pub pid: i32,
    /// None: not about one job.
    pub job: Option<Arc<str>>,
    /// For people; empty: the kind says it all.
    pub text: String,
    /// Where there is one: of "preempted" the latency; of "woken" and "`wake_overtaken`" (an enable that took effect
    /// after online had begun, with its disable behind it) the time since online was last looked at.
    pub value_ns: u64,
}

/// The control thread's end.
#[derive(Debug)]
pub struct Teller {
    happening_tx: crossbeam_channel::Sender<Happening>,
    lost: Arc<AtomicU64>,
}

impl Teller {
    /// Tells of `happening`, or counts it lost.
    pub fn tell(&self, happening: Happening) {
        if self.happening_tx.try_send(happening).is_err() {
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
    /// Starts the thread; it ends when the teller is dropped.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start() -> std::io::Result<(Teller, Arc<Self>)> {
        let (happening_tx, happening_rx) = crossbeam_channel::bounded(QUEUE);
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
                for happening in happening_rx {
                    seq += 1;
                    own.keep(seq, happening);
                    newest_tx.send_replace(seq);
                }
            })?;
        Ok((Teller { happening_tx, lost }, log))
    }

    fn keep(&self, seq: u64, happening: Happening) {
        tracing::info!(
            gpu = happening.gpu,
            session = (happening.session != 0).then_some(happening.session),
            job = happening.job.as_deref(),
            pid = (happening.pid != 0).then_some(happening.pid),
            value_us = (happening.value_ns != 0).then_some(happening.value_ns / 1_000),
            "{}{}{}",
            happening.kind,
            if happening.text.is_empty() { "" } else { ": " },
            happening.text
        );
        let event = v1::Event {
            seq,
            at_ns: happening.at_ns,
            kind: happening.kind.to_owned(),
            gpu: happening
                .gpu
                .and_then(|gpu| i32::try_from(gpu).ok())
                .unwrap_or(-1),
            session: happening.session,
            job: happening.job.as_deref().unwrap_or_default().to_owned(),
            text: happening.text,
            value_ns: happening.value_ns,
            pid: happening.pid,
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

    /// Happenings lost because the queue was full.
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
            log.keep(seq, Happening::default());
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
