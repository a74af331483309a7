//! About a hundred driver calls, one row each: what P24 makes while the channels are disabled.
//!
//! A row is one call on a [`Scene`] of objects that were made before: a stream with work that does not end
//! (`busy`), one without (`idle`), an event behind that work, memory of each kind. What a call uses up,
//! `ready` makes for it while the channels still run.

use crate::clock::now_ns;
use crate::sizes;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{from_mut, null, null_mut};
use tidegate_abi::cuda::CUresult;
use tidegate_driver::cuda::{Cuda, CudaError, Handle, Launch, function};
use tidegate_driver::kernels::{Kernels, PTX};

type Result<T = ()> = std::result::Result<T, CudaError>;
type Pointer = *mut c_void;

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Waits for the GPU by its purpose.
    Waiter,
    /// Asks only.
    Query,
    /// Puts work on a stream.
    Launch,
    /// Copies or fills, done when it returns as far as it says.
    Copy,
    /// Makes, frees or registers memory.
    Memory,
    /// Maps and unmaps: what a reclaim is made of.
    Vmm,
    /// Makes or ends streams, events, graphs.
    Stream,
    /// Loads or unloads code.
    Module,
    /// Of a context or the device.
    Context,
}

/// One call.
#[derive(Clone, Copy)]
pub struct Row {
    /// The function, and after a comma what is special.
    pub name: &'static str,
    /// What it is about.
    pub kind: Kind,
    /// Makes what the call uses up.
    ready: Option<fn(&mut Scene) -> Result>,
    call: fn(&mut Scene) -> Result<u64>,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Row {
    /// The function's symbol.
    #[must_use]
    pub fn symbol(&self) -> &'static str {
        self.name.split(',').next().unwrap_or(self.name)
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Device, pinned and pageable memory of a scene, each.
const BYTES: usize = 4 * MIB;
/// `CU_STREAM_NON_BLOCKING`, `CU_EVENT_DISABLE_TIMING`.
const NON_BLOCKING: c_uint = 1;
const NO_TIMING: c_uint = 2;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_int = 1;
/// `CU_LIMIT_STACK_SIZE`, `CU_LIMIT_PRINTF_FIFO_SIZE`.
const STACK: c_int = 0;
const PRINTF: c_int = 1;

/// What the calls are made on.
#[derive(Debug)]
pub struct Scene {
    device: c_int,
    context: Handle,
    kernels: Kernels,
    progress: u64,
    busy: Handle,
    idle: Handle,
    /// Recorded behind the work of `busy`.
    event: Handle,
    /// Happened long ago, twice.
    past: [Handle; 2],
    memory: Memory,
    graph: Graph,
    pool: Handle,
    module: Handle,
    mapping: Mapping,
    /// What the row at hand uses up, or makes.
    spare: u64,
    other: u64,
}

/// [`BYTES`] of each kind of memory.
#[derive(Debug)]
struct Memory {
    device: u64,
    pinned: u64,
    pageable: Vec<u8>,
}

/// An empty graph, and one that launches a kernel.
#[derive(Debug)]
struct Graph {
    empty: Handle,
    exec: Handle,
}

/// A range of addresses and the memory that is mapped there, 2 MiB each.
#[derive(Debug)]
struct Mapping {
    at: u64,
    handle: u64,
}

/// Makes one call, whose parameters have the sizes that cudarc gives them; nanoseconds it took. What is not finished yet is an answer like another.
macro_rules! call {
    ($name:ident ( $($ty:ty = $value:expr),* $(,)? )) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> CUresult;
        const {
            let theirs = cudarc::driver::sys::$name as unsafe fn($(sizes::any_of!($ty)),*) -> _;
            assert!(sizes::same(sizes::of::<Function>(), sizes::of_value(theirs)), stringify!($name));
        }
        // SAFETY: the driver's function of this name has these parameters in cuda.h.
        let function = unsafe { function::<Function>(stringify!($name)) }?;
        let start = now_ns();
        // SAFETY: handles are the driver's own, addresses are of memory that the scene keeps, pointers are
        // to memory that lives through the call.
        let result = unsafe { function($($value),*) };
        let ns = now_ns() - start;
        if result.is_ok() || result == CUresult::NOT_READY {
            Ok(ns)
        } else {
            Err(CudaError::Call { call: stringify!($name), code: result.0 })
        }
    }};
}

