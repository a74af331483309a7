//! On which device a stream is, for launches: readable without a lock.
//!
//! An entry holds a stream's handle and its device in one word, so that no reader sees half a change. Entries are
//! written under the lock of [`crate::state::activity::registry::Contexts`]. The handle of a stream names a few
//! entries; the stream is in one of them, and a reader looks at all. If none is free, the stream is not in the table,
//! and its launches ask the driver for the thread's context instead.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const ENTRIES: usize = 2048;
/// Entries that a handle may be in.
const NEAR: usize = 8;
const DEVICE_BITS: u32 = 8;

/// The table.
#[derive(Debug)]
pub struct StreamDevices([AtomicU64; ENTRIES]);

impl Default for StreamDevices {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; ENTRIES])
    }
}

/// Handle and device as one word; none: the handle is no user-space address.
fn word(handle: u64, device: usize) -> Option<u64> {
    let device = u64::try_from(device).ok()?;
    (handle >> (u64::BITS - DEVICE_BITS) == 0 && device + 1 < 1 << DEVICE_BITS)
        .then_some(handle << DEVICE_BITS | (device + 1))
}

impl StreamDevices {
    fn near(&self, handle: u64) -> impl Iterator<Item = &AtomicU64> {
        // Handles are addresses of heap objects: the low bits say little, the product's high ones much.
        let hash = handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ENTRIES.ilog2());
        let first = usize::try_from(hash).unwrap_or(0);
        (first..first + NEAR).filter_map(|at| self.0.get(at % ENTRIES))
    }

    /// The device of a stream that is in the table.
    pub fn get(&self, handle: u64) -> Option<usize> {
        self.near(handle)
            .map(|entry| entry.load(Acquire))
            .find(|word| *word != 0 && word >> DEVICE_BITS == handle)
            .and_then(|word| {
                usize::try_from(word & ((1 << DEVICE_BITS) - 1))
                    .ok()?
                    .checked_sub(1)
            })
    }

    /// Puts a stream in; the caller holds the registry's lock.
    pub fn insert(&self, handle: u64, device: usize) {
        self.remove(handle);
        let free = self.near(handle).find(|entry| entry.load(Relaxed) == 0);
        if let (Some(entry), Some(word)) = (free, word(handle, device)) {
            entry.store(word, Release);
        }
    }

    /// Takes a stream out; the caller holds the registry's lock.
    pub fn remove(&self, handle: u64) {
        for entry in self.near(handle) {
            if entry.load(Relaxed) >> DEVICE_BITS == handle {
                entry.store(0, Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_found_on_its_device_until_it_is_gone_and_no_other_is() {
        let streams = StreamDevices::default();
        let handle = |at: u64| 0x7f00_0000_1000 + at * 0x240;
        for at in 0..400 {
            streams.insert(handle(at), (at % 8) as usize);
        }
        let found = (0..400).filter(|at| streams.get(handle(*at)).is_some());
        assert!(found.count() > 390, "few find no entry");
        for at in (0..400).filter(|at| at % 3 == 0) {
            streams.remove(handle(at));
        }
        for at in 0..400 {
            let device = streams.get(handle(at));
            assert!(device.is_none() || (at % 3 != 0 && device == Some((at % 8) as usize)));
        }
        assert_eq!(streams.get(handle(9_999)), None);
    }

    #[test]
    fn a_handle_used_again_is_on_its_new_device() {
        let streams = StreamDevices::default();
        streams.insert(0x1000, 0);
        streams.insert(0x1000, 7);
        assert_eq!(streams.get(0x1000), Some(7));
        streams.remove(0x1000);
        assert_eq!(streams.get(0x1000), None);
    }

    #[test]
    fn streams_beyond_the_places_and_odd_handles_are_left_out() {
        let streams = StreamDevices::default();
        for handle in 1..=10_000 {
            streams.insert(handle << 4, 1);
        }
        assert!((1..=10_000).any(|handle| streams.get(handle << 4).is_none()));
        streams.insert(u64::MAX, 1);
        assert_eq!(streams.get(u64::MAX), None);
        assert_eq!(streams.get(0), None);
    }
}
