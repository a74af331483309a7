//! What comes in: the messages of a call, as far as the agent has room for them.
//!
//! The decoder behind this believes the length that a message begins with, and keeps what came of it until the rest is
//! there. So a message is let through only when its kind may be so long and its tenant has room for it, and it must end
//! within [`LIMIT`] of its first byte. The decoder asks for the next message when the last one is done with.

use super::rooms::{Room, Rooms};
use hyper::body::{Body as HttpBody, Buf as _, Bytes, Frame};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_node::kinds::Tenant;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

/// How long a message may take from its first byte to its last, and a call to its first message.
pub const LIMIT: Duration = Duration::from_secs(5);
/// Bytes before a message: a flag, and its length.
const PREFIX: usize = 5;
/// Bytes of it that tell its kind.
const KIND: usize = 2;
/// A decoded list takes so many times the room of its message.
const EXPANDS: usize = 4;

/// The refusal that status shows for a tenant whose connection is cut for it.
const ENDLESS: &str = "a message that does not end";
const LONG: &str = tidegate_proto::BEYOND_BOUNDS;

/// Longest message that begins so.
pub type Longest = fn(&[u8]) -> usize;

/// Room for the message that was let through last, for who keeps it longer than the decoder.
#[derive(Clone, Debug, Default)]
pub struct Carried(Arc<Mutex<Option<Room>>>);

impl Carried {
    /// Takes it.
    #[must_use]
    pub fn take(&self) -> Option<Room> {
        self.put(None)
    }

    fn put(&self, room: Option<Room>) -> Option<Room> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut kept, room)
    }
}

type Waiting = Pin<Box<dyn Future<Output = Room> + Send>>;

/// The body of a call.
pub struct Incoming {
    inner: Body,
    tenant: Tenant,
    rooms: Arc<Rooms>,
    longest: Longest,
    carried: Carried,
    /// What came and was not let through yet.
    rest: Bytes,
    /// The beginning of a message, until it tells length and kind.
    head: Vec<u8>,
    /// Bytes of the message let through that are to come.
    left: usize,
    /// For room, with the length of the message.
    waiting: Option<(Waiting, usize)>,
    limit: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    /// The body of a call of `tenant`.
    #[must_use]
    pub fn new(inner: Body, tenant: Tenant, rooms: Arc<Rooms>, longest: Longest) -> Self {
        Self {
            inner,
            tenant,
            rooms,
            longest,
            carried: Carried::default(),
            rest: Bytes::new(),
            head: Vec::with_capacity(PREFIX + KIND),
            left: 0,
            waiting: None,
            limit: Some(Box::pin(sleep(LIMIT))),
        }
    }

    /// Where room for the last message is.
    #[must_use]
    pub fn carried(&self) -> Carried {
        self.carried.clone()
    }

    fn refuse(&self, what: &'static str) -> Status {
        self.rooms.refuse(&self.tenant, what);
        Status::resource_exhausted(what)
    }

