//! Rows: memory, copies, fills.

use std::ffi::c_uint;

use tidegate_abi::cuda::{CUcontext, CUdeviceptr, CUresult, CUstream};

use super::{export, exports};
use crate::copy::{self, Memcpy2d, Memcpy3d};
use crate::memory;
use crate::result::code_of;
use crate::stream::DefaultStream;

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

    cuMemcpy / cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copy::any;
    cuMemcpyAsync / cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) => copy::any_async;
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
