//! One call as it arrived, and its answer.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidegate_abi::{rm, uvm};
use tidegate_vgpu::wire::{Order, Reply};

use crate::world::FileId;

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

/// Structs of the driver's interface: integers only, so any bytes are a value.
///
/// # Safety
///
/// `repr(C)`, no padding that would have to be initialised, no invalid bit patterns.
pub(crate) unsafe trait Abi: Copy {}

macro_rules! abi {
    ($($ty:ty),* $(,)?) => { $(
        // SAFETY: integers and arrays of them, with explicit padding.
        unsafe impl Abi for $ty {}
    )* };
}
abi!(
    u32,
    rm::Nvos00,
    rm::Nvos21,
    rm::Nvos64,
    rm::Nvos54,
    rm::Nvos55,
    rm::Nvos57,
    rm::Nvos33WithFd,
    rm::Nvos34,
    rm::CardInfo,
    rm::SysParams,
    rm::Nv0080Alloc,
    rm::Nv2080Alloc,
    rm::ChannelGroupAlloc,
    rm::CtxShareAlloc,
    rm::ChannelAlloc,
    rm::MemoryAlloc,
    rm::VaspaceAlloc,
    rm::Timeslice,
    rm::Preempt,
    rm::RestartRunlist,
    rm::WorkSubmitToken,
    rm::IdInfoV2,
    rm::RmApiVersion,
    rm::AttachedIds,
    rm::ProbedIds,
    rm::AttachIds,
    rm::FbInfoV2,
    rm::GidInfo,
    rm::DisableChannels,
    uvm::UvmInitialize,
    uvm::UvmMmInitialize,
    uvm::UvmRegisterGpu,
    uvm::UvmRegisterGpuVaspace,
    uvm::UvmRegisterChannel,
    uvm::UvmCreateExternalRange,
    uvm::UvmUnmapExternal,
);

/// The `T` at the beginning of `bytes`.
pub(crate) fn get<T: Abi>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < mem::size_of::<T>() {
        return None;
    }
    // SAFETY: enough bytes, read without alignment, and `Abi` says that any bytes are a `T`.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Writes `value` over the beginning of `bytes`, if there is room.
pub(crate) fn put<T: Abi>(bytes: &mut [u8], value: &T) {
    if bytes.len() >= mem::size_of::<T>() {
        // SAFETY: enough room, written without alignment.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(*value) };
    }
}

/// The `u32` at `at`, 0 beyond the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(get::<u32>).unwrap_or(0)
}

/// The `u64` at `at`, 0 beyond the end.
pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

/// Writes a `u32` at `at`, if it lies inside.
pub(crate) fn put_word(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..) {
        put(place, &value);
    }
}
