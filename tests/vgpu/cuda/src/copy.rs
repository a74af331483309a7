//! Copies and fills: the memcpy and memset families over one shape each.
//!
//! Every signature becomes rows of bytes with two pitches. Copies go to a copy engine by direction,
//! fills to the compute engine. What a call waits for is what the CUDA documentation, "API
//! synchronization behavior", lets a program rely on, and no more. A synchronous one waits for its own
//! work, except: from pageable memory to a device it waits for the stream's earlier work, takes what it
//! reads, and returns before the last of it has arrived; from device to device it does not wait. An
//! asynchronous one from pageable memory takes what it reads at the call, and one to pageable memory
//! waits.

use tidegate_abi::cuda::{CUdeviceptr, CUresult, CUstream};

use crate::capturing;
use crate::locks;
use crate::objects::context::Stream;
use crate::objects::current::{self, DefaultStream};
use crate::objects::memory::{self, Place};
use crate::objects::transfer::{Copy, Fill, STAGED};
use crate::objects::work::Work;
use crate::result::CudaResult;
use crate::submit;

impl Copy {
    /// Gives a copy to `stream` as an asynchronous call does.
    fn run_async(self, stream: CUstream, default: DefaultStream) -> CudaResult {
        // SAFETY: a stream handle of the application, by the API's contract.
        let stream = unsafe { current::stream(stream, default)? };
        if self.is_empty() {
            return Ok(());
        }
        if capturing::diverted(stream, || Work::Copy(self))? {
            return Ok(());
        }
        let from_pageable = memory::find(self.from).is_none();
        let to_pageable = memory::find(self.to).is_none();
        if from_pageable && self.rows == 1 && self.planes == 1 && self.width <= STAGED {
            let point = self.run_staged(stream)?;
            return if to_pageable { point.wait() } else { Ok(()) };
        }
        match submit::enqueue(stream, Work::Copy(self))? {
            Some(point) if from_pageable || to_pageable => point.wait(),
            _ => Ok(()),
        }
    }

    /// Gives a copy to the default stream and waits for as much of it as the call promises.
    fn run_sync(self, default: DefaultStream) -> CudaResult {
        let stream = default_stream(default)?;
        capturing::ask_stream(stream)?;
        let _held = locks::call(stream.context.gpu);
        if self.is_empty() {
            return Ok(());
        }
        let [from, to] = [self.from, self.to].map(memory::find);
        let on_device = |place: Place| matches!(place, Place::Device(_));
        let [from_device, to_device] =
            [&from, &to].map(|side| side.as_ref().is_some_and(|a| on_device(a.place)));
        if from_device && to_device {
            return self.run(stream, 0).map(|_| ());
        }
        if from.is_none() && to_device && self.rows == 1 && self.planes == 1 {
            // All but what is staged last has arrived by then.
            let last = self.width.min(STAGED);
            let first = self.width - last;
            stream.synchronize()?;
            if let Some(point) = Self::line(self.to, self.from, first).run(stream, 0)? {
                point.wait()?;
            }
            let last = Self::line(self.to + first, self.from + first, last);
            return last.run_staged(stream).map(|_| ());
        }
        match self.run(stream, 0)? {
            Some(point) => point.wait(),
            None => Ok(()),
        }
    }
}

fn default_stream(default: DefaultStream) -> CudaResult<&'static crate::handle::Pinned<Stream>> {
    // SAFETY: 0 is a stream handle.
    unsafe { current::stream(std::ptr::null_mut(), default) }
}

impl Fill {
    fn run_async(self, stream: CUstream, default: DefaultStream) -> CudaResult {
        // SAFETY: a stream handle of the application, by the API's contract.
        let stream = unsafe { current::stream(stream, default)? };
        self.check()?;
        submit::enqueue(stream, Work::Fill(self)).map(|_| ())
    }

    /// The synchronous call of a fill does not wait for it on device memory; later work does.
    fn run_sync(self, default: DefaultStream) -> CudaResult {
        self.run_async(std::ptr::null_mut(), default)
    }
}

