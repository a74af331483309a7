//! CUDA's driver API as the self-test and the probes use it, found at run time.
//!
//! Nothing here links to `libcuda.so.1`: the program starts on any machine and says in plain words
//! that there is no driver. The raw functions are private; what is public passes live memory only,
//! so all that can go wrong is an error code or a fault on the device.
//!
//! Only a process that exists for it loads the library: the agent never does, since a driver library in its
//! process would be a second user of the files and locks it measures, and could take it down.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::cuda::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgreenCtx,
    CUmodule, CUresult, CUstream,
};

/// What a driver call said instead of success.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("libcuda.so.1 does not load: {0}")]
    Library(String),
    /// A driver without one of the functions.
    #[error("this libcuda.so.1 has no {0}")]
    Symbol(&'static str),
    /// An error code.
    #[error("{call}: CUDA error {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// `CUresult`.
        code: c_int,
    },
}

type Result<T = ()> = std::result::Result<T, CudaError>;

/// `CUmemLocation`, `CUmemAllocationProp` and `CUmemAccessDesc` of pinned memory of one device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    device: c_int,
}

#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}
const _: () = assert!(size_of::<Properties>() == 32);

#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}
const _: () = assert!(size_of::<Access>() == 12);

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: c_int = 1;
const DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_MAPPED: c_uint = 3;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: c_int = 16;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// The driver's library, which stays loaded from then on.
fn library() -> Result<*mut c_void> {
    // SAFETY: a constant C string; the library's constructors are the driver's own.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: dlerror returns a C string of this thread, or null.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(CudaError::Library(text.unwrap_or_default()))
}

fn found(library: *mut c_void, name: &'static str) -> Result<*mut c_void> {
    let text = CString::new(name).map_err(|_| CudaError::Symbol(name))?;
    // SAFETY: a library that stays loaded, and a C string.
    let at = unsafe { libc::dlsym(library, text.as_ptr()) };
    if at.is_null() {
        Err(CudaError::Symbol(name))
    } else {
        Ok(at)
    }
}

/// The driver's function of this name, for who knows its signature.
///
/// # Errors
/// When there is no driver, or it has no such function.
pub fn symbol(name: &'static str) -> Result<*mut c_void> {
    found(library()?, name)
}

