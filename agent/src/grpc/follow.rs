//! Readers who follow the events.

use crate::watch::events::{Compacted, EventLog};
use prost::Message as _;
use std::sync::Arc;
use tidegate_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Events that a reader is given at once: so many, and of so many bytes.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 64 << 10;

/// What a reader gets.
pub type Stream = ReceiverStream<Result<v1::WatchEventsResponse, Status>>;

/// The events from `since` on: those that are kept, and those that come later unless `no_follow`.
///
/// # Errors
/// Events from `since` on are not kept any more.
pub fn stream(events: &Arc<EventLog>, since: u64, no_follow: bool) -> Result<Stream, Status> {
    let first = page(events, since).map_err(too_late)?;
    let (event_tx, event_rx) = mpsc::channel(1);
    let events = Arc::clone(events);
    tokio::spawn(follow(events, first, since, no_follow, event_tx));
    Ok(event_rx.into())
}

/// The next events from `since` on.
fn page(events: &EventLog, since: u64) -> Result<Vec<v1::Event>, Compacted> {
    let mut page = events.since(since, PAGE)?;
    let mut bytes = 0;
    let within = page.iter().take_while(|event| {
        bytes += event.encoded_len();
        bytes <= PAGE_BYTES
    });
    let within = within.count().max(1);
    page.truncate(within);
    page.shrink_to_fit();
    Ok(page)
}

fn too_late(compacted: Compacted) -> Status {
    Status::out_of_range(format!(
        "events before {} are no longer kept",
        compacted.oldest
    ))
}

/// Sends events until the reader leaves, falls behind what is kept, or has all it asked for.
async fn follow(
    events: Arc<EventLog>,
    mut batch: Vec<v1::Event>,
    mut next: u64,
    no_follow: bool,
    event_tx: mpsc::Sender<Result<v1::WatchEventsResponse, Status>>,
) {
    let mut newest = events.newest();
    loop {
        for event in batch.drain(..) {
            next = event.seq + 1;
            let message = v1::WatchEventsResponse { event: Some(event) };
            if event_tx.send(Ok(message)).await.is_err() {
                return;
            }
        }
        newest.mark_unchanged();
        batch = match page(&events, next) {
            Ok(batch) => batch,
            Err(_) => {
                let slow = Status::resource_exhausted("the reader is too slow");
                let _ = event_tx.send(Err(slow)).await;
                return;
            }
        };
        if batch.is_empty() {
            if no_follow {
                return;
            }
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                () = event_tx.closed() => return,
            }
        }
    }
}
