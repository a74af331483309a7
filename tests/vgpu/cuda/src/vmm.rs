//! Virtual memory management: addresses, physical handles, and mappings of one on the other.
//!
//! A reservation is addresses without access. A handle is an RM object. Mapping ties them by
//! bookkeeping; access is what makes the UVM ioctl, after which the memory stands at the address.
//! A handle's object is freed when neither the application nor a mapping holds it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUdeviceptr, CUresult};
use tidegate_abi::uvm::{UVM_UNMAP_EXTERNAL, UvmUnmapExternal};
use tidegate_abi::vmm::{DEVICE, PINNED};

use crate::capturing;
use crate::driver;
use crate::gpu::Gpu;
use crate::locks::{self, Held};
use crate::objects::memory::{self, PAGE, Place};
use crate::result::{CudaResult, store};
use crate::rm::{self, RmResult};

pub use tidegate_abi::vmm::{Access, Location, Properties};

struct Handle {
    ordinal: i32,
    object: u32,
    bytes: u64,
    handle_types: i32,
    flags: [u8; 8],
    /// References of the application.
    held: u32,
    /// Mappings.
    mapped: u32,
}

#[derive(Clone, Copy)]
struct Mapping {
    bytes: u64,
    offset: u64,
    handle: u64,
    /// `CU_MEM_ACCESS_FLAGS_PROT_*` in force.
    access: i32,
    /// Devices with access, one bit each.
    devices: u32,
}

struct Space {
    /// Base to bytes.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    handles: BTreeMap<u64, Handle>,
    next: u64,
}

