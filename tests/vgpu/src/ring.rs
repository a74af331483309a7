//! What the virtual libcuda and the device process share: the channel ring, the doorbell, semaphores.
//!
//! On hardware a launch is a few stores: method words into a pushbuffer, an entry into the GPFIFO,
//! the new GP_PUT, and a store to the doorbell in the mapped usermode page. No ioctl is on that path,
//! and so nothing short of disabling the channel stops work once it is queued. The virtual GPU keeps
//! that shape: [`Ring`] is one channel's GPFIFO, mapped by `NV_ESC_RM_MAP_MEMORY` of the channel and
//! `mmap` of the GPU's file; [`Usermode`] is the doorbell page, mapped the same way from the usermode
//! object. Both are memfds of the device process.
//!
//! A channel executes its entries in order. Kernels of different channels of one TSG run side by
//! side; TSGs of one engine take turns.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Entries of a ring.
pub const ENTRIES: usize = 1024;
/// Words of arguments an entry carries. A kernel with more loses the rest: only the kernels the
/// device knows read theirs.
pub const ARGS: usize = 24;
/// Bytes of a mapped ring.
pub const RING_BYTES: usize = 4096 + ENTRIES * 256;
/// Bytes of the usermode page.
pub const USERMODE_BYTES: usize = 4096;

/// One channel's queue. The client owns `put` and the entries between `get` and `put`.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Ring {
    /// Client: entries published since the beginning (not an index).
    pub put: AtomicU64,
    _pad0: [u64; 7],
    /// Device: entries whose execution began. Its low half is a shared futex, woken when an
    /// [`Op::HostFunc`] begins: its client may run the function then.
    pub get: AtomicU64,
    /// Device: entries finished. Its low half is a shared futex, woken at every change.
    pub done: AtomicU64,
    /// Device: 0, or the Xid that killed the channel. Woken through `done`.
    pub error: AtomicU32,
    _pad1: [u32; 11],
    /// Client: [`Op::HostFunc`] entries whose function has returned.
    pub host_done: AtomicU64,
    _pad2: [u64; 7],
}
const _: () = assert!(core::mem::size_of::<Ring>() == 4096);

/// One entry, 256 bytes; the array of [`ENTRIES`] follows the [`Ring`] page.
#[repr(C, align(256))]
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// [`Op`] as a number.
    pub op: u32,
    /// Words of `args` in use.
    pub args_used: u32,
    /// Name of the kernel as [`kernel_id`]; 0 for other operations.
    pub kernel: u64,
    /// Distinguishes launches for the history: a graph launch gives all its entries one number.
    pub launch: u64,
    /// Arguments, by `op`.
    pub args: [u64; ARGS],
    /// Grid and block as launched.
    pub dims: [u32; 6],
    /// Of a kernel: the first multiprocessor it may run on, and how many.
    pub sms: [u64; 2],
}
const _: () = assert!(core::mem::size_of::<Entry>() == 256);

/// What an entry asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    /// Does nothing, takes no time.
    Nop = 0,
    /// Runs `kernel` with `args`.
    Kernel = 1,
    /// Copies `args[2]` bytes from `args[1]` to `args[0]`, addresses of the owner's process.
    Copy = 2,
    /// Fills `args[1]` elements of `args[3]` bytes (1, 2 or 4) at `args[0]` with the value `args[2]`;
    /// `args[4]` rows of pitch `args[5]` bytes when `args[4]` is not 0.
    Fill = 3,
    /// Stores `args[1]` into semaphore `args[0]` (index into the semaphore pool) if it is greater,
    /// stamps it and wakes it.
    Release = 4,
    /// Waits until semaphore `args[0]` is at least `args[1]`.
    Acquire = 5,
    /// Begins (`get` passes it), then waits until the client has run its host function number
    /// `args[0]`: `host_done >= args[0]`.
    HostFunc = 6,
    /// Stores `args[1]` (`args[2]` = 4 or 8 bytes) at address `args[0]`.
    Write = 7,
    /// Waits until the value at `args[0]` meets `args[1]`: `args[3]` = 0 GEQ (cyclic), 1 EQ, 2 AND, 3 NOR;
    /// `args[2]` = 4 or 8 bytes. Polled by the device.
    WaitValue = 8,
}

/// The doorbell page of one GPU, shared by all its clients.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Usermode {
    /// Shared futex. A client adds one after publishing an entry, or changing `host_done`.
    pub doorbell: AtomicU32,
    /// Device: 1 while its thread sleeps on `doorbell`. A client makes the `futex_wake` call only then.
    pub sleeping: AtomicU32,
}

/// Semaphores of one client process, in a system-memory object mapped like a ring.
/// Index 0 is never used.
#[repr(C)]
#[derive(Debug)]
pub struct Semaphore {
    /// The value; its low half is a shared futex, woken by the device at every release.
    pub value: AtomicU64,
    /// Device time (`CLOCK_MONOTONIC` ns) of the last release.
    pub at_ns: AtomicU64,
}
/// Semaphores in one pool.
pub const SEMAPHORES: usize = 65_536;

/// The number a kernel's name has on the ring: FNV-1a, 64 bit.
#[must_use]
pub const fn kernel_id(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}
