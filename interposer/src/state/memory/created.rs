//! Memory that the application made by handle. It exists from `cuMemCreate` to the last release or unmap.

use std::collections::BTreeMap;

/// One allocation.
#[derive(Debug)]
struct Piece {
    device: usize,
    bytes: u64,
    /// Handles that are not released, and mappings.
    holds: u32,
}

/// What there is of it.
#[derive(Debug, Default)]
pub struct Created {
    /// Numbers given to pieces: the driver gives a handle's number again while what it named is still mapped.
    last: u64,
    pieces: BTreeMap<u64, Piece>,
    /// Piece and releases to come, by handle.
    handles: BTreeMap<u64, (u64, u32)>,
    /// Bytes and piece, by address.
    mappings: BTreeMap<u64, (u64, u64)>,
}

impl Created {
    /// A handle was made for memory of a device.
    pub fn made(&mut self, handle: u64, (device, bytes): (usize, u64)) {
        self.last += 1;
        let piece = Piece {
            device,
            bytes,
            holds: 1,
        };
        self.pieces.insert(self.last, piece);
        self.handles.insert(handle, (self.last, 1));
    }

    /// A handle was given for what is mapped at an address.
    pub fn retained(&mut self, handle: u64, at: u64) {
        let before = self.mappings.range(..=at).next_back();
        let Some((_, (_, piece))) = before.filter(|(from, (bytes, _))| at - **from < *bytes) else {
            return;
        };
        self.handles.entry(handle).or_insert((*piece, 0)).1 += 1;
        if let Some(piece) = self.pieces.get_mut(piece) {
            piece.holds += 1;
        }
    }

    /// A handle was released once.
    pub fn released(&mut self, handle: u64) {
        let Some((piece, count)) = self.handles.get_mut(&handle) else {
            return;
        };
        let piece = *piece;
        *count -= 1;
        if *count == 0 {
            self.handles.remove(&handle);
        }
        self.let_go(piece);
    }

    /// Memory was mapped by its handle. Another process' is not counted here.
    pub fn mapped(&mut self, at: u64, bytes: u64, handle: u64) {
        let Some((number, _)) = self.handles.get(&handle).copied() else {
            return;
        };
        if let Some(piece) = self.pieces.get_mut(&number) {
            piece.holds += 1;
            self.mappings.insert(at, (bytes, number));
        }
    }

    /// Whatever is mapped there no longer is.
    pub fn unmapped(&mut self, at: u64, bytes: u64) {
        let gone: Vec<u64> = self
            .mappings
            .range(at..at.saturating_add(bytes))
            .map(|(at, _)| *at)
            .collect();
        for at in gone {
            if let Some((_, piece)) = self.mappings.remove(&at) {
                self.let_go(piece);
            }
        }
    }

    fn let_go(&mut self, number: u64) {
        if let Some(piece) = self.pieces.get_mut(&number) {
            piece.holds -= 1;
            if piece.holds == 0 {
                self.pieces.remove(&number);
            }
        }
    }

    /// All that is there of a device.
    pub fn bytes(&self, device: usize) -> u64 {
        let pieces = self.pieces.values().filter(|piece| piece.device == device);
        pieces.map(|piece| piece.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_counted_until_its_last_handle_and_mapping_are_gone() {
        let mut created = Created::default();
        created.made(7, (1, 4 * MIB));
        created.mapped(0x1000_0000, 2 * MIB, 7);
        created.mapped(0x2000_0000, 2 * MIB, 7);
        created.released(7);
        assert_eq!((created.bytes(0), created.bytes(1)), (0, 4 * MIB));
        // The number is given again while the first is still mapped.
        created.made(7, (0, 2 * MIB));
        created.retained(9, 0x2000_0000 + MIB);
        created.unmapped(0x1000_0000, 0x2000_0000);
        assert_eq!((created.bytes(0), created.bytes(1)), (2 * MIB, 4 * MIB));
        created.released(9);
        created.released(7);
        assert_eq!((created.bytes(0), created.bytes(1)), (0, 0));
    }

    #[test]
    fn handles_and_addresses_that_nobody_knows_change_nothing() {
        let mut created = Created::default();
        created.mapped(0x1000, MIB, 3);
        created.retained(4, 0x1000);
        created.released(3);
        created.unmapped(0, u64::MAX);
        created.made(3, (0, MIB));
        created.released(3);
        created.released(3);
        assert_eq!(created.bytes(0), 0);
    }
}
