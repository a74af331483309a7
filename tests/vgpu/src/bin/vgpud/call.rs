//! One call as it arrived, and its answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidegate_vgpu::wire::{Order, Reply};

/// Names an open file: one connection.
pub(crate) type FileId = u64;

/// An ioctl.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// When it arrived.
    pub(crate) now: u64,
    pub(crate) file: FileId,
    /// The process that made it.
    pub(crate) caller: u32,
    pub(crate) request: u64,
    /// When the caller entered it, by its own clock reading.
    pub(crate) entry_ns: u64,
    /// What it read off the clock before that, the last time but one.
    pub(crate) read_ns: u64,
    pub(crate) params: &'a mut [u8],
    pub(crate) nested: &'a mut [u8],
    /// The open file that the parameters name, if it is one of ours.
    pub(crate) named: Option<FileId>,
}

/// How it is answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Not before this instant.
    pub(crate) due: u64,
    pub(crate) reply: Reply,
    pub(crate) memory: Option<Arc<OwnedFd>>,
    /// Recorded when the answer goes out.
    pub(crate) record: Option<tidegate_vgpu::history::Record>,
}

impl Answer {
    /// Success, at `due`; RM's own result is in the parameters.
    pub(crate) const fn at(due: u64) -> Self {
        Self {
            due,
            reply: Reply::OK,
            memory: None,
            record: None,
        }
    }

    /// The system call fails.
    pub(crate) const fn errno(now: u64, errno: i32) -> Self {
        let mut answer = Self::at(now);
        answer.reply.errno = errno;
        answer
    }

    /// Has the shim map or unmap a range before it returns.
    pub(crate) const fn order(mut self, order: Order, base: u64, length: u64, offset: u64) -> Self {
        self.reply.order = order as u32;
        self.reply.base = base;
        self.reply.length = length;
        self.reply.offset = offset;
        self
    }
}

/// The `u32` at `at`, 0 beyond the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Writes a `u32` at `at`, if it lies inside.
pub(crate) fn put_word(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value.to_ne_bytes();
    }
}
