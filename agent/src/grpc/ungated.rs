//! A block in which offline runs beside online, because an operator measures what that costs.
//!
//! It stands for as long as its caller keeps the stream: a caller that ends or is killed closes its connection, and
//! one that is stuck has its time run out. Whatever ends this, [`Block`] tells the control thread.

use crate::config::{Loaded, show_duration};
use crate::inbox::{Ask, Input, Mailbox, Ungate};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// What the caller keeps.
pub type Stream = ReceiverStream<Result<v1::UngateResponse, Status>>;

/// Number of the last block of this agent.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Why a block of `length` is none where `longest` is allowed.
///
/// # Errors
/// What to do about it.
pub fn permitted(length: Duration, longest: Duration) -> Result<(), String> {
    if longest.is_zero() {
        let how = "write [bench] ungated = \"2min\" into the agent's file and reload";
        return Err(format!(
            "offline may not run beside online on this node: {how}"
        ));
    }
    if length.is_zero() || length > longest {
        return Err(format!(
            "a block of {} is not allowed: bench.ungated = {}",
            show_duration(length),
            show_duration(longest)
        ));
    }
    Ok(())
}

/// Ends its block when it is dropped. It is made before the block is ordered, so that no caller who leaves meanwhile
/// leaves the block behind.
#[derive(Debug)]
pub struct Block {
    number: u64,
    mailbox: Mailbox,
}

impl Block {
    /// A block that is not ordered yet.
    pub fn new(mailbox: Mailbox) -> Self {
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            mailbox,
        }
    }

    /// The order for it.
    pub fn order(&self, length_ns: u64, who: String) -> Ungate {
        Ungate {
            block: self.number,
            length_ns,
            who,
        }
    }

    /// Stands until the caller leaves, its time is over, or `running` allows no such block any more.
    pub fn stream(
        self,
        jobs: Vec<String>,
        length: Duration,
        mut running: watch::Receiver<Arc<Loaded>>,
    ) -> Stream {
        let (stream_tx, stream_rx) = mpsc::channel(1);
        // There is room for it.
        drop(stream_tx.try_send(Ok(v1::UngateResponse { jobs })));
        tokio::spawn(async move {
            let forbidden = |loaded: &Arc<Loaded>| loaded.config.ungated < length;
            tokio::select! {
                () = stream_tx.closed() => {}
                () = tokio::time::sleep(length) => {}
                _ = running.wait_for(forbidden) => {}
            }
            drop(self);
        });
        stream_rx.into()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.mailbox.put(Input::Ask(Ask::Regate(self.number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_refused_where_the_file_does_not_allow_it() {
        let (s, none) = (Duration::from_secs(1), Duration::ZERO);
        let no = |length, longest| permitted(length, longest).expect_err("refused");
        let said = no(s, none);
        let (_, hint) = said
            .split_once("[bench] ungated = \"")
            .expect("what to write");
        let (value, _) = hint.split_once('"').expect("its end");
        assert!(
            crate::config::duration(value).is_some_and(|time| !time.is_zero()),
            "{said}"
        );
        let said = no(3 * s, 2 * s);
        assert!(
            said.contains("3s") && said.contains("bench.ungated = 2s"),
            "{said}"
        );
        assert!(no(none, 2 * s).contains("0s"));
        assert_eq!(permitted(2 * s, 2 * s), Ok(()));
    }
}