macro_rules! lines {
    ($($sync:ident, $asynchronous:ident: $to:ty, $from:ty;)*) => {$(
        /// One line of bytes, waited for.
        pub fn $sync(default: DefaultStream, to: $to, from: $from, bytes: usize) -> CudaResult {
            Copy::line(to.address(), from.address(), bytes as u64).run_sync(default)
        }

        /// One line of bytes, in stream order.
        pub fn $asynchronous(
            default: DefaultStream,
            to: $to,
            from: $from,
            bytes: usize,
            stream: CUstream,
        ) -> CudaResult {
            Copy::line(to.address(), from.address(), bytes as u64).run_async(stream, default)
        }
    )*};
}

trait ToAddress {
    fn address(self) -> u64;
}

impl ToAddress for u64 {
    fn address(self) -> u64 {
        self
    }
}

impl ToAddress for *const u8 {
    fn address(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl ToAddress for *mut u8 {
    fn address(self) -> u64 {
        self.expose_provenance() as u64
    }
}

lines! {
    to_device, to_device_async: CUdeviceptr, *const u8;
    to_host, to_host_async: *mut u8, CUdeviceptr;
    any, any_async: CUdeviceptr, CUdeviceptr;
}

/// `cuMemcpyPeer`: all GPUs see the addresses of the process.
pub fn peer(
    default: DefaultStream,
    to: CUdeviceptr,
    _to_context: *mut std::ffi::c_void,
    from: CUdeviceptr,
    _from_context: *mut std::ffi::c_void,
    bytes: usize,
) -> CudaResult {
    any(default, to, from, bytes)
}

/// `cuMemcpyPeerAsync`.
pub fn peer_async(
    default: DefaultStream,
    to: CUdeviceptr,
    _to_context: *mut std::ffi::c_void,
    from: CUdeviceptr,
    _from_context: *mut std::ffi::c_void,
    bytes: usize,
    stream: CUstream,
) -> CudaResult {
    any_async(default, to, from, bytes, stream)
}

/// `cuMemcpyWithAttributesAsync`: whatever the attributes say, the source is read in stream order.
pub fn with_attributes(
    default: DefaultStream,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    attributes: *const std::ffi::c_void,
    stream: CUstream,
) -> CudaResult {
    if attributes.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    any_async(default, to, from, bytes, stream)
}

macro_rules! fills {
    ($($sync:ident, $asynchronous:ident, $rows:ident, $rows_async:ident: $value:ty;)*) => {$(
        /// One row of elements.
        pub fn $sync(default: DefaultStream, at: CUdeviceptr, value: $value, count: usize) -> CudaResult {
            line(at, value.into(), size_of::<$value>(), count).run_sync(default)
        }

        /// One row of elements, in stream order.
        pub fn $asynchronous(
            default: DefaultStream,
            at: CUdeviceptr,
            value: $value,
            count: usize,
            stream: CUstream,
        ) -> CudaResult {
            line(at, value.into(), size_of::<$value>(), count).run_async(stream, default)
        }

        /// Rows of elements.
        pub fn $rows(
            default: DefaultStream,
            at: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> CudaResult {
            rows(at, pitch, value.into(), size_of::<$value>(), width, height).run_sync(default)
        }

        /// Rows of elements, in stream order.
        pub fn $rows_async(
            default: DefaultStream,
            at: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> CudaResult {
            rows(at, pitch, value.into(), size_of::<$value>(), width, height)
                .run_async(stream, default)
        }
    )*};
}

fills! {
    set8, set8_async, set_rows8, set_rows8_async: u8;
    set16, set16_async, set_rows16, set_rows16_async: u16;
    set32, set32_async, set_rows32, set_rows32_async: u32;
}

fn line(at: u64, value: u64, element: usize, count: usize) -> Fill {
    rows(at, 0, value, element, count, 1)
}

fn rows(at: u64, pitch: usize, value: u64, element: usize, width: usize, rows: usize) -> Fill {
    Fill {
        at,
        value,
        element: element as u64,
        width: width as u64,
        rows: rows as u64,
        pitch: pitch as u64,
    }
}

/// `CUDA_MEMCPY2D_v2`.
#[repr(C)]
#[derive(Clone, core::marker::Copy, Debug)]
pub struct Memcpy2d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}
const _: () = assert!(size_of::<Memcpy2d>() == 128);

/// `CU_MEMORYTYPE_HOST`, `_DEVICE`, `_UNIFIED`; arrays do not exist here.
fn side(kind: u32, host: u64, device: u64) -> CudaResult<u64> {
    match kind {
        1 => Ok(host),
        2 | 4 => Ok(device),
        3 => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

impl Memcpy2d {
    fn copy(&self) -> CudaResult<Copy> {
        let width = self.width as u64;
        let pitch = |pitch: usize| if pitch == 0 { width } else { pitch as u64 };
        let (to_pitch, from_pitch) = (pitch(self.dst_pitch), pitch(self.src_pitch));
        if self.height > 1 && (to_pitch < width || from_pitch < width) {
            return Err(CUresult::INVALID_VALUE);
        }
        let to = side(self.dst_type, self.dst_host, self.dst_device)?;
        let from = side(self.src_type, self.src_host, self.src_device)?;
        Ok(Copy {
            to: to + self.dst_y as u64 * to_pitch + self.dst_x as u64,
            from: from + self.src_y as u64 * from_pitch + self.src_x as u64,
            width,
            rows: self.height as u64,
            to_pitch,
            from_pitch,
            planes: 1,
            to_plane: 0,
            from_plane: 0,
        })
    }
}

fn read<T: core::marker::Copy>(at: *const T) -> CudaResult<T> {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    Ok(unsafe { at.read_unaligned() })
}

/// `cuMemcpy2D` and `cuMemcpy2DUnaligned`.
pub fn rectangle(default: DefaultStream, what: *const Memcpy2d) -> CudaResult {
    read(what)?.copy()?.run_sync(default)
}

/// `cuMemcpy2DAsync`.
pub fn rectangle_async(
    default: DefaultStream,
    what: *const Memcpy2d,
    stream: CUstream,
) -> CudaResult {
    read(what)?.copy()?.run_async(stream, default)
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
#[derive(Clone, core::marker::Copy, Debug)]
pub struct Memcpy3d {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub reserved0: u64,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub reserved1: u64,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}
const _: () = assert!(size_of::<Memcpy3d>() == 200);

impl Memcpy3d {
    /// The copy this asks for.
    pub fn copy(&self) -> CudaResult<Copy> {
        let width = self.width as u64;
        let or = |value: usize, other: u64| if value == 0 { other } else { value as u64 };
        let (to_pitch, from_pitch) = (or(self.dst_pitch, width), or(self.src_pitch, width));
        let rows = self.height as u64;
        let to_plane = to_pitch * or(self.dst_height, rows);
        let from_plane = from_pitch * or(self.src_height, rows);
        let to = side(self.dst_type, self.dst_host, self.dst_device)?;
        let from = side(self.src_type, self.src_host, self.src_device)?;
        let offset = |x: usize, y: usize, z: usize, pitch: u64, plane: u64| {
            x as u64 + y as u64 * pitch + z as u64 * plane
        };
        Ok(Copy {
            to: to + offset(self.dst_x, self.dst_y, self.dst_z, to_pitch, to_plane),
            from: from + offset(self.src_x, self.src_y, self.src_z, from_pitch, from_plane),
            width,
            rows,
            to_pitch,
            from_pitch,
            planes: self.depth as u64,
            to_plane,
            from_plane,
        })
    }
}

/// `cuMemcpy3D`.
pub fn block(default: DefaultStream, what: *const Memcpy3d) -> CudaResult {
    read(what)?.copy()?.run_sync(default)
}

/// `cuMemcpy3DAsync`.
pub fn block_async(default: DefaultStream, what: *const Memcpy3d, stream: CUstream) -> CudaResult {
    read(what)?.copy()?.run_async(stream, default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_gaps_are_one_piece() {
        let copy = Copy {
            rows: 4,
            to_pitch: 16,
            from_pitch: 16,
            ..Copy::line(0x1000, 0x2000, 16)
        };
        assert_eq!(copy.pieces().collect::<Vec<_>>(), [(0x1000, 0x2000, 64)]);
    }

    #[test]
    fn rows_with_gaps_are_copied_one_by_one() {
        let copy = Copy {
            rows: 2,
            to_pitch: 32,
            from_pitch: 16,
            ..Copy::line(0x1000, 0x2000, 16)
        };
        let pieces = [(0x1000, 0x2000, 16), (0x1020, 0x2010, 16)];
        assert_eq!(copy.pieces().collect::<Vec<_>>(), pieces);
    }
}