// Behind the macro, which it uses.
mod fresh;

macro_rules! rows {
    ($($kind:ident $name:literal $([$ready:expr])? => $call:expr;)*) => {
        /// All of them.
        pub const ROWS: &[Row] = &[
            $(Row { name: $name, kind: Kind::$kind, ready: rows!(@ $($ready)?), call: $call },)*
        ];
    };
    (@) => { None };
    (@ $ready:expr) => { Some($ready) };
}

/// The row of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// `CUmemAllocationProp` and friends, as far as the rows need them: pinned memory of a device.
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    rest: [u64; 2],
}

/// `CUmemPoolProps`.
#[repr(C)]
struct PoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    rest: [u64; 9],
}
const _: () = assert!(size_of::<PoolProperties>() == 88);

/// `CUlaunchConfig` without attributes.
#[repr(C)]
struct LaunchConfig {
    sizes: [c_uint; 7],
    stream: Handle,
    attributes: u64,
    count: c_uint,
}

/// `CUDA_MEMCPY2D` is not needed: rows of two dimensions are fills.
extern "C" fn host_function(_: Pointer) {}

rows! {
    Waiter "cuStreamSynchronize, busy" => |s| call!(cuStreamSynchronize(Handle = s.busy));
    Waiter "cuStreamSynchronize, idle" => |s| call!(cuStreamSynchronize(Handle = s.idle));
    Waiter "cuEventSynchronize" => |s| call!(cuEventSynchronize(Handle = s.event));
    Waiter "cuCtxSynchronize" => |_| call!(cuCtxSynchronize());
    Query "cuStreamQuery, busy" => |s| call!(cuStreamQuery(Handle = s.busy));
    Query "cuStreamQuery, idle" => |s| call!(cuStreamQuery(Handle = s.idle));
    Query "cuEventQuery" => |s| call!(cuEventQuery(Handle = s.event));
    Query "cuEventElapsedTime" => |s| {
        let mut ms = 0_f32;
        call!(cuEventElapsedTime(*mut f32 = &raw mut ms, Handle = s.past[0], Handle = s.past[1]))
    };
    Query "cuMemGetInfo_v2" => |_| {
        let (mut free, mut total) = (0_usize, 0_usize);
        call!(cuMemGetInfo_v2(*mut usize = &raw mut free, *mut usize = &raw mut total))
    };
    Query "cuMemGetAddressRange_v2" => |s| {
        let (mut base, mut bytes) = (0_u64, 0_usize);
        call!(cuMemGetAddressRange_v2(*mut u64 = &raw mut base, *mut usize = &raw mut bytes, u64 = s.memory.device))
    };
    Query "cuPointerGetAttribute" => |s| {
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        let mut kind = 0_u32;
        call!(cuPointerGetAttribute(Pointer = from_mut(&mut kind).cast(), c_int = 2, u64 = s.memory.device))
    };
    Query "cuMemHostGetDevicePointer_v2" => |s| {
        let mut at = 0_u64;
        call!(cuMemHostGetDevicePointer_v2(*mut u64 = &raw mut at, Pointer = s.memory.pinned as Pointer, c_uint = 0))
    };
    Query "cuMemGetAllocationGranularity" => |s| {
        let (mut bytes, properties) = (0_usize, s.properties(0));
        call!(cuMemGetAllocationGranularity(*mut usize = &raw mut bytes, *const Properties = &raw const properties, c_int = 0))
    };
    Query "cuDeviceGetAttribute" => |s| {
        let mut value = 0;
        call!(cuDeviceGetAttribute(*mut c_int = &raw mut value, c_int = 16, c_int = s.device))
    };
    Query "cuFuncGetAttribute" => |s| {
        let mut value = 0;
        call!(cuFuncGetAttribute(*mut c_int = &raw mut value, c_int = 0, Handle = s.kernels.spin))
    };
    Query "cuOccupancyMaxActiveBlocksPerMultiprocessor" => |s| {
        let mut value = 0;
        call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int = &raw mut value, Handle = s.kernels.spin, c_int = 256, usize = 0))
    };
    Query "cuStreamGetPriority" => |s| {
        let mut value = 0;
        call!(cuStreamGetPriority(Handle = s.busy, *mut c_int = &raw mut value))
    };

    Launch "cuEventRecord, busy" => |s| call!(cuEventRecord(Handle = s.spare as Handle, Handle = s.busy));
    Launch "cuStreamWaitEvent" [Scene::fresh_stream] => |s|
        call!(cuStreamWaitEvent(Handle = s.spare as Handle, Handle = s.event, c_uint = 0));
    Launch "cuLaunchKernel, busy" => |s| s.launch(s.busy);
    Launch "cuLaunchKernel, idle" [Scene::fresh_stream] => |s| s.launch(s.spare as Handle);
    Launch "cuLaunchKernel, default stream" => |s| s.launch(0);
    Launch "cuLaunchKernelEx" => |s| {
        let (ns, tag) = (0_u64, 0_u64);
        let mut arguments = [(&raw const ns) as Pointer, (&raw const tag) as Pointer];
        let config = LaunchConfig { sizes: [1, 1, 1, 1, 1, 1, 0], stream: s.busy, attributes: 0, count: 0 };
        call!(cuLaunchKernelEx(*const LaunchConfig = &raw const config, Handle = s.kernels.spin, *mut Pointer = arguments.as_mut_ptr(), Pointer = null_mut()))
    };
    Launch "cuLaunchCooperativeKernel" => |s| {
        let (ns, tag) = (0_u64, 0_u64);
        let mut arguments = [(&raw const ns) as Pointer, (&raw const tag) as Pointer];
        call!(cuLaunchCooperativeKernel(Handle = s.kernels.spin, c_uint = 1, c_uint = 1, c_uint = 1, c_uint = 1, c_uint = 1, c_uint = 1, c_uint = 0, Handle = s.busy, *mut Pointer = arguments.as_mut_ptr()))
    };
    Launch "cuLaunchHostFunc" => |s|
        call!(cuLaunchHostFunc(Handle = s.busy, extern "C" fn(Pointer) = host_function, Pointer = null_mut()));
    Launch "cuGraphLaunch, busy" => |s| call!(cuGraphLaunch(Handle = s.graph.exec, Handle = s.busy));
    Launch "cuGraphLaunch, idle" [Scene::fresh_stream] => |s| call!(cuGraphLaunch(Handle = s.graph.exec, Handle = s.spare as Handle));
    Launch "cuGraphUpload" [Scene::fresh_stream] => |s| call!(cuGraphUpload(Handle = s.graph.exec, Handle = s.spare as Handle));
    Launch "cuStreamWriteValue32_v2" => |s| call!(cuStreamWriteValue32_v2(Handle = s.busy, u64 = s.memory.device, u32 = 1, c_uint = 0));
    Launch "cuMemcpyHtoDAsync_v2, pinned" [Scene::fresh_stream] => |s|
        call!(cuMemcpyHtoDAsync_v2(u64 = s.memory.device, Pointer = s.memory.pinned as Pointer, usize = MIB, Handle = s.spare as Handle));
    Copy "cuMemcpyHtoDAsync_v2, pageable 4 KiB" [Scene::fresh_stream] => |s|
        call!(cuMemcpyHtoDAsync_v2(u64 = s.memory.device, Pointer = s.page(), usize = 4 * KIB, Handle = s.spare as Handle));
    Copy "cuMemcpyHtoDAsync_v2, pageable 1 MiB" [Scene::fresh_stream] => |s|
        call!(cuMemcpyHtoDAsync_v2(u64 = s.memory.device, Pointer = s.page(), usize = MIB, Handle = s.spare as Handle));
    Launch "cuMemcpyDtoHAsync_v2, pinned" [Scene::fresh_stream] => |s|
        call!(cuMemcpyDtoHAsync_v2(Pointer = s.memory.pinned as Pointer, u64 = s.memory.device, usize = MIB, Handle = s.spare as Handle));
    Copy "cuMemcpyDtoHAsync_v2, pageable" [Scene::fresh_stream] => |s|
        call!(cuMemcpyDtoHAsync_v2(Pointer = s.page(), u64 = s.memory.device, usize = MIB, Handle = s.spare as Handle));
    Launch "cuMemcpyDtoDAsync_v2" [Scene::fresh_stream] => |s|
        call!(cuMemcpyDtoDAsync_v2(u64 = s.memory.device, u64 = s.memory.device + 2 * MIB as u64, usize = MIB, Handle = s.spare as Handle));
    Launch "cuMemcpyAsync" [Scene::fresh_stream] => |s|
        call!(cuMemcpyAsync(u64 = s.memory.device, u64 = s.memory.device + 2 * MIB as u64, usize = MIB, Handle = s.spare as Handle));
    Launch "cuMemsetD8Async" [Scene::fresh_stream] => |s|
        call!(cuMemsetD8Async(u64 = s.memory.device, u8 = 0, usize = MIB, Handle = s.spare as Handle));
    Launch "cuMemsetD32Async" [Scene::fresh_stream] => |s|
        call!(cuMemsetD32Async(u64 = s.memory.device, c_uint = 0, usize = KIB, Handle = s.spare as Handle));
    Launch "cuMemsetD2D8Async" [Scene::fresh_stream] => |s|
        call!(cuMemsetD2D8Async(u64 = s.memory.device, usize = KIB, u8 = 0, usize = 64, usize = 8, Handle = s.spare as Handle));

    Copy "cuMemcpyHtoD_v2, pageable 4 KiB" => |s| call!(cuMemcpyHtoD_v2(u64 = s.memory.device, Pointer = s.page(), usize = 4 * KIB));
    Copy "cuMemcpyHtoD_v2, pageable 1 MiB" => |s| call!(cuMemcpyHtoD_v2(u64 = s.memory.device, Pointer = s.page(), usize = MIB));
    Copy "cuMemcpyHtoD_v2, pinned" => |s| call!(cuMemcpyHtoD_v2(u64 = s.memory.device, Pointer = s.memory.pinned as Pointer, usize = MIB));
    Copy "cuMemcpyDtoH_v2, pageable" => |s| call!(cuMemcpyDtoH_v2(Pointer = s.page(), u64 = s.memory.device, usize = MIB));
    Copy "cuMemcpyDtoH_v2, pinned" => |s| call!(cuMemcpyDtoH_v2(Pointer = s.memory.pinned as Pointer, u64 = s.memory.device, usize = MIB));
    Copy "cuMemcpyDtoD_v2" => |s| call!(cuMemcpyDtoD_v2(u64 = s.memory.device, u64 = s.memory.device + 2 * MIB as u64, usize = MIB));
    Copy "cuMemcpy" => |s| call!(cuMemcpy(u64 = s.memory.device, u64 = s.memory.device + 2 * MIB as u64, usize = MIB));
    Copy "cuMemsetD8_v2" => |s| call!(cuMemsetD8_v2(u64 = s.memory.device, u8 = 0, usize = MIB));
    Copy "cuMemsetD16_v2" => |s| call!(cuMemsetD16_v2(u64 = s.memory.device, u16 = 0, usize = KIB));
    Copy "cuMemsetD32_v2" => |s| call!(cuMemsetD32_v2(u64 = s.memory.device, c_uint = 0, usize = KIB));
    Copy "cuMemsetD2D8_v2" => |s| call!(cuMemsetD2D8_v2(u64 = s.memory.device, usize = KIB, u8 = 0, usize = 64, usize = 8));

    Memory "cuMemAlloc_v2, 4 KiB" => |s| call!(cuMemAlloc_v2(*mut u64 = &raw mut s.spare, usize = 4 * KIB));
    Memory "cuMemAlloc_v2, 64 MiB" => |s| call!(cuMemAlloc_v2(*mut u64 = &raw mut s.spare, usize = 64 * MIB));
    Memory "cuMemFree_v2" [Scene::fresh_memory] => |s| call!(cuMemFree_v2(u64 = s.spare));
    Memory "cuMemAllocPitch_v2" => |s|
        call!(cuMemAllocPitch_v2(*mut u64 = &raw mut s.spare, *mut u64 = &raw mut s.other, usize = 256, usize = 16, c_uint = 4));
    Memory "cuMemHostAlloc" => |s| call!(cuMemHostAlloc(*mut u64 = &raw mut s.spare, usize = MIB, c_uint = 3));
    Memory "cuMemAllocHost_v2" => |s| call!(cuMemAllocHost_v2(*mut u64 = &raw mut s.spare, usize = MIB));
    Memory "cuMemFreeHost" [Scene::fresh_host] => |s| call!(cuMemFreeHost(u64 = s.spare));
    Memory "cuMemHostRegister_v2" => |s| call!(cuMemHostRegister_v2(Pointer = s.aligned(), usize = MIB, c_uint = 0));
    Memory "cuMemHostUnregister" [Scene::registered] => |s| call!(cuMemHostUnregister(Pointer = s.aligned()));
    Memory "cuMemAllocAsync" => |s| call!(cuMemAllocAsync(*mut u64 = &raw mut s.spare, usize = MIB, Handle = s.busy));
    Memory "cuMemFreeAsync" [Scene::fresh_pooled] => |s| call!(cuMemFreeAsync(u64 = s.spare, Handle = s.busy));
    Memory "cuMemAllocFromPoolAsync" [Scene::fresh_stream] => |s|
        call!(cuMemAllocFromPoolAsync(*mut u64 = &raw mut s.other, usize = MIB, Handle = s.pool, Handle = s.spare as Handle));
    Memory "cuMemPoolCreate" => |s| {
        let properties = s.pool_properties();
        call!(cuMemPoolCreate(*mut u64 = &raw mut s.spare, *const PoolProperties = &raw const properties))
    };
    Memory "cuMemPoolTrimTo" => |s| call!(cuMemPoolTrimTo(Handle = s.pool, usize = 0));
    Memory "cuMemPoolDestroy" [Scene::fresh_pool] => |s| call!(cuMemPoolDestroy(Handle = s.spare as Handle));
    Memory "cuIpcGetMemHandle" [Scene::fresh_memory] => |s| {
        let mut handle = [0_u64; 8];
        call!(cuIpcGetMemHandle(Pointer = handle.as_mut_ptr().cast(), u64 = s.spare))
    };
    Memory "cuDeviceGraphMemTrim" => |s| call!(cuDeviceGraphMemTrim(c_int = s.device));

    Vmm "cuMemAddressReserve" => |s| call!(cuMemAddressReserve(*mut u64 = &raw mut s.spare, usize = 2 * MIB, usize = 0, u64 = 0, u64 = 0));
    Vmm "cuMemAddressFree" [Scene::fresh_address] => |s| call!(cuMemAddressFree(u64 = s.spare, usize = 2 * MIB));
    Vmm "cuMemCreate" => |s| {
        let properties = s.properties(0);
        call!(cuMemCreate(*mut u64 = &raw mut s.spare, usize = 2 * MIB, *const Properties = &raw const properties, u64 = 0))
    };
    Vmm "cuMemMap" [Scene::unmapped] => |s| call!(cuMemMap(u64 = s.mapping.at, usize = 2 * MIB, usize = 0, u64 = s.mapping.handle, u64 = 0));
    Vmm "cuMemSetAccess" [Scene::mapped] => |s| s.access(s.mapping.at);
    Vmm "cuMemUnmap" [Scene::mapped] => |s| call!(cuMemUnmap(u64 = s.mapping.at, usize = 2 * MIB));
    Vmm "cuMemRelease" [Scene::fresh_handle] => |s| call!(cuMemRelease(u64 = s.spare));
    Vmm "cuMemRetainAllocationHandle" [Scene::mapped] => |s|
        call!(cuMemRetainAllocationHandle(*mut u64 = &raw mut s.spare, u64 = s.mapping.at));
    Vmm "cuMemExportToShareableHandle" [Scene::exportable] => |s| {
        let mut fd: c_int = -1;
        call!(cuMemExportToShareableHandle(Pointer = from_mut(&mut fd).cast(), u64 = s.spare, c_int = DESCRIPTOR, u64 = 0))
    };

    Stream "cuStreamCreate" => |s| call!(cuStreamCreate(*mut u64 = &raw mut s.spare, c_uint = NON_BLOCKING));
    Stream "cuStreamCreateWithPriority" => |s| call!(cuStreamCreateWithPriority(*mut u64 = &raw mut s.spare, c_uint = NON_BLOCKING, c_int = -1));
    Stream "cuStreamDestroy_v2, idle" [Scene::fresh_stream] => |s| call!(cuStreamDestroy_v2(Handle = s.spare as Handle));
    Stream "cuStreamDestroy_v2, with work" [Scene::working_stream] => |s| call!(cuStreamDestroy_v2(Handle = s.spare as Handle));
    Stream "cuEventCreate" => |s| call!(cuEventCreate(*mut u64 = &raw mut s.spare, c_uint = NO_TIMING));
    Stream "cuEventDestroy_v2, happened" [Scene::fresh_event] => |s| call!(cuEventDestroy_v2(Handle = s.spare as Handle));
    Stream "cuEventDestroy_v2, pending" [Scene::pending_event] => |s| call!(cuEventDestroy_v2(Handle = s.spare as Handle));
    Stream "cuStreamBeginCapture_v2" [Scene::fresh_stream] => |s| call!(cuStreamBeginCapture_v2(Handle = s.spare as Handle, c_int = 2));
    Stream "cuStreamEndCapture" [Scene::capturing] => |s|
        call!(cuStreamEndCapture(Handle = s.spare as Handle, *mut u64 = &raw mut s.other));
    Stream "cuGraphCreate" => |s| call!(cuGraphCreate(*mut u64 = &raw mut s.spare, c_uint = 0));
    Stream "cuGraphInstantiateWithFlags" => |s| call!(cuGraphInstantiateWithFlags(*mut u64 = &raw mut s.spare, Handle = s.graph.empty, u64 = 0));
    Stream "cuGraphExecDestroy" [Scene::fresh_exec] => |s| call!(cuGraphExecDestroy(Handle = s.spare as Handle));
    Stream "cuGraphDestroy" [Scene::fresh_graph] => |s| call!(cuGraphDestroy(Handle = s.spare as Handle));

    Module "cuModuleLoadData" => |s| call!(cuModuleLoadData(*mut u64 = &raw mut s.spare, *const c_char = PTX.as_ptr()));
    Module "cuModuleLoadDataEx" => |s|
        call!(cuModuleLoadDataEx(*mut u64 = &raw mut s.spare, *const c_char = PTX.as_ptr(), c_uint = 0, Pointer = null_mut(), Pointer = null_mut()));
    Module "cuModuleGetFunction" => |s| call!(cuModuleGetFunction(*mut u64 = &raw mut s.spare, Handle = s.module, *const c_char = c"tg_count".as_ptr()));
    Module "cuModuleUnload" [Scene::fresh_module] => |s| call!(cuModuleUnload(Handle = s.spare as Handle));
    Module "cuLibraryLoadData" => |s|
        call!(cuLibraryLoadData(*mut u64 = &raw mut s.spare, *const c_char = PTX.as_ptr(), Pointer = null_mut(), Pointer = null_mut(), c_uint = 0, Pointer = null_mut(), Pointer = null_mut(), c_uint = 0));
    Module "cuLibraryUnload" [Scene::fresh_library] => |s| call!(cuLibraryUnload(Handle = s.spare as Handle));
    Module "cuFuncSetAttribute" => |s| call!(cuFuncSetAttribute(Handle = s.kernels.spin, c_int = 8, c_int = 0));
    Module "cuFuncLoad" => |s| call!(cuFuncLoad(Handle = s.kernels.sms));

    Context "cuCtxSetCurrent" => |s| call!(cuCtxSetCurrent(Handle = s.context));
    Context "cuCtxGetLimit" => |_| {
        let mut bytes = 0_usize;
        call!(cuCtxGetLimit(*mut usize = &raw mut bytes, c_int = STACK))
    };
    Context "cuCtxSetLimit, stack" => |_| call!(cuCtxSetLimit(c_int = STACK, usize = 16 * KIB));
    Context "cuCtxSetLimit, printf" => |_| call!(cuCtxSetLimit(c_int = PRINTF, usize = 4 * MIB));
    Context "cuCtxResetPersistingL2Cache" => |_| call!(cuCtxResetPersistingL2Cache());
    Context "cuDevicePrimaryCtxRetain" => |s| call!(cuDevicePrimaryCtxRetain(*mut u64 = &raw mut s.spare, c_int = s.device));
    Context "cuDevicePrimaryCtxRelease_v2, not the last" [Scene::retained] => |s|
        call!(cuDevicePrimaryCtxRelease_v2(c_int = s.device));
    Context "cuCtxCreate_v2" => |s| call!(cuCtxCreate_v2(*mut u64 = &raw mut s.spare, c_uint = 0, c_int = s.device));
    Context "cuCtxDestroy_v2, another" [Scene::fresh_context] => |s| call!(cuCtxDestroy_v2(Handle = s.spare as Handle));
}

