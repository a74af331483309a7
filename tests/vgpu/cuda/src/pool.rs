//! Stream-ordered memory: pools, and frees that wait for their stream.
//!
//! Memory is there when the call returns, which is before its place in the stream; it is given back
//! when the work in front of its free is done, at the next call that looks.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use crate::capturing;
use crate::channel::Point;
use crate::driver;
use crate::handle::Table;
use crate::objects::current::{self, DefaultStream};
use crate::objects::memory::{self, Owned, Place};
use crate::objects::work::Work;
use crate::result::{CudaResult, store};

/// One pool.
pub struct Pool {
    ordinal: i32,
    /// By attribute number; some are 32 bits wide for the application.
    attributes: Mutex<[u64; 16]>,
}

/// `CUmemPool_attribute`s below this are `int`, the others 64-bit.
const FIRST_WIDE: i32 = 4;

static POOLS: Table<Pool> = Table::new();
/// Default and current pool of each GPU, as numbers.
static OF_DEVICE: Mutex<Vec<[usize; 2]>> = Mutex::new(Vec::new());
/// Frees whose stream has not come to them.
static PENDING: Mutex<Vec<(Vec<Point>, u64)>> = Mutex::new(Vec::new());

fn pending() -> MutexGuard<'static, Vec<(Vec<Point>, u64)>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives back what the device has passed.
pub fn reap() {
    let done: Vec<_> = pending()
        .extract_if(.., |(points, _)| {
            points
                .iter()
                .all(|point| point.is_done() || point.channel.check().is_err())
        })
        .collect();
    for (_, address) in done {
        // Its context may have taken it along.
        let _ = memory::free_device(address);
    }
}

fn make(ordinal: i32) -> *mut c_void {
    POOLS.add(Arc::new(Pool {
        ordinal,
        attributes: Mutex::new([0; 16]),
    }))
}

fn of_device<R>(ordinal: CUdevice, f: impl FnOnce(&mut [usize; 2]) -> R) -> CudaResult<R> {
    driver::device(ordinal)?;
    let mut pools = OF_DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    while pools.len() <= ordinal as usize {
        let pool = make(pools.len() as i32).expose_provenance();
        pools.push([pool; 2]);
    }
    Ok(f(&mut pools[ordinal as usize]))
}

/// `cuDeviceGetDefaultMemPool`.
pub fn default_of(out: *mut CUmemoryPool, ordinal: CUdevice) -> CudaResult {
    let pool = of_device(ordinal, |pools| pools[0])?;
    // SAFETY: `out` is the caller's place for a pool.
    unsafe { store(out, std::ptr::with_exposed_provenance_mut(pool)) }
}

/// `cuDeviceGetMemPool`.
pub fn current_of(out: *mut CUmemoryPool, ordinal: CUdevice) -> CudaResult {
    let pool = of_device(ordinal, |pools| pools[1])?;
    // SAFETY: `out` is the caller's place for a pool.
    unsafe { store(out, std::ptr::with_exposed_provenance_mut(pool)) }
}

/// `cuDeviceSetMemPool`.
pub fn set_current(ordinal: CUdevice, pool: CUmemoryPool) -> CudaResult {
    POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    of_device(ordinal, |pools| pools[1] = pool.addr())
}

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
}

/// `cuMemPoolCreate`.
pub fn create(out: *mut CUmemoryPool, properties: *const Properties) -> CudaResult {
    if properties.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    let properties = unsafe { properties.read_unaligned() };
    if properties.location[0] != 1 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    driver::device(properties.location[1])?;
    // SAFETY: `out` is the caller's place for a pool.
    unsafe { store(out, make(properties.location[1])) }
}

