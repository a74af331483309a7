//! The calls that allocate, free and describe memory.

use tidegate_abi::cuda::{CUdeviceptr, CUresult};

use crate::capturing;
use crate::driver;
use crate::locks::{self, Held};
use crate::objects::current;
use crate::objects::memory::{
    GRAIN, Owner, Place, allocate, allocate_host, find, forget, free_device, release,
};
use crate::result::{CudaResult, store, store_optional};

/// `cuMemAlloc_v2`.
pub fn alloc(out: *mut CUdeviceptr, bytes: usize) -> CudaResult {
    capturing::unsafe_call()?;
    // SAFETY: `out` is the caller's place for an address.
    unsafe { store(out, allocate(bytes as u64, Place::Device)?) }
}

/// `cuMemAllocPitch_v2`: rows start at multiples of 512.
pub fn alloc_pitch(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: u32,
) -> CudaResult {
    let row = width
        .checked_next_multiple_of(GRAIN as usize)
        .ok_or(CUresult::OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::OUT_OF_MEMORY)?;
    if pitch.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    alloc(out, bytes)?;
    // SAFETY: `pitch` is the caller's place for the pitch, not null.
    unsafe { store(pitch, row) }
}

/// `cuMemAllocManaged`: plain device memory, which the host can reach as well.
pub fn alloc_managed(out: *mut CUdeviceptr, bytes: usize, _flags: u32) -> CudaResult {
    capturing::unsafe_call()?;
    // SAFETY: `out` is the caller's place for an address.
    unsafe { store(out, allocate(bytes as u64, Place::Managed)?) }
}

/// Before an allocation of `owner` is freed: waits for its context, whichever is current. The
/// context's lock, held until the allocation is gone.
fn settle(owner: Owner) -> CudaResult<Held> {
    let context = match owner {
        Some(owner) => {
            owner.check()?;
            owner
        }
        None => current::context()?,
    };
    capturing::use_legacy(context.id)?;
    capturing::unsafe_call()?;
    let held = locks::call(context.gpu);
    context.synchronize()?;
    Ok(held)
}

/// `cuMemFree_v2`: waits for the device, as the real one does.
pub fn free(address: CUdeviceptr) -> CudaResult {
    driver::get()?;
    if address == 0 {
        return Ok(());
    }
    let found = find(address).filter(|found| found.base == address);
    let _held = settle(found.ok_or(CUresult::INVALID_VALUE)?.context)?;
    free_device(address)
}

/// `cuMemHostAlloc`.
pub fn host_alloc(out: *mut *mut u8, bytes: usize, flags: u32) -> CudaResult {
    if flags & !7 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capturing::unsafe_call()?;
    let base = allocate_host(bytes, flags)?;
    // SAFETY: `out` is the caller's place for a pointer.
    unsafe { store(out, std::ptr::with_exposed_provenance_mut(base as usize)) }
}

/// `cuMemAllocHost_v2`.
pub fn alloc_host(out: *mut *mut u8, bytes: usize) -> CudaResult {
    host_alloc(out, bytes, 0)
}

/// `cuMemFreeHost`.
pub fn free_host(at: *mut u8) -> CudaResult {
    driver::get()?;
    let address = at.expose_provenance() as u64;
    let known = find(address).filter(|a| a.base == address);
    let host = known.filter(|a| a.place == Place::Host);
    let host = host.ok_or(CUresult::INVALID_VALUE)?;
    let _held = settle(host.context)?;
    forget(address);
    release(address, host.bytes.next_multiple_of(4096));
    Ok(())
}

/// `cuMemGetInfo_v2`.
pub fn info(free: *mut usize, total: *mut usize) -> CudaResult {
    let context = current::context()?;
    let (left, all) = context.gpu.memory()?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        store_optional(free, left as usize);
        store_optional(total, all as usize);
    }
    Ok(())
}

/// `cuMemGetAddressRange_v2`.
pub fn address_range(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
) -> CudaResult {
    current::context()?;
    let allocation = find(address).ok_or(CUresult::NOT_FOUND)?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        store_optional(base, allocation.base);
        store_optional(bytes, allocation.bytes as usize);
    }
    Ok(())
}
