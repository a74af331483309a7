//! The edges of a process without a page.
//!
//! Only the newest edge of a device matters, so there is one place for each device and no queue. The prober writes the
//! newest edge there, and the reporter sends it once the agent has confirmed the last edge of that device. However fast
//! devices become busy and idle, at most one edge of each is under way, and a slow agent is behind by no more than
//! that.

use super::messages::edge;
use super::upstream::Upstream;
use crate::process::Process;
use crate::sys;
use std::time::Duration;
use tidegate_abi::page::DEVICES;

/// How long an agent that does not confirm edges is given for one, ns. An agent that reads 4,096 messages a second
/// receives those of 16 devices in that time.
const UNHEARD_NS: u64 = 5_000_000;

/// The last edge of a device that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// Its number among the messages of the stream.
    message: u64,
    at_ns: u64,
}

/// The last edges of all devices in this session.
#[derive(Debug, Default)]
pub struct Edges {
    said: [Said; DEVICES],
    /// Messages that the agent has confirmed, if it confirms messages.
    heard: Option<u64>,
}

impl Edges {
    /// The agent confirms messages.
    pub fn hears(&mut self) {
        self.heard.get_or_insert(0);
    }

    /// The agent has confirmed this many messages.
    pub fn heard(&mut self, messages: u64) {
        self.heard = Some(messages);
    }

    /// When the next edge of a device may be sent; 0: at once. None: when the agent has confirmed the last one.
    fn next_ns(&self, device: usize) -> Option<u64> {
        let said = self.said[device];
        match self.heard {
            _ if said.message == 0 => Some(0),
            Some(heard) => (heard >= said.message).then_some(0),
            None => Some(said.at_ns + UNHEARD_NS),
        }
    }

    /// Sends the newest edge of each device for which it may.
    pub fn deliver(&mut self, process: &Process, up: &Upstream, now: u64) {
        for device in 0..DEVICES {
            if self.next_ns(device).is_none_or(|at_ns| now < at_ns) {
                continue;
            }
            let Some(newest) = sys::lock(&process.rm).edges[device].take() else {
                continue;
            };
            up.send(edge(device, newest));
            self.said[device] = Said {
                message: up.sent(),
                at_ns: now,
            };
        }
    }

    /// How long until a waiting edge may be sent; None if it waits for the agent's confirmation.
    pub fn wake_in(&self, process: &Process, now: u64) -> Option<Duration> {
        let rm = sys::lock(&process.rm);
        let waits = rm.edges.iter().enumerate();
        let waits = waits.filter(|(_, edge)| edge.is_some());
        let next = waits.filter_map(|(device, _)| self.next_ns(device)).min()?;
        Some(Duration::from_nanos(next.saturating_sub(now).max(100_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(edges: &mut Edges, device: usize, message: u64, at_ns: u64) {
        edges.said[device] = Said { message, at_ns };
    }

    #[test]
    fn of_each_device_one_edge_is_on_its_way() {
        let mut edges = Edges::default();
        edges.hears();
        assert_eq!(edges.next_ns(3), Some(0));
        said(&mut edges, 3, 7, 1);
        assert_eq!((edges.next_ns(3), edges.next_ns(4)), (None, Some(0)));
        edges.heard(6);
        assert_eq!(edges.next_ns(3), None);
        edges.heard(7);
        assert_eq!(edges.next_ns(3), Some(0));
    }

    #[test]
    fn an_agent_that_does_not_say_what_it_hears_is_given_time() {
        let mut edges = Edges::default();
        assert_eq!(edges.next_ns(0), Some(0));
        said(&mut edges, 0, 1, 10);
        assert_eq!(edges.next_ns(0), Some(10 + UNHEARD_NS));
    }
}
