//! Figures of GPUs that only their driver has: what they are called, and how much of their memory is in use.
//!
//! A driver may let a call wait for seconds, so the calls are made on a thread of their own, only when somebody asks:
//! at most once in [`FRESH`]. Who asks waits for [`PATIENCE`] at most, and then goes without.

use crate::clock::now_ns;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// A reading this young is given again.
const FRESH: Duration = Duration::from_millis(500);
/// How long an asker waits: a driver that stalls is when status is asked for, and must answer.
const PATIENCE: Duration = Duration::from_millis(20);
/// Askers that wait at a time.
const ASKERS: usize = 64;

/// One GPU. Empty and 0: the driver does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// As the vendor's tools call it.
    pub model: String,
    /// Bytes of its memory.
    pub total: u64,
    /// Of these in use, by whomever.
    pub used: u64,
}

type Asker = oneshot::Sender<Vec<Figures>>;

/// Where figures are asked for.
#[derive(Clone)]
pub struct Gauge(SyncSender<Asker>);

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauge")
    }
}

impl Gauge {
    /// Starts the thread that calls `read`, the figures of all GPUs in the agent's order. It ends with the last gauge.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(read: impl FnMut() -> Vec<Figures> + Send + 'static) -> io::Result<Self> {
        let (asker_tx, asker_rx) = sync_channel(ASKERS);
        std::thread::Builder::new()
            .name("gauge".to_owned())
            .spawn(move || answer(read, &asker_rx))?;
        Ok(Self(asker_tx))
    }

    /// The figures; none where the driver takes its time.
    pub async fn read(&self) -> Vec<Figures> {
        let (answer_tx, answer_rx) = oneshot::channel();
        if self.0.try_send(answer_tx).is_err() {
            return Vec::new();
        }
        let answer = tokio::time::timeout(PATIENCE, answer_rx).await;
        answer.ok().and_then(Result::ok).unwrap_or_default()
    }
}

fn answer(mut read: impl FnMut() -> Vec<Figures>, asker_rx: &Receiver<Asker>) {
    // Who asks first is not to wait for files to be opened.
    let first = read();
    let mut last = Some((now_ns(), first));
    for asker in asker_rx {
        // Who gave up is not read for.
        if asker.is_closed() {
            continue;
        }
        let fresh = |at: u64| now_ns() < at + crate::clock::nanos(FRESH);
        let figures = match last.take() {
            Some((at, figures)) if fresh(at) => (at, figures),
            _ => {
                let figures = read();
                (now_ns(), figures)
            }
        };
        let _ = asker.send(figures.1.clone());
        last = Some(figures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    /// P-OPERATE-18: figures cost the driver little and nobody's wait.
    #[tokio::test]
    async fn a_flood_of_askers_costs_the_driver_one_call_and_a_driver_that_hangs_costs_them_a_moment()
     {
        let calls = Arc::new(AtomicU64::new(0));
        let hangs = Arc::new(AtomicBool::new(false));
        let (counted, told) = (Arc::clone(&calls), Arc::clone(&hangs));
        let (hang_tx, hang_rx) = sync_channel::<()>(0);
        let gauge = Gauge::start(move || {
            counted.fetch_add(1, SeqCst);
            if told.load(SeqCst) {
                let _ = hang_rx.recv();
            }
            vec![Figures {
                used: 7,
                ..Figures::default()
            }]
        })
        .expect("a thread");
        let begun = now_ns();
        for _ in 0..50 {
            gauge.read().await;
        }
        let times = 1 + (now_ns() - begun) / crate::clock::nanos(FRESH);
        let calls = calls.load(SeqCst);
        assert!((1..=times).contains(&calls), "{calls} of {times}");
        hangs.store(true, SeqCst);
        tokio::time::sleep(FRESH).await;
        assert_eq!(gauge.read().await, [], "the driver hangs");
        drop(hang_tx);
        let again = async { while gauge.read().await.is_empty() {} };
        let again = tokio::time::timeout(Duration::from_secs(60), again).await;
        again.expect("it answers again");
    }
}