macro_rules! driver {
    ($(#[$doc:meta])* $table:ident: $($name:ident ( $($ty:ty),* $(,)? );)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table {
            $($name: unsafe extern "C" fn($($ty),*) -> CUresult,)*
        }

        impl $table {
            /// Loads the driver's library.
            ///
            /// # Errors
            /// When it or one of its functions is not there.
            pub fn load() -> Result<Self> {
                let library = library()?;
                Ok(Self {
                    $($name: {
                        let at = found(library, stringify!($name))?;
                        // SAFETY: the driver's function of this name has this signature in cuda.h.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> CUresult>(at) }
                    },)*
                })
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}

driver! {
    /// The driver's functions.
    Cuda:
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
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
    cuMemCreate(*mut u64, usize, *const Properties, u64);
    cuMemRelease(u64);
    cuMemMap(CUdeviceptr, usize, usize, u64, u64);
    cuMemSetAccess(CUdeviceptr, usize, *const Access, usize);
    cuMemUnmap(CUdeviceptr, usize);
    cuStreamBeginCapture_v2(CUstream, c_int);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
    cuGraphLaunch(CUgraphExec, CUstream);
}

driver! {
    /// The driver's functions for green contexts, since CUDA 12.5.
    Green:
    cuDeviceGetDevResource(CUdevice, *mut Resource, c_int);
    cuDevSmResourceSplitByCount(*mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
    cuDevResourceGenerateDesc(*mut *mut c_void, *mut Resource, c_uint);
    cuGreenCtxCreate(*mut CUgreenCtx, *mut c_void, CUdevice, c_uint);
    cuGreenCtxStreamCreate(*mut CUstream, CUgreenCtx, c_uint, c_int);
}

/// `CUdevResource`: its type, the driver's own bytes, and, of type SM, the number of multiprocessors.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_int,
    own: [c_int; 23],
    count: c_uint,
    rest: [c_int; 11],
}
const _: () = assert!(size_of::<Resource>() == 144);

/// `CU_DEV_RESOURCE_TYPE_SM` and `CU_GREEN_CTX_DEFAULT_STREAM`.
const SM: c_int = 1;
const DEFAULT_STREAM: c_uint = 1;

/// One call, its result as an error with the function's name.
macro_rules! call {
    ($cuda:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: every pointer passed from this file is to memory that lives through the call (or is
        // null where the function takes null), handles are the driver's own, and device addresses
        // are dereferenced by the device only.
        let result = unsafe { ($cuda.$name)($($argument),*) };
        if result.is_ok() {
            Ok(())
        } else {
            Err(CudaError::Call { call: stringify!($name), code: result.0 })
        }
    }};
}

/// A handle of the driver, as a number: handles may be used from any thread.
pub type Handle = usize;

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

/// A counter in pinned host memory, which kernels add to. It is never freed.
#[derive(Clone, Copy, Debug)]
pub struct Counter(u64);

impl Counter {
    /// Its address, for the device too.
    #[must_use]
    pub const fn at(self) -> u64 {
        self.0
    }

    /// As far as it has come.
    #[must_use]
    pub fn value(self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `Cuda::counter` allocated a page of host memory for it, which is never freed; the device
        // writes it meanwhile, hence the atomic.
        unsafe { AtomicU64::from_ptr(self.0 as *mut u64) }
    }
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

    /// Free and total bytes of the device.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Device memory.
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        let mut at = 0;
        call!(self, cuMemAlloc_v2(&raw mut at, bytes as usize))?;
        Ok(at)
    }

    /// Frees device memory.
    pub fn free(&self, at: u64) -> Result {
        call!(self, cuMemFree_v2(at))
    }

    /// Pinned host memory that the device sees at the same address.
    pub fn alloc_host(&self, bytes: u64) -> Result<u64> {
        let mut at = null_mut();
        call!(
            self,
            cuMemHostAlloc(&raw mut at, bytes as usize, HOST_MAPPED)
        )?;
        Ok(at as u64)
    }

    /// A counter at zero.
    pub fn counter(&self) -> Result<Counter> {
        let counter = Counter(self.alloc_host(4096)?);
        counter.word().store(0, Ordering::Release);
        Ok(counter)
    }

    /// Frees pinned host memory that [`Self::alloc_host`] returned and nobody looks at any more.
    pub fn free_host(&self, at: u64) -> Result {
        call!(self, cuMemFreeHost(at as *mut c_void))
    }

    /// Copies from the device and waits for it.
    pub fn copy_to_host(&self, to: &mut [u8], at: u64) -> Result {
        call!(self, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), at, to.len()))
    }

    /// Fills device memory.
    pub fn fill(&self, at: u64, byte: u8, bytes: u64) -> Result {
        call!(self, cuMemsetD8_v2(at, byte, bytes as usize))
    }

    /// Addresses.
    pub fn reserve(&self, bytes: u64) -> Result<u64> {
        let mut at = 0;
        call!(
            self,
            cuMemAddressReserve(&raw mut at, bytes as usize, 0, 0, 0)
        )?;
        Ok(at)
    }

    /// Gives addresses back.
    pub fn unreserve(&self, at: u64, bytes: u64) -> Result {
        call!(self, cuMemAddressFree(at, bytes as usize))
    }

    /// A handle of physical memory.
    pub fn create(&self, device: CUdevice, bytes: u64) -> Result<u64> {
        let properties = Properties {
            kind: PINNED,
            handle_types: 0,
            location: Location {
                kind: DEVICE,
                device,
            },
            win32: null_mut(),
            flags: [0; 8],
        };
        let mut handle = 0;
        call!(
            self,
            cuMemCreate(&raw mut handle, bytes as usize, &raw const properties, 0)
        )?;
        Ok(handle)
    }

    /// Gives a handle back.
    pub fn release(&self, handle: u64) -> Result {
        call!(self, cuMemRelease(handle))
    }

    /// Maps a handle.
    pub fn map(&self, at: u64, bytes: u64, handle: u64) -> Result {
        call!(self, cuMemMap(at, bytes as usize, 0, handle, 0))
    }

    /// Gives the device access to a mapped range.
    pub fn access(&self, device: CUdevice, at: u64, bytes: u64) -> Result {
        let access = Access {
            location: Location {
                kind: DEVICE,
                device,
            },
            flags: READ_WRITE,
        };
        call!(
            self,
            cuMemSetAccess(at, bytes as usize, &raw const access, 1)
        )
    }

    /// Unmaps.
    pub fn unmap(&self, at: u64, bytes: u64) -> Result {
        call!(self, cuMemUnmap(at, bytes as usize))
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

impl Green {
    /// Multiprocessors (SMs) of a device.
    ///
    /// # Errors
    /// The driver's; so below.
    pub fn multiprocessors(&self, device: CUdevice) -> Result<u32> {
        Ok(self.all(device)?.count)
    }

    fn all(&self, device: CUdevice) -> Result<Resource> {
        let mut all = Resource::NONE;
        call!(self, cuDeviceGetDevResource(device, &raw mut all, SM))?;
        Ok(all)
    }

    /// A stream of a new green context of at least `least` multiprocessors, and how many it has.
    pub fn stream(&self, device: CUdevice, least: u32) -> Result<(Handle, u32)> {
        let all = self.all(device)?;
        let (mut part, mut rest, mut groups) = (Resource::NONE, Resource::NONE, 1);
        call!(
            self,
            cuDevSmResourceSplitByCount(
                &raw mut part,
                &raw mut groups,
                &raw const all,
                &raw mut rest,
                0,
                least
            )
        )?;
        let (mut description, mut green, mut stream) = (null_mut(), null_mut(), null_mut());
        call!(
            self,
            cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1)
        )?;
        call!(
            self,
            cuGreenCtxCreate(&raw mut green, description, device, DEFAULT_STREAM)
        )?;
        call!(
            self,
            cuGreenCtxStreamCreate(&raw mut stream, green, NON_BLOCKING, 0)
        )?;
        Ok((stream as Handle, part.count))
    }
}

impl Resource {
    const NONE: Self = Self {
        kind: 0,
        own: [0; 23],
        count: 0,
        rest: [0; 11],
    };
}

fn ready(result: Result) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(CudaError::Call { code, .. }) if code == CUresult::NOT_READY.0 => Ok(false),
        Err(error) => Err(error),
    }
}
