//! Every parameter of every policy that is not ours, with its source.
//!
//! They were written down before our own policy was run for the first time, and a change to this
//! file is a change of its own, with its reason. Where no source gives a value, the one that is
//! kinder to the baseline is taken, and said so. What decides a ranking (the switch cost of
//! GPreempt, the page-fault cost of UVM) is swept and not chosen; both are in [`crate::costs`],
//! with what all policies share.

use std::time::Duration;

/// NoControl: the time slice of a channel group. 2 ms is the driver's default as the virtual GPU
/// has it; no published source. The GPU takes the groups in turn.
pub const TIMESLICE: Duration = Duration::from_millis(2);

/// KernelPreempt: kernels that are in the queue when online becomes active and run to their end.
/// XSched (OSDI 2025) level 1 and TGS (NSDI 2023) bound what is in flight; one is kindest.
/// A decode is one CUDA graph and ends as a whole (Valve, arXiv 2604.07874, section 2.3).
pub const KERNELS_IN_FLIGHT: u32 = 1;
/// Kernels of one layer of a prefill: about ten in vLLM (projections, attention, norms, rotary
/// embedding, activation, cache write).
pub const KERNELS_PER_LAYER: u32 = 10;

/// Channel: cooldown as a multiple of the longest decode gap (Valve, section 4.2). The gap is the
/// longest of the whole run, known from its start: kinder than the paper's measurement at run time.
pub const COOLDOWN_GAPS: u32 = 2;

/// Prism: pages that an engine keeps mapped beside those it uses (kvcached, the open
/// implementation: `KVCACHED_MAX_RESERVED_PAGES`, default 10). A page is 2 MiB of the keys or the
/// values of one layer, and is mapped for all of them at once.
pub const PRISM_RESERVED_PAGES: u64 = 10;

/// StaticMem: offline has the least free memory of the past hour (Valve, section 7.2). The past is
/// taken to be the run itself, so that it is never wrong: kinder than a past that differs.
/// A job that is killed all the same starts again after this: weights of 16 GB at 2 GB/s from
/// disk cache, and the engine's start. An assumption.
pub const RESTART: Duration = Duration::from_secs(30);

/// StaticSplit: online's share of the pool (HARLI, static mode: 60 to 40).
pub const ONLINE_SHARE: f64 = 0.6;

/// UVM: whether memory that online freed comes back to offline. Online allocates ordinary device
/// memory (Valve, section 7.2), which an engine's allocator keeps; offline "cannot use memory
/// already allocated by online".
pub const UVM_ONLINE_GIVES_BACK: bool = false;
