//! Host memory as the device sees it: page-locked, registered, and what can be asked of a pointer.

use std::ffi::c_void;

use tidegate_abi::cuda::{CUdeviceptr, CUresult};

use crate::capturing;
use crate::driver;
use crate::objects::current;
use crate::objects::memory::{self, Allocation, Place};
use crate::result::code::{HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED};
use crate::result::{CudaResult, store};

/// `cuMemHostRegister`.
pub fn register(at: *mut u8, bytes: usize, flags: u32) -> CudaResult {
    current::context()?;
    if at.is_null() || bytes == 0 || flags & !0xf != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capturing::unsafe_call()?;
    let base = at.expose_provenance() as u64;
    if memory::find(base).is_some() || memory::find(base + bytes as u64 - 1).is_some() {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    memory::announce_host(base, bytes as u64, flags)
}

/// `cuMemHostUnregister`.
pub fn unregister(at: *mut u8) -> CudaResult {
    driver::get()?;
    capturing::unsafe_call()?;
    let base = at.expose_provenance() as u64;
    let found = memory::find(base);
    found
        .filter(|a| a.base == base && a.place == Place::Registered)
        .ok_or(HOST_MEMORY_NOT_REGISTERED)?;
    memory::forget(base);
    Ok(())
}

fn host(at: *mut u8) -> CudaResult<Allocation> {
    let found = memory::find(at.expose_provenance() as u64);
    let is_host = |a: &Allocation| matches!(a.place, Place::Host | Place::Registered);
    found.filter(is_host).ok_or(CUresult::INVALID_VALUE)
}

/// `cuMemHostGetDevicePointer_v2`: the same address.
pub fn device_pointer(out: *mut CUdeviceptr, at: *mut u8, _flags: u32) -> CudaResult {
    current::context()?;
    host(at)?;
    // SAFETY: `out` is the caller's place for an address.
    unsafe { store(out, at.expose_provenance() as u64) }
}

/// `cuMemHostGetFlags`: host allocations are portable and mapped.
pub fn flags(out: *mut u32, at: *mut u8) -> CudaResult {
    // SAFETY: `out` is the caller's place for the flags.
    unsafe { store(out, host(at)?.flags | 2) }
}

/// Writes one attribute of what stands at `address`, in the width the manual gives it.
fn put(data: *mut c_void, attribute: i32, address: u64, found: &Allocation) -> CudaResult {
    let ordinal = match found.place {
        Place::Device(ordinal) | Place::Managed(ordinal) => Some(ordinal),
        Place::Host | Place::Registered => None,
    };
    let (device, managed) = (ordinal.is_some(), matches!(found.place, Place::Managed(_)));
    // SAFETY: the caller's place has the width of the attribute.
    unsafe {
        match attribute {
            1 => {
                let owner = found
                    .context
                    .map_or(std::ptr::null_mut(), |owner| owner.handle());
                store(data.cast::<*mut c_void>(), owner)
            }
            2 => store(data.cast::<u32>(), if device { 2 } else { 1 }),
            3 => store(data.cast::<u64>(), address),
            4 if device && !managed => Err(CUresult::INVALID_VALUE),
            4 => store(data.cast::<u64>(), address),
            6 => store(data.cast::<u32>(), 0),
            7 | 20 => store(data.cast::<u64>(), found.id),
            8 => store(data.cast::<u32>(), u32::from(managed)),
            9 => store(
                data.cast::<i32>(),
                ordinal.unwrap_or(current::context()?.ordinal),
            ),
            10 | 21 => store(data.cast::<u32>(), 0),
            15 => {
                let plain = found.context.is_some();
                let rdma = device && (plain || found.flags & memory::RDMA != 0);
                store(data.cast::<u32>(), u32::from(rdma))
            }
            11 | 19 => store(data.cast::<u64>(), found.base),
            12 | 18 => store(data.cast::<usize>(), found.bytes as usize),
            13 => store(data.cast::<u32>(), 1),
            14 => store(data.cast::<u64>(), 0),
            16 => store(data.cast::<u32>(), 3),
            17 => store(data.cast::<u64>(), 0),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// `cuPointerGetAttribute`.
pub fn attribute(data: *mut c_void, attribute: i32, address: CUdeviceptr) -> CudaResult {
    driver::get()?;
    let found = memory::find(address).ok_or(CUresult::INVALID_VALUE)?;
    put(data, attribute, address, &found)
}

/// `cuPointerGetAttributes`: for an unknown address every answer is 0.
pub fn attributes(
    count: u32,
    attributes: *const i32,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CudaResult {
    driver::get()?;
    if attributes.is_null() || data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let found = memory::find(address);
    for i in 0..count as usize {
        // SAFETY: both of the caller's arrays have `count` entries and are not null.
        let (attribute, place) = unsafe { (*attributes.add(i), *data.add(i)) };
        let wide = matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20);
        // SAFETY: the caller's place has the width of the attribute.
        unsafe {
            if wide {
                store(place.cast::<u64>(), 0)?
            } else {
                store(place.cast::<u32>(), 0)?
            }
        }
        if let Some(found) = &found {
            // What does not apply to this kind of memory stays 0.
            let _ = put(place, attribute, address, found);
        }
    }
    Ok(())
}

/// `cuPointerSetAttribute`: synchronous memory operations are what there is.
pub fn set_attribute(_value: *const c_void, _attribute: i32, address: CUdeviceptr) -> CudaResult {
    driver::get()?;
    memory::find(address)
        .map(|_| ())
        .ok_or(CUresult::INVALID_VALUE)
}
