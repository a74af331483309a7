//! Arrays: their size follows from their description, and the driver rounds it up.

use super::answers::counted;
use super::grant::{self, Wants};
use crate::real::row::Row;
use core::ffi::{c_int, c_uint, c_void};
use tidegate_abi::cuda::CUresult;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3D {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// Bytes of one channel of `CUarray_format`; of a compressed format the least.
const fn width_of(format: c_int) -> usize {
    match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    }
}

impl Array3D {
    /// Bytes of all levels.
    fn bytes(&self, levels: c_uint) -> usize {
        /// Sparse, and to be mapped later: memory is made by handle.
        const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;
        if self.flags & WITHOUT_MEMORY != 0 {
            return 0;
        }
        let element = width_of(self.format).saturating_mul(self.channels.max(1) as usize);
        let level = |nth: c_uint| {
            let sides = [self.width, self.height, self.depth].into_iter();
            sides
                .map(|side| side.checked_shr(nth).unwrap_or(0).max(1))
                .fold(element, usize::saturating_mul)
        };
        (0..levels.clamp(1, usize::BITS))
            .map(level)
            .fold(0, usize::saturating_add)
    }
}

/// `cuArrayCreate`.
pub fn flat(
    row: &'static Row,
    array: *mut *mut c_void,
    described: *const Array,
    call: impl Fn() -> CUresult,
) -> CUresult {
    // SAFETY: null or the caller's description, which the driver reads in the same call.
    let described = unsafe { described.as_ref() }.map(|array| Array3D {
        width: array.width,
        height: array.height,
        depth: 0,
        format: array.format,
        channels: array.channels,
        flags: 0,
    });
    make(row, array, described, 1, call)
}

/// `cuArray3DCreate`, `cuMipmappedArrayCreate`.
pub fn deep(
    row: &'static Row,
    array: *mut *mut c_void,
    described: *const Array3D,
    levels: c_uint,
    call: impl Fn() -> CUresult,
) -> CUresult {
    // SAFETY: null or the caller's description, which the driver reads in the same call.
    let described = unsafe { described.as_ref() }.copied();
    make(row, array, described, levels, call)
}

fn make(
    row: &'static Row,
    array: *mut *mut c_void,
    described: Option<Array3D>,
    levels: c_uint,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let bytes = described.map_or(0, |described| described.bytes(levels));
    if bytes == 0 {
        return call();
    }
    grant::through(row, Wants::here(bytes as u64), || {
        // No address is the address of a handle.
        (counted(array.cast(), bytes, call()), Some(bytes as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_the_bytes_of_its_description() {
        let float4 = Array3D {
            width: 64,
            height: 32,
            depth: 0,
            format: 0x20,
            channels: 4,
            flags: 0,
        };
        assert_eq!(float4.bytes(1), 64 * 32 * 16);
        assert_eq!(float4.bytes(2), (64 * 32 + 32 * 16) * 16);
        assert_eq!(Array3D { depth: 8, ..float4 }.bytes(1), 64 * 32 * 8 * 16);
        let line = Array3D {
            height: 0,
            format: 0x10,
            channels: 1,
            ..float4
        };
        assert_eq!(line.bytes(1), 64 * 2);
        assert_eq!(
            Array3D {
                flags: 0x40,
                ..float4
            }
            .bytes(1),
            0
        );
        let vast = Array3D {
            width: usize::MAX,
            height: usize::MAX,
            ..float4
        };
        assert_eq!(vast.bytes(u32::MAX), usize::MAX);
    }
}
