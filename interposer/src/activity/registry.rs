//! The contexts and streams that live, and the work that destroyed streams left behind.

use super::streams::StreamDevices;
use std::collections::BTreeMap;

/// What lives.
#[derive(Debug, Default)]
pub struct Contexts {
    contexts: BTreeMap<usize, usize>,
    streams: BTreeMap<usize, Stream>,
    /// Events recorded on streams that were destroyed with work in them.
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
    }

    /// The stream of this handle lives.
    pub fn insert_stream(&mut self, handle: usize, stream: Stream) {
        self.streams.insert(handle, stream);
    }

    /// The stream of this handle is gone.
    pub fn forget_stream(&mut self, handle: usize) {
        self.streams.remove(&handle);
    }

    /// A stream is gone before its work.
    pub fn leave(&mut self, orphan: Orphan) {
        self.orphans.push(orphan);
    }

    /// A context is gone, and its streams with it.
    pub fn forget_context(&mut self, devices: &StreamDevices, context: usize) {
        self.contexts.remove(&context);
        self.streams.retain(|handle, stream| {
            let stays = stream.context != context;
            if !stays {
                devices.remove(*handle as u64);
            }
            stays
        });
        self.orphans.retain(|orphan| orphan.context != context);
    }
}