impl Scene {
    /// Makes all that the rows need in the current context.
    ///
    /// # Errors
    /// The driver's, and so below.
    pub fn new(
        cuda: &Cuda,
        (device, context): (i32, Handle),
        kernels: Kernels,
        progress: u64,
    ) -> Result<Self> {
        let (busy, idle, recorder) = (cuda.stream()?, cuda.stream()?, cuda.stream()?);
        let past = [cuda.event(0)?, cuda.event(0)?];
        for event in past {
            cuda.record(event, idle)?;
        }
        cuda.wait_stream(idle)?;
        let empty = Launch {
            function: kernels.spin,
            blocks: 1,
            threads: 1,
            arguments: &[0, 0],
        };
        let mut scene = Self {
            device,
            context,
            kernels,
            progress,
            busy,
            idle,
            event: cuda.event(NO_TIMING)?,
            past,
            memory: Memory {
                device: cuda.alloc(BYTES as u64)?,
                pinned: cuda.alloc_host(BYTES as u64)?,
                pageable: vec![0; BYTES],
            },
            graph: Graph {
                empty: 0,
                exec: cuda.graph(recorder, || cuda.launch(recorder, empty))?,
            },
            pool: 0,
            module: cuda.module(PTX)?,
            mapping: Mapping {
                at: cuda.reserve(2 * MIB as u64)?,
                handle: cuda.create(device, 2 * MIB as u64)?,
            },
            spare: 0,
            other: 0,
        };
        // Where a driver has no graphs or pools, their rows say so.
        let _ = scene.fresh_graph();
        scene.graph.empty = scene.spare as Handle;
        let _ = scene.fresh_pool();
        scene.pool = scene.spare as Handle;
        Ok(scene)
    }

