//! What the page shows of an elastic cache.

use crate::process::Process;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use tidegate_core::elastic::Elastic;

/// Writes an elastic cache's figures into the page; bytes used and mapped.
pub fn write_usage(
    process: &Process,
    device: usize,
    elastic: &Elastic,
    used_blocks: Option<u32>,
) -> (u64, u64) {
    let Some(words) = process.page().memory.get(device) else {
        return (0, 0);
    };
    let (reserved, ready) = elastic.counts();
    let mapped = elastic.mapped_bytes();
    let bytes_of = |blocks: u32| {
        let all = u64::from(reserved) + u64::from(ready);
        mapped.saturating_mul(u64::from(blocks)) / all.max(1)
    };
    // The cache's lock is held: nobody else writes these words.
    words.version.fetch_add(1, AcqRel);
    if let Some(used) = used_blocks {
        words.used.store(bytes_of(used), Release);
    }
    words.reserved.store(bytes_of(reserved), Release);
    words.mapped.store(mapped, Release);
    words.version.fetch_add(1, AcqRel);
    (words.used.load(Acquire), mapped)
}