fn space() -> MutexGuard<'static, Space> {
    static SPACE: Mutex<Space> = Mutex::new(Space {
        reservations: BTreeMap::new(),
        mappings: BTreeMap::new(),
        handles: BTreeMap::new(),
        next: 1,
    });
    SPACE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Space {
    /// Whether `[at, at + bytes)` is inside one reservation.
    fn is_reserved(&self, at: u64, bytes: u64) -> bool {
        let found = self.reservations.range(..=at).next_back();
        let end = at.checked_add(bytes);
        found.is_some_and(|(base, length)| end.is_some_and(|end| end <= base + length))
    }

    fn overlaps(&self, at: u64, bytes: u64) -> bool {
        let before = self.mappings.range(..at + bytes).next_back();
        before.is_some_and(|(base, mapping)| base + mapping.bytes > at)
    }

    /// The mappings that make up exactly `[at, at + bytes)`.
    fn exactly(&self, at: u64, bytes: u64) -> CudaResult<Vec<u64>> {
        let mut next = at;
        let mut found = Vec::new();
        while next < at + bytes {
            let mapping = self.mappings.get(&next).ok_or(CUresult::INVALID_VALUE)?;
            found.push(next);
            next += mapping.bytes;
        }
        if next == at + bytes {
            Ok(found)
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    }

    /// Frees the object of a handle that nobody holds any more.
    fn settle(&mut self, handle: u64) -> CudaResult {
        let gone = self
            .handles
            .get(&handle)
            .is_some_and(|h| h.held == 0 && h.mapped == 0);
        if gone && let Some(handle) = self.handles.remove(&handle) {
            driver::device(handle.ordinal)?.rm.free(handle.object)?;
        }
        Ok(())
    }
}

fn whole_pages(value: u64) -> CudaResult {
    if value == 0 || !value.is_multiple_of(PAGE) {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(())
}

/// The locks of every GPU, in order: a mapping may concern any of them.
fn all() -> CudaResult<Vec<Held>> {
    Ok(driver::get()?.gpus.iter().map(locks::call).collect())
}

fn first_gpu() -> CudaResult<&'static Gpu> {
    driver::get()?.gpus.first().ok_or(CUresult::NO_DEVICE)
}

/// `cuMemAddressReserve`.
pub fn reserve(
    out: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    wanted: CUdeviceptr,
    flags: u64,
) -> CudaResult {
    let gpu = first_gpu()?;
    whole_pages(bytes as u64)?;
    if out.is_null() || flags != 0 || alignment != 0 && !alignment.is_power_of_two() {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let base = memory::reserve(bytes, (alignment as u64).max(PAGE), wanted)?;
    if let Err(error) = memory::create_range(gpu, base, bytes) {
        memory::release(base, bytes);
        return Err(error.into());
    }
    space().reservations.insert(base, bytes);
    // SAFETY: `out` is the caller's place for an address, not null.
    unsafe { store(out, base) }
}

/// `cuMemAddressFree`.
pub fn free(at: CUdeviceptr, bytes: usize) -> CudaResult {
    let gpu = first_gpu()?;
    let bytes = bytes as u64;
    let mut space = space();
    if space.reservations.get(&at) != Some(&bytes) || space.overlaps(at, bytes) {
        return Err(CUresult::INVALID_VALUE);
    }
    memory::free_range(gpu, at, bytes)?;
    space.reservations.remove(&at);
    drop(space);
    memory::release(at, bytes);
    Ok(())
}

fn read<T: Copy>(at: *const T) -> CudaResult<T> {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    Ok(unsafe { at.read_unaligned() })
}

fn check(properties: &Properties) -> CudaResult<i32> {
    if properties.kind != PINNED {
        return Err(CUresult::INVALID_VALUE);
    }
    if properties.location.kind != DEVICE {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok(properties.location.id)
}

/// `cuMemCreate`.
pub fn create(
    out: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> CudaResult {
    let properties = read(properties)?;
    let ordinal = check(&properties)?;
    let gpu = driver::device(ordinal)?;
    whole_pages(bytes as u64)?;
    if out.is_null() || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capturing::unsafe_call()?;
    let _held = locks::call(gpu);
    let object = memory::create_object(gpu, bytes as u64)?;
    let mut space = space();
    let handle = space.next;
    space.next += 1;
    space.handles.insert(
        handle,
        Handle {
            ordinal,
            object,
            bytes: bytes as u64,
            handle_types: properties.handle_types,
            flags: properties.flags,
            held: 1,
            mapped: 0,
        },
    );
    // SAFETY: `out` is the caller's place for a handle, not null.
    unsafe { store(out, handle) }
}

/// `cuMemRelease`.
pub fn release(handle: u64) -> CudaResult {
    let _held = all()?;
    let mut space = space();
    let found = space
        .handles
        .get_mut(&handle)
        .filter(|found| found.held > 0);
    found.ok_or(CUresult::INVALID_VALUE)?.held -= 1;
    space.settle(handle)
}

/// `cuMemRetainAllocationHandle`.
pub fn retain(out: *mut u64, at: *mut u8) -> CudaResult {
    driver::get()?;
    let at = at.expose_provenance() as u64;
    let mut space = space();
    let found = space
        .mappings
        .range(..=at)
        .next_back()
        .map(|(base, m)| (*base, *m));
    let inside = found.filter(|(base, mapping)| at < base + mapping.bytes);
    let (_, mapping) = inside.ok_or(CUresult::INVALID_VALUE)?;
    let handle = space
        .handles
        .get_mut(&mapping.handle)
        .ok_or(CUresult::INVALID_VALUE)?;
    handle.held += 1;
    // SAFETY: `out` is the caller's place for a handle.
    unsafe { store(out, mapping.handle) }
}

/// `cuMemMap`.
pub fn map(at: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64) -> CudaResult {
    let _held = all()?;
    let (bytes, offset) = (bytes as u64, offset as u64);
    whole_pages(bytes)?;
    let mut space = space();
    let aligned = at.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE) && flags == 0;
    if !aligned || !space.is_reserved(at, bytes) || space.overlaps(at, bytes) {
        return Err(CUresult::INVALID_VALUE);
    }
    let found = space
        .handles
        .get_mut(&handle)
        .ok_or(CUresult::INVALID_VALUE)?;
    if offset + bytes > found.bytes {
        return Err(CUresult::INVALID_VALUE);
    }
    found.mapped += 1;
    let (ordinal, rdma) = (found.ordinal, found.flags[1] != 0);
    let mapping = Mapping {
        bytes,
        offset,
        handle,
        access: 0,
        devices: 0,
    };
    space.mappings.insert(at, mapping);
    memory::announce(at, bytes, Place::Device(ordinal), rdma);
    Ok(())
}

fn take_access(gpu: &Gpu, base: u64, bytes: u64) -> RmResult {
    let mut p = UvmUnmapExternal {
        base,
        length: bytes,
        gpu_uuid: gpu.uuid.bytes,
        rm_status: 0,
        pad: 0,
    };
    rm::uvm(
        "UVM_UNMAP_EXTERNAL",
        &gpu.rm.uvm,
        UVM_UNMAP_EXTERNAL,
        &mut p,
        |p| p.rm_status,
    )
}

/// `cuMemUnmap`.
pub fn unmap(at: CUdeviceptr, bytes: usize) -> CudaResult {
    let _held = all()?;
    let mut space = space();
    for base in space.exactly(at, bytes as u64)? {
        let Some(mapping) = space.mappings.remove(&base) else {
            continue;
        };
        memory::forget(base);
        let Some(handle) = space.handles.get_mut(&mapping.handle) else {
            continue;
        };
        handle.mapped -= 1;
        if mapping.access != 0 {
            take_access(driver::device(handle.ordinal)?, base, mapping.bytes)?;
        }
        space.settle(mapping.handle)?;
    }
    Ok(())
}

/// `cuMemSetAccess`: the access of the memory's own GPU decides, because all GPUs and the host
/// share this process' addresses.
pub fn set_access(
    at: CUdeviceptr,
    bytes: usize,
    access: *const Access,
    count: usize,
) -> CudaResult {
    let _held = all()?;
    if access.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (mut flags, mut given, mut taken) = (0, 0_u32, 0_u32);
    for i in 0..count {
        // SAFETY: the caller's array has `count` entries and is not null.
        let access = read(unsafe { access.add(i) })?;
        if access.location.kind == DEVICE {
            driver::device(access.location.id)?;
            let bit = 1 << access.location.id;
            if access.flags == 0 {
                taken |= bit;
            } else {
                given |= bit;
            }
        }
        flags |= access.flags;
    }
    let mut space = space();
    for base in space.exactly(at, bytes as u64)? {
        let Some(mapping) = space.mappings.get(&base).copied() else {
            continue;
        };
        let handle = space
            .handles
            .get(&mapping.handle)
            .ok_or(CUresult::INVALID_VALUE)?;
        let gpu = driver::device(handle.ordinal)?;
        if flags == 0 && mapping.access != 0 {
            take_access(gpu, base, mapping.bytes)?;
        } else if flags != 0 && mapping.access == 0 {
            gpu.space()?;
            memory::map(gpu, base, mapping.bytes, handle.object, mapping.offset)?;
        }
        if let Some(mapping) = space.mappings.get_mut(&base) {
            mapping.access = flags;
            mapping.devices = (mapping.devices | given) & !taken;
        }
    }
    Ok(())
}

/// `cuMemGetAccess`.
pub fn get_access(out: *mut u64, location: *const Location, at: CUdeviceptr) -> CudaResult {
    driver::get()?;
    let location = read(location)?;
    let space = space();
    let found = space.mappings.range(..=at).next_back();
    let inside = found.filter(|(base, mapping)| at < *base + mapping.bytes);
    let mapping = inside.ok_or(CUresult::INVALID_VALUE)?.1;
    let has = location.kind == DEVICE && mapping.devices >> location.id & 1 != 0;
    let access = if has { mapping.access } else { 0 };
    // SAFETY: `out` is the caller's place for the flags.
    unsafe { store(out, access as u64) }
}

/// `cuMemGetAllocationGranularity`.
pub fn granularity(out: *mut usize, properties: *const Properties, _option: i32) -> CudaResult {
    driver::device(check(&read(properties)?)?)?;
    // SAFETY: `out` is the caller's place for the size.
    unsafe { store(out, PAGE as usize) }
}

/// `cuMemGetAllocationPropertiesFromHandle`.
pub fn properties(out: *mut Properties, handle: u64) -> CudaResult {
    driver::get()?;
    let space = space();
    let handle = space.handles.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
    let properties = Properties {
        handle_types: handle.handle_types,
        flags: handle.flags,
        ..Properties::of_device(handle.ordinal)
    };
    // SAFETY: `out` is the caller's place for the struct.
    unsafe { store(out, properties) }
}
