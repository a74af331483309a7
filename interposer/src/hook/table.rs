//! Every driver function that the library hooks, one row each: its class, the first CUDA version with this signature,
//! and the signature. The older ABIs of a name, from before CUDA 3.2, have 32-bit addresses and are not hooked; a
//! program that looks one up is counted.
//!
//! `+ ptsz` and `+ ptds`: the function has a twin with this suffix and the same signature, for programs whose stream 0
//! is each thread's own. The twin is a row of its own, behind that of the function.

use super::proc_address;
use crate::activity::launch::stream_of;
use crate::activity::sync::Proof;
use crate::activity::{capture, contexts, launch};
use crate::memory::arrays::{self, Array, Array3D};
use crate::memory::{answers, grant};
use crate::process::Process;
use crate::state::activity::slots;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::cuda::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUgreenCtx, CUhostFn, CUlaunchConfig, CUmemoryPool, CUmodule, CUresult, CUstream,
    CUstreamCallback, CudaLaunchParams,
};
use tidegate_abi::vmm::Properties;

/// A stream of 0.
const NULL: usize = 0;

/// Starts the library's threads with the process' first context.
pub fn start(process: &'static Process) {
    crate::start::once(process, &ROWS);
}

/// Starts them with the process' first channel, where no hooked call led to it. A process whose calls are seen attaches with
/// its first context: the words of its devices are right from the first launch on.
pub fn start_unseen(process: &'static Process) {
    let is_seen = ROWS.iter().any(|row| row.calls.load(Relaxed) > 0);
    if !is_seen && !process.start.threads.load(Acquire) {
        process.start.unseen.store(true, Release);
        start(process);
    }
}

