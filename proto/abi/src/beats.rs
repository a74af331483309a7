//! The page on which an online process reports its iterations to the agent.
//!
//! It is a second sealed memfd of [`BYTES`]. An online process makes it when the agent asks for it, which is while a
//! trainer may get a lease beside it. The process writes all of it, and the agent reads it as hostile input.
//! [`crate::page`] has the rules of versions and clocks.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::page::DEVICES;

/// `TIDEBEAT`, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEBEAT");
/// Changes when a word moves or changes meaning.
pub const MAJOR: u32 = 1;
/// Grows when a word is added in what was padding.
pub const MINOR: u32 = 0;
/// Size of the page, also the size of its memfd.
pub const BYTES: usize = 4096;

/// The page. `repr(C)`; offsets are pinned below.
#[repr(C, align(4096))]
#[derive(Debug, Default)]
pub struct BeatPage {
    /// Written before the page is sent, constant afterwards.
    pub header: BeatHeader,
    /// Written by the process; index = CUDA ordinal in that process.
    pub devices: [BeatWords; DEVICES],
}

/// What the page is.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct BeatHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`MAJOR`].
    pub major: AtomicU32,
    /// [`MINOR`].
    pub minor: AtomicU32,
    /// [`BYTES`].
    pub bytes: AtomicU32,
    /// [`DEVICES`].
    pub devices: AtomicU32,
    /// The agent's number for this session.
    pub session: AtomicU64,
}

/// The last iteration of one device that ended, and what comes next.
///
/// The doorbell of [`crate::page::ProcessWords`] is rung after each end of an iteration.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct BeatWords {
    /// Raised by one before and after the words below change: odd while they do.
    pub version: AtomicU64,
    /// Iterations that ended since the process has this page.
    pub count: AtomicU64,
    /// When the last of them began: its first launch. By the clock of the process, as all times here.
    pub begin_ns: AtomicU64,
    /// When it ended: its outputs were there.
    pub end_ns: AtomicU64,
    /// Name of its shape: of its graph, else of its first launches. The same for iterations of about the same shape.
    pub fingerprint: AtomicU64,
    /// `known << 63 | batch`: requests that decoded in it, where the engine says so.
    pub batch: AtomicU64,
    /// Cached tokens of all requests that decode.
    pub cached: AtomicU64,
    /// Prompt tokens that it read.
    pub prompt: AtomicU64,
    /// Prompt tokens that wait to be read. An iteration that reads them comes next.
    pub waiting_tokens: AtomicU64,
    /// Requests that wait for room or for their turn.
    pub waiting: AtomicU64,
    /// Blocks of the KV cache that hold nothing.
    pub free_blocks: AtomicU64,
    /// Blocks of the KV cache in all; zero: the process does not say.
    pub blocks: AtomicU64,
}

/// [`BeatWords::batch`]: the engine said it. Without it, only times and fingerprint are known.
pub const BATCH_KNOWN: u64 = 1 << 63;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<BeatPage>() == BYTES);
    assert!(offset_of!(BeatPage, devices) == 128);
    assert!(size_of::<BeatWords>() == 128);
    assert!(128 + DEVICES * 128 <= BYTES);
};