/// `cuMemPoolDestroy`.
pub fn destroy(pool: CUmemoryPool) -> CudaResult {
    driver::get()?;
    let ordinal = POOLS
        .get(pool)
        .map_err(|_| CUresult::INVALID_VALUE)?
        .ordinal;
    let is_default = of_device(ordinal, |pools| {
        if pools[1] == pool.addr() {
            pools[1] = pools[0];
        }
        pools[0] == pool.addr()
    })?;
    if is_default {
        return Err(CUresult::NOT_PERMITTED);
    }
    POOLS.remove(pool).map(|_| ())
}

/// `cuMemPoolTrimTo`.
pub fn trim(pool: CUmemoryPool, _keep: usize) -> CudaResult {
    POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    reap();
    Ok(())
}

/// `cuMemPoolSetAttribute`.
pub fn set_attribute(pool: CUmemoryPool, attribute: i32, value: *const c_void) -> CudaResult {
    let pool = POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    let at = usize::try_from(attribute).map_err(|_| CUresult::INVALID_VALUE)?;
    let mut attributes = pool
        .attributes
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let place = attributes.get_mut(at).ok_or(CUresult::INVALID_VALUE)?;
    if value.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's value has the attribute's width.
    *place = unsafe {
        if attribute < FIRST_WIDE {
            u64::from(value.cast::<u32>().read_unaligned())
        } else {
            value.cast::<u64>().read_unaligned()
        }
    };
    Ok(())
}

/// `cuMemPoolGetAttribute`.
pub fn get_attribute(pool: CUmemoryPool, attribute: i32, value: *mut c_void) -> CudaResult {
    let pool = POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    let at = usize::try_from(attribute).map_err(|_| CUresult::INVALID_VALUE)?;
    let attributes = pool
        .attributes
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let found = *attributes.get(at).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the caller's place has the attribute's width.
    unsafe {
        if attribute < FIRST_WIDE {
            store(value.cast::<u32>(), found as u32)
        } else {
            store(value.cast::<u64>(), found)
        }
    }
}

/// `cuMemPoolSetAccess`: every GPU reaches the addresses of this process.
pub fn set_access(pool: CUmemoryPool, _access: *const c_void, _count: usize) -> CudaResult {
    POOLS
        .get(pool)
        .map(|_| ())
        .map_err(|_| CUresult::INVALID_VALUE)
}

/// `cuMemPoolGetAccess`.
pub fn get_access(out: *mut i32, pool: CUmemoryPool, _location: *const c_void) -> CudaResult {
    POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    // SAFETY: `out` is the caller's place for the flags; 3 is read and write.
    unsafe { store(out, 3) }
}

/// `cuMemAllocAsync`.
pub fn alloc_async(
    default: DefaultStream,
    out: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    reap();
    let address = match memory::allocate(bytes as u64, Place::Device) {
        Err(CUresult::OUT_OF_MEMORY) => {
            let waiting: Vec<Point> = pending()
                .iter()
                .flat_map(|(points, _)| points.iter().copied())
                .collect();
            waiting.iter().try_for_each(Point::wait)?;
            reap();
            memory::allocate(bytes as u64, Place::Device)?
        }
        other => other?,
    };
    capturing::diverted(stream, || Work::Allocation(Arc::new(Owned::new(address))))?;
    // SAFETY: `out` is the caller's place for an address, not null.
    unsafe { store(out, address) }
}

/// `cuMemAllocFromPoolAsync`.
pub fn alloc_from_async(
    default: DefaultStream,
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CudaResult {
    POOLS.get(pool).map_err(|_| CUresult::INVALID_VALUE)?;
    alloc_async(default, out, bytes, stream)
}

/// `cuMemFreeAsync`.
pub fn free_async(default: DefaultStream, address: CUdeviceptr, stream: CUstream) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    if address == 0 {
        return Ok(());
    }
    if memory::find(address).is_none_or(|a| a.base != address) {
        return Err(CUresult::INVALID_VALUE);
    }
    if capturing::diverted(stream, || Work::Release)? {
        return Ok(());
    }
    pending().push((stream.tails(), address));
    reap();
    Ok(())
}
