//! What the application sees of a device's memory, by `cuMemGetInfo` and `cuDeviceTotalMem`.
//!
//! For an offline process, its share is all memory that exists. The share changes as others take memory and give it
//! back, but the total of a device must not change. Engines rely on that: memory that is no longer free since their
//! start counts as in use, and they size their cache from the rest. So as long as a process holds memory of a device,
//! it sees the total that it last saw before it held any, and what others have taken since then is not free.
//!
//! An online process sees the whole device. What offline caches would give up for its allocations counts as free.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use tidegate_abi::page::DEVICES;

/// No share: what the driver says.
const NONE: u64 = u64::MAX;
/// A device is shown with at least so much, also where the application may have nothing of it: programs divide by the
/// size. It is the least that VMM allocates on any GPU.
const LEAST_SIZE: u64 = 2 << 20;

/// One device.
#[derive(Debug)]
struct Device {
    /// What the application may have of it, or [`NONE`].
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
                    share: AtomicU64::new(NONE),
                    yields: AtomicU64::new(0),
                    size: AtomicU64::new(0),
                }
            }; DEVICES],
        )
    }
}

impl Sizes {
    /// The agent's word: what the application may have, which can be nothing, or `None`: what the driver says.
    pub fn set(&self, device: usize, share: Option<u64>, yields: u64) {
        if let Some(device) = self.0.get(device) {
            device.yields.store(yields, Release);
            device.share.store(share.unwrap_or(NONE), Release);
        }
    }

    /// What the application may have of a device; `None`: what the driver says.
    pub fn share_of(&self, device: usize) -> Option<u64> {
        let share = self.0.get(device)?.share.load(Relaxed);
        (share != NONE).then_some(share)
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
                let size = share.max(LEAST_SIZE);
                place.store(size, Relaxed);
                size
            }
        };
        Some((size, share.min(size).saturating_sub(held)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WHOLE: u64 = 200 * MIB;

    /// The MiB of a room, with these held on a device of 200.
    fn room(shown: &Sizes, device: usize, held: u64) -> Option<(u64, u64)> {
        let room = shown.room(device, Some(WHOLE), held * MIB);
        room.map(|(size, left)| (size / MIB, left / MIB))
    }

    /// P-MEMORY-33: a device keeps the size that was shown while memory of it is held.
    #[test]
    fn a_device_keeps_its_size_while_memory_of_it_is_held() {
        let shown = Sizes::default();
        let set = |device, share| shown.set(device, Some(share * MIB), 0);
        set(0, 100);
        assert_eq!(room(&shown, 0, 0), Some((100, 100)));
        // Others take 30, and give back more.
        set(0, 70);
        assert_eq!(room(&shown, 0, 20), Some((100, 50)));
        set(0, 140);
        assert_eq!(room(&shown, 0, 20), Some((100, 80)));
        set(0, 10);
        assert_eq!(room(&shown, 0, 20), Some((100, 0)));
        // Who begins anew begins with what there is.
        set(0, 140);
        assert_eq!(room(&shown, 0, 0), Some((140, 140)));
        // Who looked before it was attached has seen all of the device.
        assert_eq!(room(&shown, 1, 0), Some((200, 200)));
        set(1, 60);
        assert_eq!(room(&shown, 1, 20), Some((200, 40)));
        // Who looks for the first time with memory has seen nothing.
        set(2, 60);
        assert_eq!(room(&shown, 2, 20), Some((60, 40)));
        set(2, 40);
        assert_eq!(room(&shown, 2, 20), Some((60, 20)));
        assert_eq!(room(&shown, DEVICES, 0), None);
    }

    /// P-MEMORY-7: a share of nothing is not the same as no share.
    #[test]
    fn a_share_can_be_nothing() {
        let shown = Sizes::default();
        assert_eq!(shown.share_of(0), None);
        shown.set(0, Some(0), 0);
        assert_eq!(shown.share_of(0), Some(0));
        assert_eq!(room(&shown, 0, 0), Some((2, 0)));
        shown.set(0, Some(60 * MIB), 0);
        assert_eq!(room(&shown, 0, 0), Some((60, 60)));
        shown.set(0, None, 0);
        assert_eq!(shown.share_of(0), None);
        assert_eq!(room(&shown, 0, 0), Some((200, 200)));
    }
}
