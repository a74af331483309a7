//! The contexts and streams that exist, and the work that destroyed streams left behind.
//!
//! Nobody calls the driver while the registry is locked. A call that destroys something waits for work, that work may
//! wait for another thread of the program, and that thread for the lock. So calls that destroy a context or a stream,
//! and the prober's queries, announce themselves here, by device, and avoid each other.

use super::streams::StreamDevices;
use std::collections::BTreeMap;

/// What lives.
#[derive(Debug, Default)]
pub struct Contexts {
    contexts: BTreeMap<usize, usize>,
    streams: BTreeMap<usize, Stream>,
    /// Events recorded on streams that were destroyed with work in them.
    orphans: Vec<Orphan>,
    /// Calls under way that end a context or a stream: the device, and the thread that is inside.
    ending: Vec<(usize, i32)>,
    /// The device that the prober asks about at this moment.
    asked: Option<usize>,
    /// Captures that were begun and not ended: the stream, and its context.
    captures: Vec<(usize, usize)>,
    /// Contexts that were noted.
    noted: u64,
}

/// What a call that ends a context took from the registry, until it is known whether it did.
#[derive(Debug)]
pub struct Leaving {
    context: usize,
    device: usize,
    streams: Vec<(usize, Stream)>,
    orphans: Vec<Orphan>,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Its context.
    pub context: usize,
    /// Its device.
    pub device: usize,
}

/// The end of a destroyed stream's work.
#[derive(Clone, Copy, Debug)]
pub struct Orphan {
    /// Recorded before the stream went.
    pub event: usize,
    /// Its context.
    pub context: usize,
    /// Its device.
    pub device: usize,
}

impl Contexts {
    /// The stream of this handle.
    pub fn stream(&self, handle: usize) -> Option<Stream> {
        self.streams.get(&handle).copied()
    }

    /// Contexts of a device.
    pub fn contexts_of(&self, device: usize) -> impl Iterator<Item = usize> {
        self.contexts
            .iter()
            .filter(move |(_, at)| **at == device)
            .map(|(context, _)| *context)
    }

    /// Streams of a device.
    pub fn streams_of(&self, device: usize) -> impl Iterator<Item = (usize, Stream)> {
        self.streams
            .iter()
            .filter(move |(_, stream)| stream.device == device)
            .map(|(handle, stream)| (*handle, *stream))
    }

    /// What destroyed streams of a device left behind.
    pub fn orphans_of(&self, device: usize) -> Vec<Orphan> {
        self.orphans
            .iter()
            .filter(|orphan| orphan.device == device)
            .copied()
            .collect()
    }

    /// Forgets an orphan whose work is done.
    pub fn adopt(&mut self, event: usize) {
        self.orphans.retain(|orphan| orphan.event != event);
    }

    /// The context of this handle lives, on this device.
    pub fn insert_context(&mut self, context: usize, device: usize) {
        self.contexts.insert(context, device);
        self.noted = self.noted.wrapping_add(1);
    }

    /// The device of a context.
    pub fn device_of(&self, context: usize) -> Option<usize> {
        self.contexts.get(&context).copied()
    }

    /// How often a context was noted: a handle that was gone may have come back if this changed.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// The prober is about to ask about `device`; `false`: a call is under way that ends something there. A thread that
    /// died inside such a call never says so.
    pub fn asks(&mut self, device: usize, lives: impl Fn(i32) -> bool) -> bool {
        self.ending
            .retain(|(at, thread)| *at != device || lives(*thread));
        let free = self.ending.iter().all(|(at, _)| *at != device);
        if free {
            self.asked = Some(device);
        }
        free
    }

    /// The prober has asked.
    pub fn asked(&mut self) {
        self.asked = None;
    }

    /// `thread` is about to end something of `device`; `false`: the prober asks there, try again.
    pub fn ends(&mut self, device: usize, thread: i32) -> bool {
        let free = self.asked != Some(device);
        if free {
            self.ending.push((device, thread));
        }
        free
    }

    /// The call of `thread` that was to end something of `device` came back.
    pub fn ended(&mut self, device: usize, thread: i32) {
        if let Some(at) = self.ending.iter().position(|end| *end == (device, thread)) {
            self.ending.swap_remove(at);
        }
    }

    /// A capture begins on a stream of this context.
    pub fn capture_begins(&mut self, stream: usize, context: usize) {
        self.captures.push((stream, context));
    }

