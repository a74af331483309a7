//! The messages to the agent in one session.

use crate::memory::talk::Unheard;
use core::cell::Cell;
use tidegate_proto::v1::{self, client_event::Event};
use tokio::sync::mpsc;

/// The stream to the agent.
#[derive(Debug)]
pub struct Upstream {
    events: mpsc::UnboundedSender<v1::ClientEvent>,
    /// Messages after the first.
    sent: Cell<u64>,
    largest: Cell<Largest>,
}

/// The largest message of a stream, and what it is about.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    bytes: usize,
    what: Option<Unheard>,
}

impl Upstream {
    /// Begins with `hello`.
    pub fn new(events: mpsc::UnboundedSender<v1::ClientEvent>, hello: v1::Hello) -> Self {
        let up = Self {
            events,
            sent: Cell::new(0),
            largest: Cell::default(),
        };
        up.send(Event::Hello(hello));
        up.sent.set(0);
        up
    }

    /// Says something.
    pub fn send(&self, event: Event) {
        let bytes = event.encoded_len();
        if bytes > self.largest.get().bytes {
            let what = Unheard::of(&event);
            self.largest.set(Largest { bytes, what });
        }
        self.sent.set(self.sent.get() + 1);
        // A closed stream is seen by who reads it.
        let _ = self.events.send(v1::ClientEvent { event: Some(event) });
    }

    /// What the largest message was about, if it may be left out.
    pub fn largest(&self) -> Option<Unheard> {
        self.largest.get().what
    }

    /// Which message was the last, after the first.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }
}
