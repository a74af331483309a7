//! What control and memory cost, each with its source.
//!
//! One set holds for every policy of a table, so that no ranking rests on a cost that only one of
//! them pays. What no source gives is marked as an assumption, and is swept where it decides.

use std::time::Duration;

/// Bytes of the smallest physical memory handle (CUDA VMM granularity).
pub const HANDLE_BYTES: u64 = 2 << 20;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Costs of switching, of noticing, and of moving memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Disable of an offline job and save of its context: from the ioctl to a free GPU. Valve
    /// (arXiv 2604.07874, section 4.1) says less than 1 ms. 0.3 ms was assumed before anything was measured, and the
    /// results that are filed rest on it; on an H200 it is 0.55 ms beside one block and 0.70 beside a full GPU (P30), and
    /// 1.08 ms from the edge on as the agent counts it: `--switch-ms 0.7`.
    pub disable_save: Duration,
    /// Enable and restore: from the ioctl to offline running again. The same assumption; 0.34 ms on an H200.
    pub enable_restore: Duration,
    /// Online launch to entry of the disable ioctl. `scripts/bench edge` bounds its p99 at 50 us;
    /// a futex wake across processes was measured at 14 us p50 and 24 us p99 on two cores.
    pub edge: Duration,
    /// What an idle online engine takes from hearing of a request to its first launch: scheduling, and the inputs of the
    /// model. Nothing, unless it is asked for: the least that a gate can be given. vLLM 0.33.0 had offline's last channel
    /// off 1.0 ms before its first launch, after a preemption of 0.84 ms, where its scheduler alone says that a request
    /// came; 1.7 to 2.3 ms before it where its front end says so (medians, tests/engines/SERVED.md): `--lead-ms 1.9`.
    pub lead: Duration,
    /// How often the interposer's prober looks whether a busy device has become idle.
    pub probe: Duration,
    /// One time-slice switch between two processes that share the GPU. GPreempt (USENIX ATC 2025,
    /// abstract) reports 40 us on an A100; 200 and 500 us are swept.
    pub timeslice_switch: Duration,
    /// Offline side of taking one handle: unmap 25.6 us, map of the quarantine page 1.45 us, access
    /// 36.0 us (kvcached, benchmarks/bench_vmm, A100, 2 MiB pages).
    pub quarantine_handle: Duration,
    /// Release of a handle by its owner. vAttention's table (arXiv 2405.04437), from memory.
    pub release_handle: Duration,
    /// Creation of a handle: 193 us (kvcached, as above, where memory fills up); 27 us on an H100 (P7).
    pub create_handle: Duration,
    /// Map and access of a created handle: 1.45 us and 36.0 us (kvcached, as above).
    pub map_handle: Duration,
    /// One batch of page faults that brings a 2 MiB block over PCIe, beside the transfer itself.
    /// No source: an assumption, swept from 20 to 50 us.
    pub fault_group: Duration,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            disable_save: us(300),
            enable_restore: us(300),
            edge: us(40),
            lead: us(0),
            probe: us(500),
            timeslice_switch: us(200),
            quarantine_handle: us(63),
            release_handle: us(23),
            create_handle: us(193),
            map_handle: us(37),
            fault_group: us(30),
        }
    }
}

impl Costs {
    /// The same with disable and save, and enable and restore, taking `each`.
    #[must_use]
    pub fn with_switch(self, each: Duration) -> Self {
        Self {
            disable_save: each,
            enable_restore: each,
            ..self
        }
    }
}

/// A cost as the world counts time.
pub(crate) fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
