//! libcuda.so.1 of the virtual GPU.
//!
//! Unmodified programs load this library and find the public CUDA 13.5 driver API: every entry
//! point is exported under all its names, the ones real programs use do what the manual says, and
//! the rest answer `CUDA_ERROR_NOT_SUPPORTED`. Below, it is a driver client like the real one: it
//! opens `/dev/nvidia*`, allocates objects with RM ioctls through libc's `ioctl` (so a preloaded
//! library sees them), maps its channels' rings, and launches by storing into a ring and ringing a
//! doorbell, with no system call that anybody could stop.
//!
//! Out of scope: the vendor's runtime library. It authenticates the driver through private tables;
//! [`proc_address::export_table`] answers "not found" for every table, and nothing here may change
//! that.
//!
//! Layers, each using only what stands above it in this list:
//! * [`rm`] ioctls, [`gpu`] what is opened once per process and per GPU, [`futex`];
//! * [`locks`]: what the real library holds while it waits;
//! * [`channel`] rings: entries, points, waiting;
//! * [`objects`]: contexts and streams, the order of work, and what work is about;
//! * [`graph`], [`capture`], [`capturing`]: work that is recorded instead of run;
//! * [`submit`], which asks whether it is; [`nodes`], [`instance`], [`memory`], [`event`], [`stream`],
//!   [`context`] and the others: the calls;
//! * [`exports`]: one row per entry point, from which build.rs makes the rest of the list.
//!
//! Invariant: a call inside this library never goes through an exported symbol, so a preloaded
//! library sees an application's calls and no others.
#![allow(missing_debug_implementations)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "a library without a Rust interface: its readers are its maintainers"
)]

mod capture;
mod capturing;
mod channel;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod exports;
mod futex;
mod gpu;
mod graph;
mod green;
mod handle;
mod host;
mod image;
mod instance;
mod launch;
mod legacy;
mod link;
mod locks;
mod memory;
mod module;
mod nodes;
mod objects;
mod occupancy;
mod pool;
mod proc_address;
mod result;
mod rm;
mod settings;
mod stream;
mod stubs;
mod submit;
mod values;
mod vmm;
