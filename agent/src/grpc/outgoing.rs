//! What goes out to readers: answers and events, as far as they are taken.
//!
//! An answer is encoded at once, so that what it was made of is gone, and its bytes keep their room until they are written
//! to the connection. Whoever takes none of them for [`TAKEN_WITHIN`] is cut ([`Taking`]).

use super::rooms::{Room, Rooms};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_node::kinds::Tenant;
use tonic::Status;
use tonic::body::Body;

/// How long a reader may take none of what is there for it.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// Bytes of an answer that are written at once.
const PIECE: usize = 16 * 1_024;
/// Room for a call that is answered, beside its answer.
pub const CALL: usize = 16 * 1_024;

/// The refusal that status shows for a tenant.
pub const UNTAKEN: &str = "too many answers that are not taken";

/// How far the answers on one connection are taken.
#[derive(Debug, Default)]
pub struct Taking {
    /// Pieces that are not written.
    there: AtomicUsize,
    /// When one was last written, or came where there was none, ns.
    moved_ns: AtomicU64,
}

impl Taking {
    /// Whether nothing of what is there was taken for so long.
    #[must_use]
    pub fn is_stuck(&self, now_ns: u64) -> bool {
        let moved = self.moved_ns.load(Ordering::Relaxed);
        self.there.load(Ordering::Relaxed) > 0
            && now_ns.saturating_sub(moved) >= crate::clock::nanos(TAKEN_WITHIN)
    }

    fn come(&self, now_ns: u64) {
        if self.there.fetch_add(1, Ordering::Relaxed) == 0 {
            self.moved_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    fn gone(&self, now_ns: u64) {
        self.there.fetch_sub(1, Ordering::Relaxed);
        self.moved_ns.store(now_ns, Ordering::Relaxed);
    }
}

/// A piece of an answer, until it is written.
struct Piece {
    bytes: Bytes,
    _room: Arc<Room>,
    taking: Arc<Taking>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.taking.gone(crate::clock::now_ns());
    }
}

/// The body of an answer.
pub struct Outgoing {
    inner: Body,
    tenant: Tenant,
    rooms: Arc<Rooms>,
    taking: Arc<Taking>,
    pieces: VecDeque<Bytes>,
    /// Came while it was encoded, and follows the pieces.
    last: Option<Result<Frame<Bytes>, Status>>,
    /// Of the call.
    _room: Room,
}

impl Outgoing {
    /// Has as much of `inner` encoded as is there.
    ///
    /// # Errors
    /// When its tenant has no room for that.
    pub async fn encode(
        inner: Body,
        tenant: Tenant,
        (rooms, room): (Arc<Rooms>, Room),
        taking: Arc<Taking>,
    ) -> Result<Self, Status> {
        let mut made = Self {
            inner,
            tenant,
            rooms,
            taking,
            pieces: VecDeque::new(),
            last: None,
            _room: room,
        };
        std::future::poll_fn(|cx| {
            Poll::Ready(match Pin::new(&mut made.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => made.keep(frame),
                Poll::Ready(Some(Err(status))) => Err(status),
                Poll::Ready(None) | Poll::Pending => Ok(()),
            })
        })
        .await?;
        Ok(made)
    }

    fn keep(&mut self, frame: Frame<Bytes>) -> Result<(), Status> {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => {
                self.last = Some(Ok(trailers));
                return Ok(());
            }
        };
        let room = self.rooms.take_or_refuse(&self.tenant, data.len(), UNTAKEN);
        let room = Arc::new(room.ok_or_else(|| Status::resource_exhausted(UNTAKEN))?);
        while !data.is_empty() {
            self.taking.come(crate::clock::now_ns());
            self.pieces.push_back(Bytes::from_owner(Piece {
                bytes: data.split_to(data.len().min(PIECE)),
                _room: Arc::clone(&room),
                taking: Arc::clone(&self.taking),
            }));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing")
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Status;

    // An answer without a body is one frame of headers, which clients take for its status.
    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.last.is_none() && self.inner.is_end_stream()
    }

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some(last) = self.last.take() {
                return Poll::Ready(Some(last));
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Err(status) = self.keep(frame) {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    const MIB: usize = 1 << 20;

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[tokio::test]
    async fn an_answer_keeps_its_room_until_it_is_written() {
        let refusals = Arc::default();
        let rooms = Arc::new(Rooms::new(4 * MIB, Arc::clone(&refusals)));
        let (tenant, taking) = (Tenant::User(70_000), Arc::new(Taking::default()));
        let answer = || {
            let full = Full::new(Bytes::from(vec![1; MIB])).map_err(|never| match never {});
            Outgoing::encode(
                Body::new(full),
                tenant.clone(),
                (Arc::clone(&rooms), Room::default()),
                Arc::clone(&taking),
            )
        };
        let mut answers = Vec::new();
        for _ in 0..4 {
            answers.push(answer().await.expect("there is room"));
        }
        let refused = answer().await.expect_err("there is none");
        assert_eq!(refused.message(), UNTAKEN);
        assert_eq!(refusals.rows()[0].what, UNTAKEN);
        let later = crate::clock::now_ns() + crate::clock::nanos(TAKEN_WITHIN);
        assert!(taking.is_stuck(later + 1_000_000_000) && !taking.is_stuck(later - 1_000_000_000));
        // What was handed on is still there, until it is written.
        let mut written = Vec::new();
        let first = answers.remove(0);
        let mut body = std::pin::pin!(first);
        while let Some(frame) = body.frame().await {
            written.push(frame.expect("no error").into_data().expect("data"));
        }
        assert_eq!(written.iter().map(Bytes::len).sum::<usize>(), MIB);
        assert!(answer().await.is_err());
        written.clear();
        assert!(answer().await.is_ok());
        answers.clear();
        assert!(!taking.is_stuck(u64::MAX), "nothing is there");
    }
}