crate::hooks! {
    // Launches.
    LaunchKernel[s] 4000 + ptsz fn cuLaunchKernel(f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, s: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
    Launch[stream_of(config)] 11060 + ptsz fn cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
    LaunchGraph[s, exec] 10000 + ptsz fn cuGraphLaunch(exec: CUgraphExec, s: CUstream);
    Launch[s] 9000 + ptsz fn cuLaunchCooperativeKernel(f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, s: CUstream, params: *mut *mut c_void);
    LaunchMany[launch::multi_device] 9000 fn cuLaunchCooperativeKernelMultiDevice(list: *mut CudaLaunchParams, count: c_uint, flags: c_uint);
    Launch[s] 11010 + ptsz fn cuGraphUpload(exec: CUgraphExec, s: CUstream);
    Launch[s, host] 10000 + ptsz fn cuLaunchHostFunc(s: CUstream, f: CUhostFn, data: *mut c_void);
    Launch[s, host] 13010 + ptsz fn cuLaunchHostFunc_v2(s: CUstream, f: CUhostFn, data: *mut c_void, mode: c_uint);
    Launch[s, host] 5000 + ptsz fn cuStreamAddCallback(s: CUstream, f: CUstreamCallback, data: *mut c_void, flags: c_uint);
    Launch[NULL] 2000 fn cuLaunch(f: CUfunction);
    Launch[NULL] 2000 fn cuLaunchGrid(f: CUfunction, width: c_int, height: c_int);
    Launch[s] 2000 fn cuLaunchGridAsync(f: CUfunction, width: c_int, height: c_int, s: CUstream);

    // Copies and fills that return before they are done.
    Launch[s] 4000 + ptsz fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, s: CUstream);
    Launch[s] 4000 + ptsz fn cuMemcpyPeerAsync(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpyHtoAAsync_v2(to: *mut c_void, at: usize, from: *const c_void, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpyAtoHAsync_v2(to: *mut c_void, from: *mut c_void, at: usize, bytes: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpy2DAsync_v2(copy: *const c_void, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemcpy3DAsync_v2(copy: *const c_void, s: CUstream);
    Launch[s] 4000 + ptsz fn cuMemcpy3DPeerAsync(copy: *const c_void, s: CUstream);
    Launch[s] 12080 + ptsz fn cuMemcpyBatchAsync(to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize, attributes: *mut c_void, which: *mut usize, attribute_count: usize, failed: *mut usize, s: CUstream);
    Launch[s] 13000 + ptsz fn cuMemcpyBatchAsync_v2(to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize, attributes: *mut c_void, which: *mut usize, attribute_count: usize, s: CUstream);
    Launch[s] 12080 + ptsz fn cuMemcpy3DBatchAsync(count: usize, list: *mut c_void, failed: *mut usize, flags: u64, s: CUstream);
    Launch[s] 13000 + ptsz fn cuMemcpy3DBatchAsync_v2(count: usize, list: *mut c_void, flags: u64, s: CUstream);
    Launch[s] 13020 + ptsz fn cuMemcpyWithAttributesAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut c_void, s: CUstream);
    Launch[s] 13020 + ptsz fn cuMemcpy3DWithAttributesAsync(copy: *mut c_void, flags: u64, s: CUstream);
    Launch[s] 13050 + ptsz fn cuFabricCpyBatchAsync(count: usize, list: *mut c_void, flags: u64, s: CUstream);
    Launch[s] 12060 + ptsz fn cuMemBatchDecompressAsync(list: *mut c_void, count: usize, flags: c_uint, failed: *mut usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD2D8Async(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD2D16Async(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, s: CUstream);
    Launch[s] 3020 + ptsz fn cuMemsetD2D32Async(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, s: CUstream);
    Launch[s] 8000 + ptsz fn cuMemPrefetchAsync(at: CUdeviceptr, bytes: usize, device: CUdevice, s: CUstream);
    Launch[s] 12020 + ptsz fn cuMemPrefetchAsync_v2(at: CUdeviceptr, bytes: usize, location: u64, flags: c_uint, s: CUstream);
    Launch[s] 13000 + ptsz fn cuMemPrefetchBatchAsync(at: *mut CUdeviceptr, bytes: *mut usize, count: usize, locations: *mut c_void, which: *mut usize, location_count: usize, flags: u64, s: CUstream);
    Launch[s] 13000 + ptsz fn cuMemDiscardBatchAsync(at: *mut CUdeviceptr, bytes: *mut usize, count: usize, flags: u64, s: CUstream);
    Launch[s] 13000 + ptsz fn cuMemDiscardAndPrefetchBatchAsync(at: *mut CUdeviceptr, bytes: *mut usize, count: usize, locations: *mut c_void, which: *mut usize, location_count: usize, flags: u64, s: CUstream);
    Launch[s] 11010 + ptsz fn cuMemMapArrayAsync(list: *mut c_void, count: c_uint, s: CUstream);
    Launch[s] 6000 + ptsz fn cuStreamAttachMemAsync(s: CUstream, at: CUdeviceptr, bytes: usize, flags: c_uint);
    Launch[s] 3000 + ptsz fn cuGraphicsMapResources(count: c_uint, list: *mut *mut c_void, s: CUstream);
    Launch[s] 3000 + ptsz fn cuGraphicsUnmapResources(count: c_uint, list: *mut *mut c_void, s: CUstream);

    // What makes a stream wait, or others go on.
    Launch[s] 10000 + ptsz fn cuSignalExternalSemaphoresAsync(list: *const *mut c_void, values: *const c_void, count: c_uint, s: CUstream);
    Launch[s, host] 10000 + ptsz fn cuWaitExternalSemaphoresAsync(list: *const *mut c_void, values: *const c_void, count: c_uint, s: CUstream);
    Launch[s, host] 8000 + ptsz fn cuStreamBatchMemOp(s: CUstream, count: c_uint, list: *mut c_void, flags: c_uint);
    Launch[s, host] 11070 + ptsz fn cuStreamBatchMemOp_v2(s: CUstream, count: c_uint, list: *mut c_void, flags: c_uint);
    Launch[s] 8000 + ptsz fn cuStreamWriteValue32(s: CUstream, at: CUdeviceptr, value: u32, flags: c_uint);
    Launch[s, host] 8000 + ptsz fn cuStreamWaitValue32(s: CUstream, at: CUdeviceptr, value: u32, flags: c_uint);
    Launch[s] 11070 + ptsz fn cuStreamWriteValue32_v2(s: CUstream, at: CUdeviceptr, value: u32, flags: c_uint);
    Launch[s, host] 11070 + ptsz fn cuStreamWaitValue32_v2(s: CUstream, at: CUdeviceptr, value: u32, flags: c_uint);
    Launch[s] 9000 + ptsz fn cuStreamWriteValue64(s: CUstream, at: CUdeviceptr, value: u64, flags: c_uint);
    Launch[s, host] 9000 + ptsz fn cuStreamWaitValue64(s: CUstream, at: CUdeviceptr, value: u64, flags: c_uint);
    Launch[s] 11070 + ptsz fn cuStreamWriteValue64_v2(s: CUstream, at: CUdeviceptr, value: u64, flags: c_uint);
    Launch[s, host] 11070 + ptsz fn cuStreamWaitValue64_v2(s: CUstream, at: CUdeviceptr, value: u64, flags: c_uint);

    // What a synchronous call promises at its return is what the CUDA documentation says of it ("API
    // synchronization behavior"): fills and copies between devices may return before they have begun, a
    // copy from pageable memory before its last part has arrived. Only a copy to the host is done; where
    // the addresses alone tell the direction, a copy counts as one that is not.
    Launch[NULL] 3020 + ptds fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize);
    Launch[NULL] 3020 + ptds fn cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
    Launch[NULL] 3020 + ptds fn cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize);
    Launch[NULL] 3020 + ptds fn cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
    Launch[NULL] 3020 + ptds fn cuMemsetD32_v2(to: CUdeviceptr, value: u32, count: usize);
    Launch[NULL] 3020 + ptds fn cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
    Launch[NULL] 4000 + ptds fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    Launch[NULL] 4000 + ptds fn cuMemcpyPeer(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    ToHost[bytes] 3020 + ptds fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyDtoA_v2(to: *mut c_void, at: usize, from: CUdeviceptr, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyAtoD_v2(to: CUdeviceptr, from: *mut c_void, at: usize, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyHtoA_v2(to: *mut c_void, at: usize, from: *const c_void, bytes: usize);
    ToHost[bytes] 3020 + ptds fn cuMemcpyAtoH_v2(to: *mut c_void, from: *mut c_void, at: usize, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpyAtoA_v2(to: *mut c_void, at: usize, from: *mut c_void, from_at: usize, bytes: usize);
    Launch[NULL] 3020 + ptds fn cuMemcpy2D_v2(copy: *const c_void);
    Launch[NULL] 3020 + ptds fn cuMemcpy2DUnaligned_v2(copy: *const c_void);
    Launch[NULL] 3020 + ptds fn cuMemcpy3D_v2(copy: *const c_void);
    Launch[NULL] 4000 + ptds fn cuMemcpy3DPeer(copy: *const c_void);

    // What proves work done.
    Sync[Proof::Context] 2000 fn cuCtxSynchronize();
    Sync[Proof::Context] 13000 fn cuCtxSynchronize_v2(context: CUcontext);
    Sync[Proof::Stream(slots::named::<THREAD>(s as usize))] 2000 + ptsz fn cuStreamSynchronize(s: CUstream);
    Sync[Proof::Stream(slots::named::<THREAD>(s as usize))] 2000 + ptsz fn cuStreamQuery(s: CUstream);
    Sync[Proof::Event] 2000 fn cuEventSynchronize(event: CUevent);
    Sync[Proof::Event] 2000 fn cuEventQuery(event: CUevent);

    // Contexts and streams.
    Current 2000 fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    Current 3020 fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    Current 11040 fn cuCtxCreate_v3(context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CUdevice);
    Current 12050 fn cuCtxCreate_v4(context: *mut CUcontext, params: *mut c_void, flags: c_uint, device: CUdevice);
    Current 4000 fn cuCtxSetCurrent(context: CUcontext);
    Current 2000 fn cuCtxPushCurrent(context: CUcontext);
    Current 4000 fn cuCtxPushCurrent_v2(context: CUcontext);
    Current 2000 fn cuCtxPopCurrent(context: *mut CUcontext);
    Current 4000 fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    Around[contexts::destroy, (context), held] 2000 fn cuCtxDestroy(context: CUcontext);
    Around[contexts::destroy, (context), held] 4000 fn cuCtxDestroy_v2(context: CUcontext);
    Around[contexts::destroy, (context), held] 2000 fn cuCtxDetach(context: CUcontext);
    Around[contexts::retained, (start, context, device), result] 7000 fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    Around[contexts::release, (device), held] 7000 fn cuDevicePrimaryCtxRelease(device: CUdevice);
    Around[contexts::release, (device), held] 11000 fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    Around[contexts::release, (device), held] 7000 fn cuDevicePrimaryCtxReset(device: CUdevice);
    Around[contexts::release, (device), held] 11000 fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    Around[contexts::stream_made, (start, stream), result] 2000 fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    Around[contexts::stream_made, (start, stream), result] 5050 fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    Around[contexts::stream_made, (start, stream), result] 12050 fn cuGreenCtxStreamCreate(stream: *mut CUstream, context: CUgreenCtx, flags: c_uint, priority: c_int);
    Around[contexts::stream_destroyed, (s), held] 2000 fn cuStreamDestroy(s: CUstream);
    Around[contexts::stream_destroyed, (s), held] 4000 fn cuStreamDestroy_v2(s: CUstream);

    // Captures.
    Capture[capture::begin, s] 10000 + ptsz fn cuStreamBeginCapture(s: CUstream);
    Capture[capture::begin, s] 10010 + ptsz fn cuStreamBeginCapture_v2(s: CUstream, mode: c_int);
    Capture[capture::begin, s] 12030 + ptsz fn cuStreamBeginCaptureToGraph(s: CUstream, graph: CUgraph, nodes: *const CUgraphNode, edges: *const c_void, count: usize, mode: c_int);
    Capture[capture::begin, s] 13030 + ptsz fn cuStreamBeginRecaptureToGraph(s: CUstream, mode: c_int, graph: CUgraph, f: *const c_void, data: *mut c_void);
    Capture[capture::end, s] 10000 + ptsz fn cuStreamEndCapture(s: CUstream, graph: *mut CUgraph);

    // Memory: KV caches answer as one allocation, the rest is counted.
    Memory[answers::alloc, (ROW, start, at, bytes), call] 3020 fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    Memory[answers::pitched, (ROW, at, pitch, (width, height)), call] 3020 fn cuMemAllocPitch_v2(at: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    Memory[answers::plain, (ROW, at, bytes), call] 11020 + ptsz fn cuMemAllocAsync(at: *mut CUdeviceptr, bytes: usize, s: CUstream);
    Memory[answers::plain, (ROW, at, bytes), call] 11020 + ptsz fn cuMemAllocFromPoolAsync(at: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, s: CUstream);
    Memory[answers::plain, (ROW, at, bytes), call] 6000 fn cuMemAllocManaged(at: *mut CUdeviceptr, bytes: usize, flags: c_uint);
    Memory[grant::create, (ROW, handle, bytes, properties), call] 10020 fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64);
    Memory[grant::mapped, (at, bytes, handle), result] 10020 fn cuMemMap(at: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: u64);
    Memory[grant::unmap, (ROW, at, bytes), call] 10020 fn cuMemUnmap(at: CUdeviceptr, bytes: usize);
    Memory[grant::release, (ROW, handle), call] 10020 fn cuMemRelease(handle: u64);
    Memory[arrays::flat, (ROW, array, described), call] 3020 fn cuArrayCreate_v2(array: *mut *mut c_void, described: *const Array);
    Memory[arrays::deep, (ROW, array, described, 1), call] 3020 fn cuArray3DCreate_v2(array: *mut *mut c_void, described: *const Array3D);
    Memory[arrays::deep, (ROW, array, described, levels), call] 5000 fn cuMipmappedArrayCreate(array: *mut *mut c_void, described: *const Array3D, levels: c_uint);
    Memory[answers::freed, (array as CUdeviceptr), result] 2000 fn cuArrayDestroy(array: *mut c_void);
    Memory[answers::freed, (array as CUdeviceptr), result] 5000 fn cuMipmappedArrayDestroy(array: *mut c_void);
    Memory[answers::free, (ROW, at), call] 3020 fn cuMemFree_v2(at: CUdeviceptr);
    Memory[answers::freed, (at), result] 11020 + ptsz fn cuMemFreeAsync(at: CUdeviceptr, s: CUstream);
    Memory[answers::info, (free, total), result] 3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    Memory[answers::total, (bytes, device), result] 3020 fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    Memory[answers::address_range, (base, bytes, at), call] 3020 fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, at: CUdeviceptr);
    Memory[answers::attribute, (data, attribute, at), call] 4000 fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, at: CUdeviceptr);
    Memory[answers::attributes, (count, attributes, data, at), call] 7000 fn cuPointerGetAttributes(count: c_uint, attributes: *const c_int, data: *mut *mut c_void, at: CUdeviceptr);
    Memory[answers::retain, (handle, at), call] 11000 fn cuMemRetainAllocationHandle(handle: *mut u64, at: *mut c_void);
    Memory[answers::shared, (at), call] 4010 fn cuIpcGetMemHandle(handle: *mut c_void, at: CUdeviceptr);
    Memory[answers::shared, (at), call] 11070 fn cuMemGetHandleForAddressRange(handle: *mut c_void, at: CUdeviceptr, bytes: usize, kind: c_int, flags: u64);
    Memory[answers::shared, (at as CUdeviceptr), call] 4000 fn cuMemHostRegister(at: *mut c_void, bytes: usize, flags: c_uint);
    Memory[answers::shared, (at as CUdeviceptr), call] 6050 fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint);
    Memory[answers::peer, (peer), result] 4000 fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

    // What else may hold the driver's locks while it waits for the GPU.
    Hold 2000 fn cuMemFreeHost(at: *mut c_void);
    Hold 4000 fn cuMemHostUnregister(at: *mut c_void);
    Hold 3010 fn cuCtxSetLimit(limit: c_int, value: usize);
    Hold 2000 fn cuModuleLoad(module: *mut CUmodule, name: *const c_char);
    Hold 2000 fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    Hold 2010 fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void);
    Hold 2000 fn cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void);
    Hold 2000 fn cuModuleUnload(module: CUmodule);
    Hold 12000 fn cuLibraryLoadData(library: *mut *mut c_void, code: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint);
    Hold 12000 fn cuLibraryLoadFromFile(library: *mut *mut c_void, name: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint);
    Hold 12000 fn cuLibraryUnload(library: *mut c_void);
    Hold 2000 fn cuEventDestroy(event: CUevent);
    Hold 4000 fn cuEventDestroy_v2(event: CUevent);
    Hold 10000 fn cuGraphExecDestroy(exec: CUgraphExec);

    // Answers for functions.
    Resolve[proc_address::proc_address] 11030 fn cuGetProcAddress(name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64);
    Resolve[proc_address::proc_address_v2] 12000 fn cuGetProcAddress_v2(name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
}

// What a thread counts in its own slot are launches, and none that waits for its end.
const _: () = assert!(place("cuMemsetD8_v2\0") == slots::HOT_ROWS);
