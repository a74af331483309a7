//! Drivers that nobody has written yet: 999.N, whose structs have moved at random by N, and 998.N, where what the
//! agent's own controls say has moved as well.
//!
//! What stays is what no branch has changed: the headers of the calls, a device's parameters, controls
//! of four bytes, UVM's ioctls and every number.

use super::driver::Driver;
use super::kinds::{Field, Version};

/// Structs behind the pointer of an allocation.
const OF_ALLOCATIONS: [&str; 5] = [
    "NV_CHANNEL_ALLOC_PARAMS",
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
    "NV_CTXSHARE_ALLOCATION_PARAMETERS",
    "NV_MEMORY_ALLOCATION_PARAMS",
    "NV_VASPACE_ALLOCATION_PARAMETERS",
];

/// Controls that have grown in some branch, and by how much at a time.
const GROWING: [(u32, usize, usize); 7] = [
    (0x2080_0102, 8, 32),
    (0x2080_1303, 8, 32),
    (0x2080_0110, 4, 8),
    (0x0080_0289, 1, 6),
    (0xcb33_0101, 1, 4),
    (0xa06c_0101, 1, 3),
    (0xa06f_0103, 1, 3),
];

/// What names channels to be disabled.
const OF_THE_LIST: &str = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS";

/// Numbers of a seed, all alike for the same seed (splitmix64).
struct Drawn(u64);

impl Drawn {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Whether a version is an invented one.
pub(super) const fn is_invented(version: Version) -> bool {
    matches!(version.branch, 998 | 999)
}

impl<'a> Driver<'a> {
    /// Moves what an invented version has moved.
    pub(super) fn invent(&mut self, version: Version) {
        let mut drawn = Drawn(u64::from(version.rest[0]) << 32 | u64::from(version.rest[1]));
        for name in OF_ALLOCATIONS {
            self.shuffle(name, &mut drawn);
        }
        for (number, step, most) in GROWING {
            let Some(control) = self.controls.get(&number).copied() else {
                continue;
            };
            let size = control.size + step * drawn.below(most);
            self.lengthen(control.params, size);
            self.resize(control.params, size);
        }
        if version.branch == 998 {
            self.shuffle(OF_THE_LIST, &mut drawn);
        }
    }

    /// Gives a struct its fields in another order, with room between them.
    fn shuffle(&mut self, name: &str, drawn: &mut Drawn) {
        let Some(found) = self.structs.get(name) else {
            return;
        };
        let top = found.fields.iter();
        let top = top.filter(|(name, _)| !name.contains(['.', '[']));
        let mut order: Vec<(&'a str, Field)> = top.map(|(name, place)| (*name, *place)).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, drawn.below(last + 1));
        }
        let mut end = 4 * drawn.below(8);
        for (field, place) in order {
            let aligned = [8, 4, 2]
                .into_iter()
                .find(|by| place.size.is_multiple_of(*by));
            let offset = end.next_multiple_of(aligned.unwrap_or(1));
            self.place(name, field, Field { offset, ..place });
            end = offset + place.size + 4 * drawn.below(5);
        }
        self.resize(name, end.next_multiple_of(8));
    }
}