    /// Makes what the row uses up. Then work that takes `steps` steps goes onto the busy stream, and the event
    /// behind it.
    pub fn prepare(&mut self, cuda: &Cuda, row: &Row, steps: u64, step_ns: u64) -> Result {
        cuda.enter(self.context)?;
        self.spare = 0;
        // What rows like an event's record take.
        self.fresh_event()?;
        if let Some(ready) = row.ready {
            ready(self)?;
            cuda.enter(self.context)?;
        }
        let launch = Launch {
            function: self.kernels.steps,
            blocks: 1,
            threads: 256,
            arguments: &[self.progress, steps, step_ns],
        };
        cuda.launch(self.busy, launch)?;
        cuda.record(self.event, self.busy)
    }

    /// Makes the call; nanoseconds it took.
    pub fn make(&mut self, cuda: &Cuda, row: &Row) -> Result<u64> {
        let made = (row.call)(self);
        // Some rows change what is current, and the next one counts on it.
        cuda.enter(self.context)?;
        made
    }

    fn page(&mut self) -> Pointer {
        self.memory.pageable.as_mut_ptr().cast()
    }

    /// A whole page within the pageable memory.
    fn aligned(&mut self) -> Pointer {
        let at = self.memory.pageable.as_mut_ptr() as usize + 2 * MIB;
        ((at + 4095) & !4095) as Pointer
    }

