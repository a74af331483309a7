//! Rows: driver, devices, contexts, streams, events.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tidegate_abi::cuda::{
    CUcontext, CUdevice, CUevent, CUgreenCtx, CUresult, CUstream, CUstreamCallback, CUuuid,
};

use super::{export, exports};
use crate::objects::current::DefaultStream;
use crate::result::code_of;
use crate::{
    context, device, driver, event, green, launch, proc_address, result, settings, stream, values,
};

exports! {
    cuInit(flags: c_uint) => driver::init;
    cuDriverGetVersion(version: *mut c_int) => driver::version;
    cuGetErrorName(error: CUresult, text: *mut *const c_char) => result::error_name;
    cuGetErrorString(error: CUresult, text: *mut *const c_char) => result::error_string;
    cuGetProcAddress(symbol: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64) => proc_address::get_v1;
    cuGetProcAddress_v2(symbol: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) => proc_address::get_v2;
    cuGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) => proc_address::export_table;

    cuDeviceGet(device: *mut CUdevice, ordinal: c_int) => device::get;
    cuDeviceGetCount(count: *mut c_int) => device::count;
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) => device::name;
    cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) => device::uuid;
    cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) => device::uuid;
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) => device::total_memory;
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) => device::attribute;
    cuDeviceGetProperties(properties: *mut device::Properties, device: CUdevice) => device::properties;
    cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: CUdevice) => device::compute_capability;
    cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: CUdevice) => device::pci_bus_id;
    cuDeviceGetByPCIBusId(device: *mut CUdevice, text: *const c_char) => device::by_pci_bus_id;
    cuDeviceCanAccessPeer(answer: *mut c_int, device: CUdevice, peer: CUdevice) => device::can_access_peer;

    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) => context::primary_retain;
    cuDevicePrimaryCtxRelease(device: CUdevice) => context::primary_release;
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) => context::primary_release;
    cuDevicePrimaryCtxReset(device: CUdevice) => context::primary_reset;
    cuDevicePrimaryCtxReset_v2(device: CUdevice) => context::primary_reset;
    cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) => context::primary_set_flags;
    cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) => context::primary_set_flags;
    cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) => context::primary_state;

    cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create;
    cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create;
    cuCtxCreate_v3(context: *mut CUcontext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CUdevice) => context::create_v3;
    cuCtxCreate_v4(context: *mut CUcontext, params: *mut c_void, flags: c_uint, device: CUdevice) => context::create_v4;
    cuCtxDestroy(context: CUcontext) => context::destroy;
    cuCtxDestroy_v2(context: CUcontext) => context::destroy;
    cuCtxPushCurrent(context: CUcontext) => context::push;
    cuCtxPushCurrent_v2(context: CUcontext) => context::push;
    cuCtxPopCurrent(context: *mut CUcontext) => context::pop;
    cuCtxPopCurrent_v2(context: *mut CUcontext) => context::pop;
    cuCtxSetCurrent(context: CUcontext) => context::set_current;
    cuCtxGetCurrent(context: *mut CUcontext) => context::get_current;
    cuCtxGetDevice(device: *mut CUdevice) => context::get_device;
    cuCtxGetDevice_v2(device: *mut CUdevice, context: CUcontext) => context::get_device_v2;
    cuCtxGetFlags(flags: *mut c_uint) => context::get_flags;
    cuCtxSetFlags(flags: c_uint) => context::set_flags;
    cuCtxGetId(context: CUcontext, id: *mut u64) => context::get_id;
    cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint) => context::api_version;
    cuCtxSynchronize() => context::synchronize;
    cuCtxSynchronize_v2(context: CUcontext) => context::synchronize_v2;
    cuCtxSetLimit(limit: c_int, value: usize) => settings::set_limit;
    cuCtxGetLimit(value: *mut usize, limit: c_int) => settings::get_limit;
    cuCtxGetCacheConfig(config: *mut c_int) => settings::get_cache;
    cuCtxSetCacheConfig(config: c_int) => settings::set_cache;
    cuCtxGetSharedMemConfig(config: *mut c_int) => settings::get_shared;
    cuCtxSetSharedMemConfig(config: c_int) => settings::set_cache;
    cuCtxResetPersistingL2Cache() => settings::no_effect;
    cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) => settings::enable_peer;
    cuCtxDisablePeerAccess(peer: CUcontext) => settings::disable_peer;
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, device: CUdevice, peer: CUdevice) => settings::peer_attribute;
    cuProfilerInitialize(config: *const c_char, output: *const c_char, mode: c_int) => settings::profiler_initialize;
    cuProfilerStart() => settings::no_effect;
    cuProfilerStop() => settings::no_effect;
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) => context::priority_range;

    cuDeviceGetDevResource(device: CUdevice, resource: *mut green::Resource, kind: c_uint) => green::of_device;
    cuCtxGetDevResource(context: CUcontext, resource: *mut green::Resource, kind: c_uint) => green::of_context;
    cuGreenCtxGetDevResource(green: CUgreenCtx, resource: *mut green::Resource, kind: c_uint) => green::of_green;
    cuDevSmResourceSplitByCount(list: *mut green::Resource, groups: *mut c_uint, input: *const green::Resource, remaining: *mut green::Resource, flags: c_uint, least: c_uint) => green::split;
    cuDevResourceGenerateDesc(description: *mut *mut c_void, list: *const green::Resource, count: c_uint) => green::describe;
    cuGreenCtxCreate(green: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: c_uint) => green::create;
    cuGreenCtxDestroy(green: CUgreenCtx) => green::destroy;
    cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) => green::context_of;
    cuGreenCtxStreamCreate(stream: *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int) => green::create_stream;
    cuStreamGetGreenCtx(stream: CUstream, green: *mut CUgreenCtx) => green::of_stream;

    cuStreamCreate(stream: *mut CUstream, flags: c_uint) => stream::create;
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) => stream::create_with_priority;
    cuStreamDestroy(stream: CUstream) => stream::destroy;
    cuStreamDestroy_v2(stream: CUstream) => stream::destroy;
    cuStreamSynchronize / cuStreamSynchronize_ptsz(stream: CUstream) => stream::synchronize;
    cuStreamQuery / cuStreamQuery_ptsz(stream: CUstream) => stream::query;
    cuStreamWaitEvent / cuStreamWaitEvent_ptsz(stream: CUstream, event: CUevent, flags: c_uint) => event::stream_wait;
    cuStreamAddCallback / cuStreamAddCallback_ptsz(stream: CUstream, function: CUstreamCallback, data: *mut c_void, flags: c_uint) => launch::stream_callback;
    cuStreamGetPriority / cuStreamGetPriority_ptsz(stream: CUstream, priority: *mut c_int) => stream::priority;
    cuStreamGetFlags / cuStreamGetFlags_ptsz(stream: CUstream, flags: *mut c_uint) => stream::flags;
    cuStreamGetId / cuStreamGetId_ptsz(stream: CUstream, id: *mut u64) => stream::id;
    cuStreamGetCtx / cuStreamGetCtx_ptsz(stream: CUstream, context: *mut CUcontext) => stream::get_context;
    cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz(stream: CUstream, context: *mut CUcontext, green: *mut *mut c_void) => stream::get_context_v2;
    cuStreamGetAttribute / cuStreamGetAttribute_ptsz(stream: CUstream, attribute: c_int, value: *mut [u64; 8]) => values::get_attribute;
    cuStreamSetAttribute / cuStreamSetAttribute_ptsz(stream: CUstream, attribute: c_int, value: *const c_void) => values::set_attribute;
    cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz(to: CUstream, from: CUstream) => values::copy_attributes;
    cuStreamWriteValue32 / cuStreamWriteValue32_ptsz(stream: CUstream, at: u64, value: u32, flags: c_uint) => values::write32;
    cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz(stream: CUstream, at: u64, value: u32, flags: c_uint) => values::write32;
    cuStreamWriteValue64 / cuStreamWriteValue64_ptsz(stream: CUstream, at: u64, value: u64, flags: c_uint) => values::write64;
    cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz(stream: CUstream, at: u64, value: u64, flags: c_uint) => values::write64;
    cuStreamWaitValue32 / cuStreamWaitValue32_ptsz(stream: CUstream, at: u64, value: u32, flags: c_uint) => values::wait32;
    cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz(stream: CUstream, at: u64, value: u32, flags: c_uint) => values::wait32;
    cuStreamWaitValue64 / cuStreamWaitValue64_ptsz(stream: CUstream, at: u64, value: u64, flags: c_uint) => values::wait64;
    cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz(stream: CUstream, at: u64, value: u64, flags: c_uint) => values::wait64;
    cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz(stream: CUstream, count: c_uint, list: *const values::Operation, flags: c_uint) => values::batch;
    cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz(stream: CUstream, count: c_uint, list: *const values::Operation, flags: c_uint) => values::batch;
    cuStreamGetDevice / cuStreamGetDevice_ptsz(stream: CUstream, device: *mut CUdevice) => stream::device;

    cuEventCreate(event: *mut CUevent, flags: c_uint) => event::create;
    cuEventDestroy(event: CUevent) => event::destroy;
    cuEventDestroy_v2(event: CUevent) => event::destroy;
    cuEventRecord / cuEventRecord_ptsz(event: CUevent, stream: CUstream) => event::record;
    cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(event: CUevent, stream: CUstream, flags: c_uint) => event::record_with_flags;
    cuEventQuery(event: CUevent) => event::query;
    cuEventSynchronize(event: CUevent) => event::synchronize;
    cuEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent) => event::elapsed;
    cuEventElapsedTime_v2(ms: *mut f32, start: CUevent, end: CUevent) => event::elapsed;
}