    /// The next bytes that came; none: that were all.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Status>> {
        Poll::Ready(match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            None => Ok(None),
            Some(Err(status)) => Err(status),
            Some(Ok(frame)) => Ok(Some(frame)),
        })
    }

    /// Moves what came into the head; the length of the message once it is told.
    fn begin(&mut self) -> Option<usize> {
        loop {
            let length = self.head.get(1..PREFIX).map(|prefix| {
                let prefix: [u8; 4] = prefix.try_into().unwrap_or_default();
                usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX)
            });
            let told = length.map_or(PREFIX, |length| PREFIX + length.min(KIND));
            if self.head.len() >= told {
                return length;
            }
            if self.rest.is_empty() {
                return None;
            }
            self.head.push(self.rest.get_u8());
        }
    }

    /// One step: `Some` is to be passed on.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Option<Frame<Bytes>>>, Status>> {
        if let Some((room, length)) = &mut self.waiting {
            let (room, length) = (ready!(room.as_mut().poll(cx)), *length);
            self.waiting = None;
            self.carried.put(Some(room));
            self.left = length + PREFIX - self.head.len();
            let head = Bytes::from(std::mem::take(&mut self.head));
            if self.left == 0 {
                self.limit = None;
            }
            return Poll::Ready(Ok(Some(Some(Frame::data(head)))));
        }
        if self.left > 0 && !self.rest.is_empty() {
            let part = self.rest.split_to(self.rest.len().min(self.left));
            self.left -= part.len();
            if self.left == 0 {
                self.limit = None;
            }
            return Poll::Ready(Ok(Some(Some(Frame::data(part)))));
        }
        if self.left == 0 && !self.rest.is_empty() {
            if self.head.is_empty() {
                // The one before is done with.
                self.carried.put(None);
                self.limit.get_or_insert_with(|| Box::pin(sleep(LIMIT)));
            }
            if let Some(length) = self.begin() {
                if length > (self.longest)(&self.head[PREFIX..]) {
                    return Poll::Ready(Err(self.refuse(LONG)));
                }
                let wait = Arc::clone(&self.rooms).wait(self.tenant.clone(), EXPANDS * length);
                self.waiting = Some((Box::pin(wait), length));
            }
            return Poll::Ready(Ok(None));
        }
        match ready!(self.poll_more(cx))? {
            None => Poll::Ready(Ok(Some(None))),
            Some(frame) => Poll::Ready(Ok(match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    None
                }
                Err(trailers) => Some(Some(trailers)),
            })),
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            match self.step(cx) {
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(frame))) => return Poll::Ready(frame.map(Ok)),
                Poll::Ready(Err(status)) => return Poll::Ready(Some(Err(status))),
                Poll::Pending => break,
            }
        }
        match &mut self.limit {
            Some(limit) => ready!(limit.as_mut().poll(cx)),
            None => return Poll::Pending,
        }
        Poll::Ready(Some(Err(self.refuse(ENDLESS))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    const MIB: usize = 1 << 20;

    type Sent = mpsc::UnboundedSender<Result<Frame<Bytes>, Status>>;

    fn message(kind: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).expect("short").to_be_bytes());
        bytes.extend([kind].repeat(length));
        bytes
    }

    /// Kind 1 may be long.
    fn longest(kind: &[u8]) -> usize {
        if kind.first() == Some(&1) {
            4 * MIB
        } else {
            100
        }
    }

    fn call(rooms: &Arc<Rooms>) -> (Incoming, Sent) {
        let (tx, rx) = mpsc::unbounded_channel();
        let body = Body::new(StreamBody::new(UnboundedReceiverStream::new(rx)));
        let tenant = Tenant::User(70_000);
        (Incoming::new(body, tenant, Arc::clone(rooms), longest), tx)
    }

    fn send(tx: &Sent, bytes: &[u8]) {
        let frame = Frame::data(Bytes::copy_from_slice(bytes));
        tx.send(Ok(frame)).expect("it is read");
    }

    async fn next(call: &mut Incoming) -> Option<Result<Bytes, Status>> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *call).poll_frame(cx)).await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    #[tokio::test]
    async fn messages_come_through_as_they_were_sent_however_they_are_cut() {
        for step in [1, 3, 7, 64, 10_000] {
            let rooms = Arc::new(Rooms::new(MIB, Arc::default()));
            let (mut call, tx) = call(&rooms);
            let sent: Vec<u8> = [0, 1, 2, 100, 5]
                .into_iter()
                .flat_map(|length| message(7, length))
                .chain(message(1, 70_000))
                .collect();
            sent.chunks(step).for_each(|part| send(&tx, part));
            drop(tx);
            let mut heard = Vec::new();
            while let Some(part) = next(&mut call).await {
                heard.extend(part.expect("it is within bounds"));
            }
            assert_eq!(heard, sent, "in parts of {step}");
        }
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[tokio::test(start_paused = true)]
    async fn a_length_is_believed_by_its_kind_and_where_there_is_room() {
        let refusals = Arc::default();
        let rooms = Arc::new(Rooms::new(8 * MIB, Arc::clone(&refusals)));
        let (mut long, tx) = call(&rooms);
        send(&tx, &message(7, 101));
        let error = next(&mut long)
            .await
            .expect("an end")
            .expect_err("it is long");
        assert_eq!(error.message(), LONG);
        // Two of them are all that a tenant may have begun.
        let mut begun = Vec::new();
        for _ in 0..2 {
            let (mut call, tx) = call(&rooms);
            send(&tx, &message(1, MIB)[..1_000]);
            let head = next(&mut call)
                .await
                .expect("it goes on")
                .expect("there is room");
            assert_eq!(head.len(), PREFIX + KIND);
            begun.push((call, tx));
        }
        let (mut third, tx) = call(&rooms);
        send(&tx, &message(1, MIB)[..1_000]);
        tokio::select! {
            biased;
            heard = next(&mut third) => panic!("{heard:?}"),
            () = tokio::time::sleep(LIMIT / 2) => {}
        }
        begun.pop();
        assert!(next(&mut third).await.expect("it goes on").is_ok());
        assert!(
            refusals
                .rows()
                .iter()
                .any(|row| row.what.contains("read later"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_end_is_cut_and_a_pause_between_two_is_not() {
        let refusals = Arc::default();
        let rooms = Arc::new(Rooms::new(MIB, Arc::clone(&refusals)));
        let (mut call, tx) = call(&rooms);
        send(&tx, &message(7, 3));
        for _ in 0..2 {
            next(&mut call)
                .await
                .expect("it goes on")
                .expect("it is whole");
        }
        let mut waits = Box::pin(next(&mut call));
        tokio::select! {
            biased;
            heard = &mut waits => panic!("{heard:?}"),
            () = tokio::time::sleep(100 * LIMIT) => {}
        }
        send(&tx, &message(7, 30)[..20]);
        waits.await.expect("it goes on").expect("it is begun");
        next(&mut call)
            .await
            .expect("it goes on")
            .expect("some of it");
        let cut = tokio::time::timeout(LIMIT + Duration::from_millis(10), next(&mut call));
        let cut = cut.await.expect("in time").expect("an end");
        let cut = cut.expect_err("it does not end");
        assert_eq!(cut.message(), ENDLESS);
        assert_eq!(refusals.rows()[0].what, ENDLESS);
        drop(tx);
    }

    #[tokio::test]
    async fn who_keeps_a_message_keeps_its_room() {
        const UNITS: usize = 40_000;
        let rooms = Arc::new(Rooms::new(4 * UNITS, Arc::default()));
        let (mut call, tx) = call(&rooms);
        let carried = call.carried();
        send(&tx, &[message(1, UNITS), message(1, UNITS)].concat());
        for _ in 0..2 {
            next(&mut call)
                .await
                .expect("it goes on")
                .expect("there is room");
        }
        let kept = carried.take().expect("of the first");
        let tenant = Tenant::User(70_000);
        assert!(rooms.take(&tenant, 3 * UNITS).is_none());
        drop(kept);
        assert!(rooms.take(&tenant, 3 * UNITS).is_some());
        next(&mut call)
            .await
            .expect("it goes on")
            .expect("there is room");
    }
}
