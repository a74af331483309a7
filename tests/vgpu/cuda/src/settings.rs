//! Settings of contexts that a virtual GPU keeps and does not feel: limits, cache preferences, peers,
//! advice, profiling.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tidegate_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream};

use crate::driver;
use crate::objects::current::{self, DefaultStream};
use crate::result::code::UNSUPPORTED_LIMIT;
use crate::result::{CudaResult, store};

/// Limits by `CUlimit`, as a fresh context has them.
const LIMITS: [u64; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

static SET: Mutex<BTreeMap<(u64, usize), u64>> = Mutex::new(BTreeMap::new());
static PEERS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

fn limit(number: i32) -> CudaResult<usize> {
    let number = usize::try_from(number).map_err(|_| CUresult::INVALID_VALUE)?;
    if number < LIMITS.len() {
        Ok(number)
    } else {
        Err(UNSUPPORTED_LIMIT)
    }
}

/// `cuCtxSetLimit`.
pub fn set_limit(number: i32, value: usize) -> CudaResult {
    let key = (current::context()?.id, limit(number)?);
    SET.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(key, value as u64);
    Ok(())
}

/// `cuCtxGetLimit`.
pub fn get_limit(out: *mut usize, number: i32) -> CudaResult {
    let number = limit(number)?;
    let key = (current::context()?.id, number);
    let set = SET
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .copied();
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, set.unwrap_or(LIMITS[number]) as usize) }
}

/// `cuCtxGetCacheConfig`: no preference.
pub fn get_cache(out: *mut i32) -> CudaResult {
    current::context()?;
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, 0) }
}

/// `cuCtxSetCacheConfig`, `cuCtxSetSharedMemConfig`.
pub fn set_cache(_config: i32) -> CudaResult {
    current::context().map(|_| ())
}

/// `cuCtxGetSharedMemConfig`: four-byte banks.
pub fn get_shared(out: *mut i32) -> CudaResult {
    current::context()?;
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, 1) }
}

/// Calls that ask for an effect a virtual GPU does not have: the L2 cache, the profiler.
pub fn no_effect() -> CudaResult {
    driver::get().map(|_| ())
}

/// `cuProfilerInitialize`.
pub fn profiler_initialize(_config: *const i8, _output: *const i8, _mode: i32) -> CudaResult {
    no_effect()
}

/// `cuCtxEnablePeerAccess`.
pub fn enable_peer(peer: CUcontext, flags: u32) -> CudaResult {
    let (own, peer) = (current::context()?, current::named_or_current(peer)?);
    if flags != 0 || own.id == peer.id {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    if peers.insert((own.id, peer.id)) {
        Ok(())
    } else {
        Err(CUresult::PEER_ACCESS_ALREADY_ENABLED)
    }
}

/// `cuCtxDisablePeerAccess`.
pub fn disable_peer(peer: CUcontext) -> CudaResult {
    let (own, peer) = (current::context()?, current::named_or_current(peer)?);
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    if peers.remove(&(own.id, peer.id)) {
        Ok(())
    } else {
        Err(CUresult::PEER_ACCESS_NOT_ENABLED)
    }
}

/// `cuDeviceGetP2PAttribute`: access and native atomics, no arrays.
pub fn peer_attribute(
    out: *mut i32,
    attribute: i32,
    device: CUdevice,
    peer: CUdevice,
) -> CudaResult {
    driver::device(device)?;
    driver::device(peer)?;
    if device == peer || !(1..=5).contains(&attribute) {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, i32::from(matches!(attribute, 2 | 3))) }
}

/// `cuMemAdvise` of CUDA 8.
pub fn advise(_at: CUdeviceptr, _bytes: usize, _advice: i32, _device: CUdevice) -> CudaResult {
    current::context().map(|_| ())
}

/// `cuMemAdvise_v2`. A `CUmemLocation` travels as eight bytes.
pub fn advise_v2(_at: CUdeviceptr, _bytes: usize, _advice: i32, _location: u64) -> CudaResult {
    current::context().map(|_| ())
}

fn known(default: DefaultStream, stream: CUstream) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { current::stream(stream, default).map(|_| ()) }
}

/// `cuMemPrefetchAsync` of CUDA 8: memory is where it is.
pub fn prefetch(
    default: DefaultStream,
    _at: CUdeviceptr,
    _bytes: usize,
    _device: CUdevice,
    stream: CUstream,
) -> CudaResult {
    known(default, stream)
}

/// `cuMemPrefetchAsync_v2`.
pub fn prefetch_v2(
    default: DefaultStream,
    _at: CUdeviceptr,
    _bytes: usize,
    _location: u64,
    _flags: u32,
    stream: CUstream,
) -> CudaResult {
    known(default, stream)
}

/// `cuStreamAttachMemAsync`.
pub fn attach(
    default: DefaultStream,
    stream: CUstream,
    _at: CUdeviceptr,
    _bytes: usize,
    _flags: u32,
) -> CudaResult {
    known(default, stream)
}
