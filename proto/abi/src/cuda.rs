//! The CUDA driver API's types that cross a hook.
//!
//! Results and enums that come from a driver are plain integers here. A driver newer than this file may return a value
//! that no Rust `enum` of ours lists. That would be undefined behaviour before any code could look at it.
#![allow(non_camel_case_types, missing_docs)]

use core::ffi::{c_int, c_uint, c_void};

/// A driver result code. `0` is success; the names follow `cuda.h`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUresult(pub c_int);

impl CUresult {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const DEINITIALIZED: Self = Self(4);
    pub const NO_DEVICE: Self = Self(100);
    pub const INVALID_DEVICE: Self = Self(101);
    pub const INVALID_IMAGE: Self = Self(200);
    pub const INVALID_CONTEXT: Self = Self(201);
    pub const MAP_FAILED: Self = Self(205);
    pub const INVALID_PTX: Self = Self(218);
    pub const OPERATING_SYSTEM: Self = Self(304);
    pub const INVALID_HANDLE: Self = Self(400);
    pub const ILLEGAL_STATE: Self = Self(401);
    pub const NOT_FOUND: Self = Self(500);
    pub const NOT_READY: Self = Self(600);
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    pub const PRIMARY_CONTEXT_ACTIVE: Self = Self(708);
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub const LAUNCH_FAILED: Self = Self(719);
    pub const NOT_PERMITTED: Self = Self(800);
    pub const NOT_SUPPORTED: Self = Self(801);
    pub const SYSTEM_NOT_READY: Self = Self(802);
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    pub const STREAM_CAPTURE_MERGE: Self = Self(902);
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    pub const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    pub const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    pub const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    pub const CAPTURED_EVENT: Self = Self(907);
    pub const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);
    pub const UNKNOWN: Self = Self(999);

    /// Whether the call succeeded.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUcontext = *mut c_void;
pub type CUmodule = *mut c_void;
pub type CUlibrary = *mut c_void;
pub type CUkernel = *mut c_void;
pub type CUfunction = *mut c_void;
pub type CUstream = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUgraph = *mut c_void;
pub type CUgraphNode = *mut c_void;
pub type CUgraphExec = *mut c_void;
pub type CUgreenCtx = *mut c_void;
pub type CUmemoryPool = *mut c_void;
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;

/// `CU_STREAM_LEGACY`: the default stream that synchronises with all others of its context.
pub const CU_STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: the calling thread's own default stream.
pub const CU_STREAM_PER_THREAD: usize = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`, a flag of `cuGetProcAddress`.
pub const GPA_PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, a flag of `cuGetProcAddress`.
pub const GPA_LEGACY_STREAM: u64 = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub const CAPTURE_NONE: c_int = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub const CAPTURE_ACTIVE: c_int = 1;

/// `CUuuid`: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

/// `CUlaunchConfig` of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub stream: CUstream,
    pub attrs: *mut c_void,
    pub num_attrs: c_uint,
}
const _: () = assert!(core::mem::size_of::<CUlaunchConfig>() == 56);
const _: () = assert!(core::mem::offset_of!(CUlaunchConfig, stream) == 32);

/// `CUDA_LAUNCH_PARAMS_v1` of `cuLaunchCooperativeKernelMultiDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CudaLaunchParams {
    pub function: CUfunction,
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub stream: CUstream,
    pub kernel_params: *mut *mut c_void,
}
const _: () = assert!(core::mem::size_of::<CudaLaunchParams>() == 56);
