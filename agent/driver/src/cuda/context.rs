//! Devices, contexts, streams, events, kernels and graphs.

use super::library::{CudaError, Handle, Result, call, driver};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUgraph,
    CUgraphExec, CUmemAccessDesc, CUmemAllocationProp, CUmodule, CUstream, CUstreamCaptureMode,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use tidegate_abi::cuda::{CUresult, CUuuid};

/// `CU_STREAM_NON_BLOCKING`.
pub(super) const NON_BLOCKING: c_uint = 1;
const MULTIPROCESSORS: CUdevice_attribute =
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

driver! {
    /// The driver's functions.
    Cuda:
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid(*mut cudarc::driver::sys::CUuuid, CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(CUdevice, c_uint);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxReset_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuCtxSynchronize();
    cuCtxCreate_v2(*mut CUcontext, c_uint, CUdevice);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamQuery(CUstream);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
    cuEventQuery(CUevent);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    cuMemsetD8_v2(CUdeviceptr, u8, usize);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemCreate(*mut u64, usize, *const CUmemAllocationProp, u64);
    cuMemRelease(u64);
    cuMemMap(CUdeviceptr, usize, usize, u64, u64);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemUnmap(CUdeviceptr, usize);
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
    cuGraphLaunch(CUgraphExec, CUstream);
}

/// A kernel launch: one function, its grid and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: Handle,
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Arguments; every kernel of [`crate::kernels`] takes 64-bit integers only.
    pub arguments: &'a [u64],
}

impl Cuda {
    /// `cuInit` and device `ordinal`.
    ///
    /// # Errors
    /// The driver's; so for every method below.
    pub fn device(&self, ordinal: i32) -> Result<CUdevice> {
        call!(self, cuInit(0))?;
        let mut device = 0;
        call!(self, cuDeviceGet(&raw mut device, ordinal))?;
        Ok(device)
    }

    /// `cuInit`, and how many devices there are.
    pub fn count(&self) -> Result<i32> {
        call!(self, cuInit(0))?;
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count))?;
        Ok(count)
    }

    /// Multiprocessors (SMs) of a device.
    pub fn multiprocessors(&self, device: CUdevice) -> Result<u32> {
        let mut count = 0;
        call!(
            self,
            cuDeviceGetAttribute(&raw mut count, MULTIPROCESSORS, device)
        )?;
        Ok(u32::try_from(count).unwrap_or(1).max(1))
    }

    /// UUID of a device.
    pub fn uuid(&self, device: CUdevice) -> Result<[u8; 16]> {
        let mut uuid = CUuuid::default();
        call!(self, cuDeviceGetUuid((&raw mut uuid).cast(), device))?;
        Ok(uuid.bytes)
    }

    /// Name of a device.
    pub fn name(&self, device: CUdevice) -> Result<String> {
        let mut name = [0_u8; 256];
        call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), 255, device))?;
        let text: Vec<u8> = name.into_iter().take_while(|&b| b != 0).collect();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The device's primary context, with `flags` as of `cuCtxCreate`.
    pub fn context(&self, device: CUdevice, flags: u32) -> Result<Handle> {
        call!(self, cuDevicePrimaryCtxSetFlags_v2(device, flags))?;
        let mut context = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        self.enter(context as Handle)?;
        Ok(context as Handle)
    }

    /// A context beside the primary one, current on this thread until another is entered.
    pub fn further_context(&self, device: CUdevice) -> Result<Handle> {
        let mut context = null_mut();
        call!(self, cuCtxCreate_v2(&raw mut context, 0, device))?;
        Ok(context as Handle)
    }

    /// Makes a context the calling thread's.
    pub fn enter(&self, context: Handle) -> Result {
        call!(self, cuCtxSetCurrent(context as CUcontext))
    }

    /// Destroys the primary context, with the memory of its counters, which nobody may read from then on.
    pub fn reset(&self, device: CUdevice) -> Result {
        call!(self, cuDevicePrimaryCtxReset_v2(device))
    }

    /// Waits for everything.
    pub fn synchronize(&self) -> Result {
        call!(self, cuCtxSynchronize())
    }

    /// A stream that does not wait for the default one.
    pub fn stream(&self) -> Result<Handle> {
        let mut stream = null_mut();
        call!(self, cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(stream as Handle)
    }

    /// Destroys a stream.
    pub fn destroy_stream(&self, stream: Handle) -> Result {
        call!(self, cuStreamDestroy_v2(stream as CUstream))
    }

    /// Waits for a stream.
    pub fn wait_stream(&self, stream: Handle) -> Result {
        call!(self, cuStreamSynchronize(stream as CUstream))
    }

    /// Whether a stream has finished.
    pub fn query_stream(&self, stream: Handle) -> Result<bool> {
        ready(call!(self, cuStreamQuery(stream as CUstream)))
    }

    /// An event with `flags`.
    pub fn event(&self, flags: u32) -> Result<Handle> {
        let mut event = null_mut();
        call!(self, cuEventCreate(&raw mut event, flags))?;
        Ok(event as Handle)
    }

    /// Records an event.
    pub fn record(&self, event: Handle, stream: Handle) -> Result {
        call!(self, cuEventRecord(event as CUevent, stream as CUstream))
    }

    /// Waits for an event.
    pub fn wait_event(&self, event: Handle) -> Result {
        call!(self, cuEventSynchronize(event as CUevent))
    }

    /// Whether an event has happened.
    pub fn query_event(&self, event: Handle) -> Result<bool> {
        ready(call!(self, cuEventQuery(event as CUevent)))
    }

    /// Loads PTX text.
    pub fn module(&self, text: &CStr) -> Result<Handle> {
        let mut module = null_mut();
        call!(
            self,
            cuModuleLoadData(&raw mut module, text.as_ptr().cast())
        )?;
        Ok(module as Handle)
    }

    /// A kernel of a module.
    pub fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let mut function = null_mut();
        call!(
            self,
            cuModuleGetFunction(&raw mut function, module as CUmodule, name.as_ptr())
        )?;
        Ok(function as Handle)
    }

    /// Launches a kernel.
    pub fn launch(&self, stream: Handle, launch: Launch<'_>) -> Result {
        let mut arguments: Vec<*mut c_void> = launch
            .arguments
            .iter()
            .map(|argument| std::ptr::from_ref(argument).cast_mut().cast())
            .collect();
        call!(
            self,
            cuLaunchKernel(
                launch.function as CUfunction,
                launch.blocks,
                1,
                1,
                launch.threads,
                1,
                1,
                0,
                stream as CUstream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        )
    }

    /// A graph of what `record` launches on `stream`.
    pub fn graph(&self, stream: Handle, record: impl FnOnce() -> Result) -> Result<Handle> {
        call!(self, cuStreamBeginCapture_v2(stream as CUstream, RELAXED))?;
        let recorded = record();
        let mut graph = null_mut();
        call!(self, cuStreamEndCapture(stream as CUstream, &raw mut graph))?;
        recorded?;
        let mut exec = null_mut();
        call!(self, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
        Ok(exec as Handle)
    }

    /// Launches a graph.
    pub fn launch_graph(&self, exec: Handle, stream: Handle) -> Result {
        call!(self, cuGraphLaunch(exec as CUgraphExec, stream as CUstream))
    }
}

fn ready(result: Result) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(CudaError::Call { code, .. }) if code == CUresult::NOT_READY.0 => Ok(false),
        Err(error) => Err(error),
    }
}
