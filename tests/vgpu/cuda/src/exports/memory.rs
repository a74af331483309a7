//! Rows: memory, copies, fills.

use std::ffi::{c_int, c_uint, c_void};

use tidegate_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use super::{export, exports};
use crate::copy::{self, Memcpy2d, Memcpy3d};
use crate::objects::current::DefaultStream;
use crate::result::code_of;
use crate::{host, memory, pool, settings, vmm};

exports! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => memory::info;
    cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) => memory::alloc;
    cuMemAllocPitch_v2(at: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::alloc_pitch;
    cuMemAllocManaged(at: *mut CUdeviceptr, bytes: usize, flags: c_uint) => memory::alloc_managed;
    cuMemFree_v2(at: CUdeviceptr) => memory::free;
    cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, at: CUdeviceptr) => memory::address_range;
    cuMemAllocHost_v2(at: *mut *mut u8, bytes: usize) => memory::alloc_host;
    cuMemHostAlloc(at: *mut *mut u8, bytes: usize, flags: c_uint) => memory::host_alloc;
    cuMemFreeHost(at: *mut u8) => memory::free_host;
    cuMemHostRegister(at: *mut u8, bytes: usize, flags: c_uint) => host::register;
    cuMemHostRegister_v2(at: *mut u8, bytes: usize, flags: c_uint) => host::register;
    cuMemHostUnregister(at: *mut u8) => host::unregister;
    cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, at: *mut u8, flags: c_uint) => host::device_pointer;
    cuMemHostGetFlags(flags: *mut c_uint, at: *mut u8) => host::flags;
    cuPointerGetAttribute(data: *mut c_void, attribute: c_int, at: CUdeviceptr) => host::attribute;
    cuPointerGetAttributes(count: c_uint, attributes: *const c_int, data: *mut *mut c_void, at: CUdeviceptr) => host::attributes;
    cuPointerSetAttribute(value: *const c_void, attribute: c_int, at: CUdeviceptr) => host::set_attribute;
    cuMemAdvise(at: CUdeviceptr, bytes: usize, advice: c_int, device: c_int) => settings::advise;
    cuMemAdvise_v2(at: CUdeviceptr, bytes: usize, advice: c_int, location: u64) => settings::advise_v2;
    cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz(at: CUdeviceptr, bytes: usize, device: c_int, stream: CUstream) => settings::prefetch;
    cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz(at: CUdeviceptr, bytes: usize, location: u64, flags: c_uint, stream: CUstream) => settings::prefetch_v2;
    cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz(stream: CUstream, at: CUdeviceptr, bytes: usize, flags: c_uint) => settings::attach;

    cuMemAllocAsync / cuMemAllocAsync_ptsz(at: *mut CUdeviceptr, bytes: usize, stream: CUstream) => pool::alloc_async;
    cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz(at: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) => pool::alloc_from_async;
    cuMemFreeAsync / cuMemFreeAsync_ptsz(at: CUdeviceptr, stream: CUstream) => pool::free_async;
    cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) => pool::default_of;
    cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) => pool::current_of;
    cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) => pool::set_current;
    cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const pool::Properties) => pool::create;
    cuMemPoolDestroy(pool: CUmemoryPool) => pool::destroy;
    cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => pool::trim;
    cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: *const c_void) => pool::set_attribute;
    cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) => pool::get_attribute;
    cuMemPoolSetAccess(pool: CUmemoryPool, access: *const c_void, count: usize) => pool::set_access;
    cuMemPoolGetAccess(flags: *mut c_int, pool: CUmemoryPool, location: *const c_void) => pool::get_access;

    cuMemAddressReserve(at: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: u64) => vmm::reserve;
    cuMemAddressFree(at: CUdeviceptr, bytes: usize) => vmm::free;
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const vmm::Properties, flags: u64) => vmm::create;
    cuMemRelease(handle: u64) => vmm::release;
    cuMemRetainAllocationHandle(handle: *mut u64, at: *mut u8) => vmm::retain;
    cuMemMap(at: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64) => vmm::map;
    cuMemUnmap(at: CUdeviceptr, bytes: usize) => vmm::unmap;
    cuMemSetAccess(at: CUdeviceptr, bytes: usize, access: *const vmm::Access, count: usize) => vmm::set_access;
    cuMemGetAccess(flags: *mut u64, location: *const vmm::Location, at: CUdeviceptr) => vmm::get_access;
    cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const vmm::Properties, option: c_int) => vmm::granularity;
    cuMemGetAllocationPropertiesFromHandle(properties: *mut vmm::Properties, handle: u64) => vmm::properties;

    cuMemcpy / cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copy::any;
    cuMemcpyAsync / cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) => copy::any_async;
    cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *const c_void, stream: CUstream) => copy::with_attributes;
    cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copy::any;
    cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) => copy::any_async;
    cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const u8, bytes: usize) => copy::to_device;
    cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(to: CUdeviceptr, from: *const u8, bytes: usize, stream: CUstream) => copy::to_device_async;
    cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(to: *mut u8, from: CUdeviceptr, bytes: usize) => copy::to_host;
    cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(to: *mut u8, from: CUdeviceptr, bytes: usize, stream: CUstream) => copy::to_host_async;
    cuMemcpyPeer / cuMemcpyPeer_ptds(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize) => copy::peer;
    cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream) => copy::peer_async;
    cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(what: *const Memcpy2d) => copy::rectangle;
    cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(what: *const Memcpy2d) => copy::rectangle;
    cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz(what: *const Memcpy2d, stream: CUstream) => copy::rectangle_async;
    cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(what: *const Memcpy3d) => copy::block;
    cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(what: *const Memcpy3d, stream: CUstream) => copy::block_async;

    cuMemsetD8_v2 / cuMemsetD8_v2_ptds(at: CUdeviceptr, value: u8, count: usize) => copy::set8;
    cuMemsetD16_v2 / cuMemsetD16_v2_ptds(at: CUdeviceptr, value: u16, count: usize) => copy::set16;
    cuMemsetD32_v2 / cuMemsetD32_v2_ptds(at: CUdeviceptr, value: u32, count: usize) => copy::set32;
    cuMemsetD8Async / cuMemsetD8Async_ptsz(at: CUdeviceptr, value: u8, count: usize, stream: CUstream) => copy::set8_async;
    cuMemsetD16Async / cuMemsetD16Async_ptsz(at: CUdeviceptr, value: u16, count: usize, stream: CUstream) => copy::set16_async;
    cuMemsetD32Async / cuMemsetD32Async_ptsz(at: CUdeviceptr, value: u32, count: usize, stream: CUstream) => copy::set32_async;
    cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds(at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) => copy::set_rows8;
    cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds(at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) => copy::set_rows16;
    cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds(at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize) => copy::set_rows32;
    cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz(at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) => copy::set_rows8_async;
    cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz(at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) => copy::set_rows16_async;
    cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz(at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) => copy::set_rows32_async;
}