    const fn properties(&self, handle_types: c_int) -> Properties {
        Properties {
            kind: 1,
            handle_types,
            location: [1, self.device],
            rest: [0; 2],
        }
    }

    const fn pool_properties(&self) -> PoolProperties {
        PoolProperties {
            kind: 1,
            handle_types: 0,
            location: [1, self.device],
            rest: [0; 9],
        }
    }

    fn launch(&self, stream: Handle) -> Result<u64> {
        let (ns, tag) = (0_u64, 0_u64);
        let mut arguments = [(&raw const ns) as Pointer, (&raw const tag) as Pointer];
        call!(cuLaunchKernel(
            Handle = self.kernels.spin,
            c_uint = 1, c_uint = 1, c_uint = 1,
            c_uint = 1, c_uint = 1, c_uint = 1,
            c_uint = 0,
            Handle = stream,
            *mut Pointer = arguments.as_mut_ptr(),
            *const Pointer = null()
        ))
    }

    fn access(&self, at: u64) -> Result<u64> {
        // CUmemAccessDesc: location, then reading and writing.
        let access: [c_int; 3] = [1, self.device, 3];
        call!(cuMemSetAccess(u64 = at, usize = 2 * MIB, *const c_int = access.as_ptr(), usize = 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_is_a_function_of_the_driver() {
        let known = include_str!("../../../tests/vgpu/cuda/symbols.txt");
        let known: Vec<&str> = known
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        for row in ROWS {
            assert!(known.contains(&row.symbol()), "{} is none", row.symbol());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        assert!(ROWS.len() >= 90, "{}", ROWS.len());
    }
}