    /// A capture that began on a stream ended. Each thread's own stream has one name in all contexts: that of the calling
    /// thread's, if it has one, is meant.
    pub fn capture_ended(&mut self, stream: usize, context: Option<usize>) {
        let mut captures = self.captures.iter();
        let exactly = captures.position(|of| Some(*of) == context.map(|context| (stream, context)));
        let by_name = || self.captures.iter().position(|(of, _)| *of == stream);
        if let Some(at) = exactly.or_else(by_name) {
            self.captures.swap_remove(at);
        }
    }

    /// How many captures are gone with the stream or the context on which they began, nobody having ended them.
    pub fn captures_gone(&mut self, is_gone: impl Fn(usize, usize) -> bool) -> usize {
        let before = self.captures.len();
        self.captures
            .retain(|(stream, context)| !is_gone(*stream, *context));
        before - self.captures.len()
    }

    /// The stream of this handle lives.
    pub fn insert_stream(&mut self, handle: usize, stream: Stream) {
        self.streams.insert(handle, stream);
    }

    /// Takes the stream of this handle: it is about to go, and its handle to be another's.
    pub fn take_stream(&mut self, handle: usize) -> Option<Stream> {
        self.streams.remove(&handle)
    }

    /// A stream is gone before its work.
    pub fn leave(&mut self, orphan: Orphan) {
        self.orphans.push(orphan);
    }

    /// Takes a context with its streams: it is about to go, and its handle to be another's.
    pub fn take_context(&mut self, devices: &StreamDevices, context: usize) -> Option<Leaving> {
        let device = self.contexts.remove(&context)?;
        let mut streams = Vec::new();
        self.streams.retain(|handle, stream| {
            let stays = stream.context != context;
            if !stays {
                devices.remove(*handle as u64);
                streams.push((*handle, *stream));
            }
            stays
        });
        let (orphans, others) = std::mem::take(&mut self.orphans)
            .into_iter()
            .partition(|orphan| orphan.context == context);
        self.orphans = others;
        Some(Leaving {
            context,
            device,
            streams,
            orphans,
        })
    }

    /// It did not go.
    pub fn put_back(&mut self, devices: &StreamDevices, leaving: Leaving) {
        self.insert_context(leaving.context, leaving.device);
        for (handle, stream) in leaving.streams {
            devices.insert(handle as u64, stream.device);
            self.streams.insert(handle, stream);
        }
        self.orphans.extend(leaving.orphans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_ends_keep_clear_of_each_other_on_one_device_only() {
        let mut contexts = Contexts::default();
        assert!(contexts.asks(0, |_| true));
        assert!(!contexts.ends(0, 7), "the prober asks there");
        assert!(contexts.ends(1, 7));
        contexts.asked();
        assert!(!contexts.asks(1, |_| true), "7 is inside");
        assert!(contexts.ends(1, 8), "ends do not wait for each other");
        contexts.ended(1, 7);
        assert!(!contexts.asks(1, |_| true), "8 is still inside");
        assert!(contexts.asks(1, |thread| thread != 8), "8 died inside");
    }

    #[test]
    fn a_context_that_did_not_go_is_as_it_was() {
        let (mut contexts, devices) = (Contexts::default(), StreamDevices::default());
        contexts.insert_context(10, 1);
        contexts.insert_context(20, 0);
        for (handle, context, device) in [(100, 10, 1), (101, 10, 1), (200, 20, 0)] {
            contexts.insert_stream(handle, Stream { context, device });
            devices.insert(handle as u64, device);
        }
        let leaving = contexts.take_context(&devices, 10).expect("it lives");
        assert_eq!(contexts.contexts_of(1).count(), 0);
        assert_eq!(contexts.streams_of(1).count(), 0);
        assert_eq!(devices.get(100), None);
        contexts.put_back(&devices, leaving);
        assert_eq!(contexts.contexts_of(1).collect::<Vec<_>>(), [10]);
        let handles: Vec<usize> = contexts.streams_of(1).map(|(handle, _)| handle).collect();
        assert_eq!(handles, [100, 101]);
        assert_eq!(devices.get(101), Some(1));
    }

    #[test]
    fn captures_go_with_their_stream_or_context() {
        let mut contexts = Contexts::default();
        for (stream, context) in [(1, 10), (2, 10), (3, 20), (2, 20), (2, 20)] {
            contexts.capture_begins(stream, context);
        }
        contexts.capture_ended(1, None);
        contexts.capture_ended(2, Some(20));
        assert_eq!(contexts.captures_gone(|stream, _| stream == 3), 1);
        assert_eq!(contexts.captures_gone(|_, context| context == 10), 1);
        assert_eq!(contexts.captures_gone(|_, _| true), 1);
    }
}
