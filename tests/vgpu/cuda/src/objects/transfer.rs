//! Copies and fills, as rows of bytes with two pitches.

use tidegate_abi::cuda::CUresult;
use tidegate_vgpu::ring::{Entry, Op};

use super::context::{Engine, Stream};
use super::memory::{self, Place};
use crate::channel::{Point, entry};
use crate::result::CudaResult;

/// Most bytes of pageable memory that are staged at once.
pub const STAGED: u64 = 64 << 10;

/// Rows of bytes from one place to another. Planes of a 3-D copy are further copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where to.
    pub to: u64,
    /// Where from.
    pub from: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from a row to the next at `to`.
    pub to_pitch: u64,
    /// Bytes from a row to the next at `from`.
    pub from_pitch: u64,
    /// Planes.
    pub planes: u64,
    /// Bytes from a plane to the next at `to`.
    pub to_plane: u64,
    /// Bytes from a plane to the next at `from`.
    pub from_plane: u64,
}

impl Copy {
    /// `bytes` in one piece.
    pub const fn line(to: u64, from: u64, bytes: u64) -> Self {
        Self {
            to,
            from,
            width: bytes,
            rows: 1,
            to_pitch: bytes,
            from_pitch: bytes,
            planes: 1,
            to_plane: bytes,
            from_plane: bytes,
        }
    }

    /// The lines of bytes: to, from, how many.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let one = self.rows == 1 || (self.to_pitch == self.width && self.from_pitch == self.width);
        let (rows, bytes) = if one {
            (1, self.width * self.rows)
        } else {
            (self.rows, self.width)
        };
        let copy = *self;
        (0..copy.planes).flat_map(move |plane| {
            (0..rows).map(move |row| {
                (
                    copy.to + plane * copy.to_plane + row * copy.to_pitch,
                    copy.from + plane * copy.from_plane + row * copy.from_pitch,
                    bytes,
                )
            })
        })
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.rows == 0 || self.planes == 0
    }

    fn engine(&self) -> Engine {
        if is_device(self.to) {
            Engine::CopyIn
        } else {
            Engine::CopyOut
        }
    }

    /// Gives the copy to `stream`.
    pub fn run(&self, stream: &Stream, launch: u64) -> CudaResult<Option<Point>> {
        if self.is_empty() {
            return Ok(None);
        }
        let entries: Vec<Entry> = self
            .pieces()
            .map(|(to, from, bytes)| Entry {
                launch,
                ..entry(Op::Copy, &[to, from, bytes])
            })
            .collect();
        stream.submit(self.engine(), &entries).map(Some)
    }

    /// Takes one line of at most [`STAGED`] bytes, and gives it to `stream`.
    pub fn run_staged(&self, stream: &Stream) -> CudaResult<Point> {
        let mut staged = vec![0_u8; self.width as usize].into_boxed_slice();
        // SAFETY: the application promises `width` readable bytes at `from`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::with_exposed_provenance::<u8>(self.from as usize),
                staged.as_mut_ptr(),
                staged.len(),
            );
        }
        let from = staged.as_ptr().expose_provenance() as u64;
        let entry = entry(Op::Copy, &[self.to, from, self.width]);
        stream.submit_staged(self.engine(), &entry, staged)
    }
}

/// Whether `address` is on a GPU.
fn is_device(address: u64) -> bool {
    let allocation = memory::find(address);
    allocation.is_some_and(|a| matches!(a.place, Place::Device(_) | Place::Managed(_)))
}

/// Equal elements over rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Where.
    pub at: u64,
    /// The element.
    pub value: u64,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u64,
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
}

impl Fill {
    /// The ring entries.
    pub fn entries(&self, launch: u64) -> Vec<Entry> {
        if self.width == 0 || self.rows == 0 {
            return Vec::from([entry(Op::Nop, &[])]);
        }
        let rows = if self.rows == 1 { 0 } else { self.rows };
        let args = [
            self.at,
            self.width,
            self.value,
            self.element,
            rows,
            self.pitch,
        ];
        Vec::from([Entry {
            launch,
            ..entry(Op::Fill, &args)
        }])
    }

    /// Refuses what is not aligned, or nobody's.
    pub fn check(&self) -> CudaResult {
        let aligned = self.at.is_multiple_of(self.element);
        if aligned && (self.width == 0 || is_device(self.at) || memory::find(self.at).is_some()) {
            Ok(())
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    }
}
