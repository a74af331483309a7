//! The thread that looks at the node's totals once a second, for whoever asks about lately and long ago.
//!
//! It keeps the last minute for metrics, and hands slices of `history.every` to the history on disk,
//! the last one when the agent ends. It asks the control thread, as everybody does, and waits for nobody
//! else than the disk: a disk that hangs or is full costs slices, which are counted, and nothing more.

use crate::clock;
use crate::inbox::{Ask, Input, Mailbox};
use crate::watch::events::EventLog;
use crate::watch::history::{Cut, Ring};
use crate::watch::recent::{Recent, Shares};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_proto::v1;
use tokio::sync::oneshot;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// How long the agent's end waits for the last slice: a disk may hang.
const END: Duration = Duration::from_secs(1);

/// What it saw, for readers.
#[derive(Debug)]
pub struct Watched {
    recent: Mutex<Recent>,
    history_lost: AtomicU64,
    events: Arc<EventLog>,
    last: Mutex<Option<v1::GetStatusResponse>>,
}

impl Watched {
    /// The control thread ended, with these totals.
    pub fn end(&self, totals: v1::GetStatusResponse) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(totals);
    }

    fn take_last(&self) -> Option<v1::GetStatusResponse> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.take()
    }

    /// Shares of the last minute, by GPU.
    #[must_use]
    pub fn shares(&self) -> Vec<Shares> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.shares()
    }

    /// Records the history could not take.
    #[must_use]
    pub fn history_lost(&self) -> u64 {
        self.history_lost.load(Ordering::Relaxed)
    }

    /// A counter for status and metrics.
    #[must_use]
    pub fn events_lost(&self) -> v1::Counter {
        self.events.lost()
    }
}

/// The history, where one is kept.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The file.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Length of a slice.
    pub every: Duration,
}

/// The thread; it is told to end with this value.
#[derive(Debug)]
pub struct Watcher {
    stop_tx: Option<crossbeam_channel::Sender<()>>,
    done_rx: crossbeam_channel::Receiver<()>,
}

impl Watcher {
    /// Starts it.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        mailbox: Mailbox,
        events: Arc<EventLog>,
        keep: Option<Keep>,
    ) -> io::Result<(Self, Arc<Watched>)> {
        let watched = Arc::new(Watched {
            recent: Mutex::default(),
            history_lost: AtomicU64::new(0),
            events,
            last: Mutex::default(),
        });
        let (stop_tx, stop_rx) = crossbeam_channel::bounded(0);
        let own = Arc::clone(&watched);
        let (done_tx, done_rx) = crossbeam_channel::bounded(1);
        std::thread::Builder::new()
            .name("tg-watch".to_owned())
            .spawn(move || {
                watch(&mailbox, &own, keep, &stop_rx);
                let _ = done_tx.send(());
            })?;
        let watcher = Self {
            stop_tx: Some(stop_tx),
            done_rx,
        };
        Ok((watcher, watched))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.stop_tx.take());
        let _ = self.done_rx.recv_timeout(END);
    }
}

fn watch(
    mailbox: &Mailbox,
    watched: &Watched,
    keep: Option<Keep>,
    stop_rx: &crossbeam_channel::Receiver<()>,
) {
    let mut books = keep.map(Books::new);
    loop {
        let (answer_tx, answer_rx) = oneshot::channel();
        mailbox.put(Input::Ask(Ask::Usage(answer_tx)));
        let Ok(status) = answer_rx.blocking_recv() else {
            break;
        };
        watched
            .recent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(&status.gpus);
        if let Some(books) = &mut books {
            books.see(*status, watched, false);
        }
        if stop_rx.recv_timeout(EVERY) != Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            break;
        }
    }
    if let Some(mut books) = books {
        books.end(watched);
    }
}

/// The history and the slice under way.
#[derive(Debug)]
struct Books {
    keep: Keep,
    ring: Option<Ring>,
    cut: Cut,
    /// What was said last of a disk that does not take it.
    complained: bool,
}

impl Books {
    fn new(keep: Keep) -> Self {
        Self {
            keep,
            ring: None,
            cut: Cut::default(),
            complained: false,
        }
    }

    fn see(&mut self, status: v1::GetStatusResponse, watched: &Watched, last: bool) {
        let every = clock::nanos(self.keep.every);
        let Some(slices) = self.cut.see(status, clock::unix_ms(), every, last) else {
            return;
        };
        if let Err(error) = self.write(&slices) {
            let lost = u64::try_from(slices.len()).unwrap_or(u64::MAX);
            watched.history_lost.fetch_add(lost, Ordering::Relaxed);
            if !std::mem::replace(&mut self.complained, true) {
                tracing::error!(
                    file = %self.keep.file.display(),
                    "cannot write the history for now: {error}"
                );
            }
            // Opened anew for the next slice: whatever was wrong may have been put right.
            self.ring = None;
        } else if std::mem::replace(&mut self.complained, false) {
            tracing::info!(file = %self.keep.file.display(), "the history is being written again");
        }
    }

    fn end(&mut self, watched: &Watched) {
        // A control thread that panicked left none.
        let last = watched.take_last().or_else(|| self.cut.newest());
        if let Some(status) = last {
            self.see(status, watched, true);
        }
    }

    fn write(&mut self, slices: &[crate::watch::history::Slice]) -> io::Result<()> {
        let ring = match &mut self.ring {
            Some(ring) => ring,
            empty => empty.insert(Ring::open(&self.keep.file, self.keep.bytes)?),
        };
        for slice in slices {
            ring.append(slice)?;
        }
        Ok(())
    }
}
