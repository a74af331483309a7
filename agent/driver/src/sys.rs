//! System calls in the shape that the agent needs, where no library has them so.
//!
//! * `shared`: memory that other processes write too, handed out as atomics.
//! * `futex`: sleeping on words of such memory, on one or on 128.
//! * `descriptors`: processes and other processes' files as descriptors; descriptors over sockets.
//! * `namespaces`: whose namespaces a process is in, and the groups of who connected.
//! * `scheduling`, `clock`: of threads, of time.
//!
//! Where `nix` has a call, it is used. It calls the C library, in which the virtual GPU's shim stands: a
//! library that enters the kernel by itself would see the machine's own files there.

mod clock;
mod descriptors;
mod futex;
mod namespaces;
mod scheduling;
mod shared;

pub use clock::{monotonic_ns, realtime_ns};
pub use descriptors::{
    character_device, deliver_in_line, descriptor_limit, files_waiting, own_descriptors,
    passed_descriptor, peek, peer_pidfd, pidfd_ended, pidfd_getfd, pidfd_open, pidfd_signal,
    raise_descriptor_limit, receive_plain, receive_with_descriptors, send_with_descriptors,
};
pub use futex::{
    Awake, WAITV_MAX, WaitSet, futex_wait, futex_wake, futex_wake_low, has_futex_waitv,
};
pub use namespaces::{Below, namespace_below, peer_groups};
pub use scheduling::{ThreadUse, query_membarrier, schedule_fifo, thread_use};
pub use shared::{SharedBeats, SharedPage, SharedWords};
