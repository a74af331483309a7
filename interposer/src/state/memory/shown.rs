//! What the application sees of a device's memory, by `cuMemGetInfo` and `cuDeviceTotalMem`.
//!
//! For an offline process, its share is all memory that exists. The share changes as others take memory and give it
//! back, but the total of a device must not change. Engines rely on that: memory that is no longer free since their
//! start counts as in use, and they size their cache from the rest. So as long as a process holds memory of a device,
//! it sees the total that it last saw before it held any, and what others have taken since then is not free.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use tidegate_abi::page::DEVICES;

/// One device.
#[derive(Debug)]
struct Device {
    /// What the application may have of it; 0: what the driver says.
    share: AtomicU64,
    /// What of it others give up as soon as it is allocated.
    yields: AtomicU64,
    /// The size that it was shown; 0: none yet.
    size: AtomicU64,
}

/// All devices.
#[derive(Debug)]
pub struct Sizes([Device; DEVICES]);

impl Default for Sizes {
    fn default() -> Self {
        Self(
            [const {
                Device {
                    share: AtomicU64::new(0),
                    yields: AtomicU64::new(0),
                    size: AtomicU64::new(0),
                }
            }; DEVICES],
        )
    }
}

impl Sizes {
    /// The agent's word.
    pub fn set(&self, device: usize, share: u64, yields: u64) {
        if let Some(device) = self.0.get(device) {
            device.yields.store(yields, Release);
            device.share.store(share, Release);
        }
    }

    /// What the application may have of a device; `None`: what the driver says.
    pub fn share_of(&self, device: usize) -> Option<u64> {
        let share = self.0.get(device)?.share.load(Relaxed);
        (share != 0).then_some(share)
    }

    /// What of a device others give up as soon as it is allocated.
    pub fn yields_of(&self, device: usize) -> u64 {
        self.0
            .get(device)
            .map_or(0, |device| device.yields.load(Relaxed))
    }

    /// How large a device is, and how much of it is the application's to take that holds so much, in bytes. `whole` is
    /// what the driver says that the device has, if it was asked.
    pub fn room(&self, device: usize, whole: Option<u64>, held: u64) -> Option<(u64, u64)> {
        let place = &self.0.get(device)?.size;
        let share = self.share_of(device).into_iter().chain(whole).min()?;
        let size = match place.load(Relaxed) {
            known if known != 0 && held > 0 => known,
            _ => {
                place.store(share, Relaxed);
                share
            }
        };
        Some((size, share.min(size).saturating_sub(held)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-MEMORY-33: a device keeps the size that was shown while memory of it is held.
    #[test]
    fn a_device_keeps_its_size_while_memory_of_it_is_held() {
        const WHOLE: u64 = 200;
        let whole = Some(WHOLE);
        let shown = Sizes::default();
        shown.set(0, 100, 0);
        let room = |held| shown.room(0, whole, held);
        assert_eq!(room(0), Some((100, 100)));
        // Others take 30, and give back more.
        shown.set(0, 70, 0);
        assert_eq!(room(20), Some((100, 50)));
        shown.set(0, 140, 0);
        assert_eq!(room(20), Some((100, 80)));
        shown.set(0, 10, 0);
        assert_eq!(room(20), Some((100, 0)));
        // Who begins anew begins with what there is.
        shown.set(0, 140, 0);
        assert_eq!(room(0), Some((140, 140)));
        // Who looked before it was attached has seen all of the device.
        assert_eq!(shown.room(1, whole, 0), Some((WHOLE, WHOLE)));
        shown.set(1, 60, 0);
        assert_eq!(shown.room(1, whole, 20), Some((WHOLE, 40)));
        // Who looks for the first time with memory has seen nothing.
        shown.set(2, 60, 0);
        assert_eq!(shown.room(2, whole, 20), Some((60, 40)));
        shown.set(2, 40, 0);
        assert_eq!(shown.room(2, whole, 20), Some((60, 20)));
        assert_eq!(shown.room(DEVICES, whole, 0), None);
    }
}
