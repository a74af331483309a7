//! Device and system memory: ranges of memfds, given out and taken back.
//!
//! A GPU's memory is one sparse memfd. An allocation is a range of it that lives as long as an RM
//! object or a UVM mapping refers to it, and reads as zero to its next owner, or as the poison that a
//! knob sets, for who relies on zeroes.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::sys::Memfd;

const SMALL: u64 = 64 * 1024;
const LARGE: u64 = 2 * 1024 * 1024;

/// Names an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryId(pub(crate) u64);

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) memfd: Memfd,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Minor of the GPU whose memory it is; `None` for system memory.
    pub(crate) gpu: Option<usize>,
    /// Process that allocated it.
    pub(crate) pid: u32,
    references: u32,
}

/// Device memory that was freed.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) number: u64,
    pub(crate) gpu: usize,
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Vram {
    memfd: Memfd,
    free: BTreeMap<u64, u64>,
}

impl Vram {
    fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (start, length, at) = self.free.iter().find_map(|(start, length)| {
            let at = start.next_multiple_of(align);
            (at.checked_add(bytes)? <= start + length).then_some((*start, *length, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + bytes < start + length {
            self.free.insert(at + bytes, start + length - at - bytes);
        }
        Some(at)
    }

    fn give(&mut self, mut start: u64, mut bytes: u64, poison: u8) {
        self.memfd.punch(start, bytes);
        if poison != 0 {
            self.memfd.fill(start, bytes, poison);
        }
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((before, length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, bytes) = (*before, bytes + length);
        }
        self.free.insert(start, bytes);
    }
}

/// All memory of the node.
#[derive(Debug)]
pub(crate) struct Memory {
    vram: Vec<Vram>,
    allocations: HashMap<MemoryId, Allocation>,
    next: u64,
    /// What freed memory is filled with.
    pub(crate) poison: u8,
    /// Freed and not yet recorded.
    pub(crate) freed: Vec<Freed>,
}

impl Memory {
    pub(crate) fn new(gpus: usize, bytes_each: u64) -> io::Result<Self> {
        let vram = (0..gpus)
            .map(|_| {
                let memfd = Memfd::new(c"vgpu-memory", bytes_each)?;
                Ok(Vram {
                    memfd,
                    free: BTreeMap::from([(0, bytes_each)]),
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            vram,
            allocations: HashMap::new(),
            next: 1,
            poison: 0,
            freed: Vec::new(),
        })
    }

    fn insert(&mut self, allocation: Allocation) -> MemoryId {
        let id = MemoryId(self.next);
        self.next += 1;
        self.allocations.insert(id, allocation);
        id
    }

    /// Allocates memory of a GPU, rounded up to 64 KiB, or 2 MiB for what is that large.
    pub(crate) fn allocate_device(&mut self, gpu: usize, bytes: u64, pid: u32) -> Option<MemoryId> {
        let align = if bytes >= LARGE { LARGE } else { SMALL };
        let bytes = bytes.max(1).checked_next_multiple_of(align)?;
        let vram = self.vram.get_mut(gpu)?;
        let offset = vram.take(bytes, align)?;
        let memfd = vram.memfd.clone();
        Some(self.insert(Allocation {
            memfd,
            offset,
            bytes,
            gpu: Some(gpu),
            pid,
            references: 1,
        }))
    }

    /// Allocates system memory, rounded up to pages.
    pub(crate) fn allocate_system(&mut self, bytes: u64) -> io::Result<MemoryId> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(4096)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let memfd = Memfd::new(c"vgpu-system", bytes)?;
        Ok(self.insert(Allocation {
            memfd,
            offset: 0,
            bytes,
            gpu: None,
            pid: 0,
            references: 1,
        }))
    }

    pub(crate) fn get(&self, id: MemoryId) -> Option<&Allocation> {
        self.allocations.get(&id)
    }

    /// Adds a reference.
    pub(crate) fn retain(&mut self, id: MemoryId) {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.references += 1;
        }
    }

    /// Drops a reference; the last one frees.
    pub(crate) fn release(&mut self, id: MemoryId) {
        let Some(allocation) = self.allocations.get_mut(&id) else {
            return;
        };
        allocation.references -= 1;
        if allocation.references == 0
            && let Some(gone) = self.allocations.remove(&id)
            && let Some(gpu) = gone.gpu
            && let Some(vram) = self.vram.get_mut(gpu)
        {
            vram.give(gone.offset, gone.bytes, self.poison);
            self.freed.push(Freed {
                number: id.0,
                gpu,
                pid: gone.pid,
                bytes: gone.bytes,
            });
        }
    }

    /// Bytes of a GPU's memory that nobody holds.
    pub(crate) fn free_bytes(&self, gpu: usize) -> u64 {
        self.vram
            .get(gpu)
            .map_or(0, |vram| vram.free.values().sum())
    }

    /// Bytes of a GPU's memory.
    pub(crate) fn total_bytes(&self, gpu: usize) -> u64 {
        self.vram.get(gpu).map_or(0, |vram| vram.memfd.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_join_and_are_given_out_again() {
        let mut memory = Memory::new(1, 8 * LARGE).unwrap();
        let ids: Vec<_> = (0..8)
            .map(|_| memory.allocate_device(0, LARGE, 1).unwrap())
            .collect();
        assert_eq!(memory.allocate_device(0, 1, 1), None);
        for index in [3, 1, 2, 0, 7, 5, 6, 4] {
            memory.release(ids[index]);
        }
        assert_eq!(memory.free_bytes(0), 8 * LARGE);
        assert!(memory.allocate_device(0, 8 * LARGE, 1).is_some());
    }

    #[test]
    fn memory_lives_as_long_as_the_last_reference() {
        let mut memory = Memory::new(1, LARGE).unwrap();
        let id = memory.allocate_device(0, LARGE, 1).unwrap();
        memory.retain(id);
        memory.release(id);
        assert_eq!(memory.free_bytes(0), 0);
        memory.release(id);
        assert_eq!(memory.free_bytes(0), LARGE);
    }
}
