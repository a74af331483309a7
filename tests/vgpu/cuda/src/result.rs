//! Results: the codes this library returns, their names, and the log of what did not succeed.
//!
//! `TIDEGATE_VGPU_LOG=1` writes each failed or unimplemented call to standard error.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use tidegate_abi::cuda::CUresult;

/// What every function of this library returns: the error is the code the caller gets.
pub type CudaResult<T = ()> = Result<T, CUresult>;

/// Codes that `tidegate_abi::cuda` does not name.
pub mod code {
    use super::CUresult;

    pub const NO_BINARY_FOR_GPU: CUresult = CUresult(209);
    pub const UNSUPPORTED_LIMIT: CUresult = CUresult(215);
    pub const FILE_NOT_FOUND: CUresult = CUresult(301);
    pub const HOST_MEMORY_ALREADY_REGISTERED: CUresult = CUresult(712);
    pub const HOST_MEMORY_NOT_REGISTERED: CUresult = CUresult(713);
    pub const INVALID_RESOURCE_CONFIGURATION: CUresult = CUresult(915);
    pub const GRAPH_EXEC_UPDATE_FAILURE: CUresult = CUresult(910);
}

/// Whether `TIDEGATE_VGPU_LOG` asks for the log.
fn logging() -> bool {
    static LOGGING: OnceLock<bool> = OnceLock::new();
    *LOGGING.get_or_init(|| std::env::var_os("TIDEGATE_VGPU_LOG").is_some_and(|v| v != "0"))
}

/// Writes one line to standard error when the log is on.
pub fn log(line: &std::fmt::Arguments<'_>) {
    if logging() {
        eprintln!("[vgpu cuda {}] {line}", std::process::id());
    }
}

/// The code an exported function returns for `result`, after logging a failure.
#[inline]
pub fn code_of(name: &str, result: CudaResult) -> CUresult {
    match result {
        Ok(()) => CUresult::SUCCESS,
        Err(error) => failed(name, error),
    }
}

#[cold]
fn failed(name: &str, error: CUresult) -> CUresult {
    // A query that finds work unfinished is an answer, not a failure.
    if error != CUresult::NOT_READY {
        let text = find(error).map_or("?", |row| row.1.to_str().unwrap_or("?"));
        log(&format_args!("{name} -> {} {text}", error.0));
    }
    error
}

/// Stores `value` where `at` points.
///
/// # Safety
/// `at` is null or points to a place the caller of the API gave for a `T`.
pub unsafe fn store<T>(at: *mut T, value: T) -> CudaResult {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest. Unaligned, because C callers may be.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Stores `value` where `at` points, if anywhere.
///
/// # Safety
/// As for [`store`].
pub unsafe fn store_optional<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { at.write_unaligned(value) };
    }
}

/// `cuGetErrorName`.
pub fn error_name(error: CUresult, out: *mut *const c_char) -> CudaResult {
    answer(error, out, |row| row.1)
}

/// `cuGetErrorString`.
pub fn error_string(error: CUresult, out: *mut *const c_char) -> CudaResult {
    answer(error, out, |row| row.2)
}

fn answer(
    error: CUresult,
    out: *mut *const c_char,
    text: impl Fn(&Row) -> &'static CStr,
) -> CudaResult {
    let row = find(error);
    let pointer = row.map_or(std::ptr::null(), |row| text(row).as_ptr());
    // SAFETY: `out` is the caller's place for a pointer.
    unsafe { store(out, pointer)? };
    row.map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

fn find(error: CUresult) -> Option<&'static Row> {
    ERRORS.iter().find(|row| row.0 == error.0)
}

type Row = (i32, &'static CStr, &'static CStr);

/// Code, name, and a sentence.
static ERRORS: &[Row] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (5, c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled"),
    (
        6,
        c"CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        c"profiler not initialized",
    ),
    (
        7,
        c"CUDA_ERROR_PROFILER_ALREADY_STARTED",
        c"profiler already started",
    ),
    (
        8,
        c"CUDA_ERROR_PROFILER_ALREADY_STOPPED",
        c"profiler already stopped",
    ),
    (34, c"CUDA_ERROR_STUB_LIBRARY", c"stub library"),
    (
        36,
        c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        c"call requires newer driver",
    ),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"device unavailable"),
    (
        100,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        102,
        c"CUDA_ERROR_DEVICE_NOT_LICENSED",
        c"device not licensed",
    ),
    (
        200,
        c"CUDA_ERROR_INVALID_IMAGE",
        c"device kernel image is invalid",
    ),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        202,
        c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
        c"context already current",
    ),
    (205, c"CUDA_ERROR_MAP_FAILED", c"map failed"),
    (206, c"CUDA_ERROR_UNMAP_FAILED", c"unmap failed"),
    (207, c"CUDA_ERROR_ARRAY_IS_MAPPED", c"array is mapped"),
    (208, c"CUDA_ERROR_ALREADY_MAPPED", c"already mapped"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no binary for gpu"),
    (210, c"CUDA_ERROR_ALREADY_ACQUIRED", c"already acquired"),
    (211, c"CUDA_ERROR_NOT_MAPPED", c"not mapped"),
    (
        212,
        c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY",
        c"not mapped as array",
    ),
    (
        213,
        c"CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        c"not mapped as pointer",
    ),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"ecc uncorrectable"),
    (215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"unsupported limit"),
    (
        216,
        c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"context already in use",
    ),
    (
        217,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access unsupported",
    ),
    (218, c"CUDA_ERROR_INVALID_PTX", c"invalid ptx"),
    (
        219,
        c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        c"invalid graphics context",
    ),
    (
        220,
        c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"nvlink uncorrectable",
    ),
    (
        221,
        c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        c"jit compiler not found",
    ),
    (
        222,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"unsupported ptx version",
    ),
    (
        223,
        c"CUDA_ERROR_JIT_COMPILATION_DISABLED",
        c"jit compilation disabled",
    ),
    (
        224,
        c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        c"unsupported exec affinity",
    ),
    (
        225,
        c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        c"unsupported devside sync",
    ),
    (226, c"CUDA_ERROR_CONTAINED", c"contained"),
    (300, c"CUDA_ERROR_INVALID_SOURCE", c"invalid source"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (
        302,
        c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        c"shared object symbol not found",
    ),
    (
        303,
        c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        c"shared object init failed",
    ),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"operating system"),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"illegal state"),
    (402, c"CUDA_ERROR_LOSSY_QUERY", c"lossy query"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (
        701,
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"launch out of resources",
    ),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"launch timeout"),
    (
        703,
        c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        c"launch incompatible texturing",
    ),
    (
        704,
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access already enabled",
    ),
    (
        705,
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access not enabled",
    ),
    (
        708,
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"primary context active",
    ),
    (
        709,
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"context is destroyed",
    ),
    (710, c"CUDA_ERROR_ASSERT", c"assert"),
    (711, c"CUDA_ERROR_TOO_MANY_PEERS", c"too many peers"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"host memory already registered",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"host memory not registered",
    ),
    (
        714,
        c"CUDA_ERROR_HARDWARE_STACK_ERROR",
        c"hardware stack error",
    ),
    (
        715,
        c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"illegal instruction",
    ),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (
        717,
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"invalid address space",
    ),
    (718, c"CUDA_ERROR_INVALID_PC", c"invalid pc"),
    (
        719,
        c"CUDA_ERROR_LAUNCH_FAILED",
        c"unspecified launch failure",
    ),
    (
        720,
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"cooperative launch too large",
    ),
    (721, c"CUDA_ERROR_TENSOR_MEMORY_LEAK", c"tensor memory leak"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not ready"),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system driver mismatch",
    ),
    (
        804,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"compat not supported on device",
    ),
    (
        805,
        c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        c"mps connection failed",
    ),
    (806, c"CUDA_ERROR_MPS_RPC_FAILURE", c"mps rpc failure"),
    (
        807,
        c"CUDA_ERROR_MPS_SERVER_NOT_READY",
        c"mps server not ready",
    ),
    (
        808,
        c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        c"mps max clients reached",
    ),
    (
        809,
        c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        c"mps max connections reached",
    ),
    (
        810,
        c"CUDA_ERROR_MPS_CLIENT_TERMINATED",
        c"mps client terminated",
    ),
    (811, c"CUDA_ERROR_CDP_NOT_SUPPORTED", c"cdp not supported"),
    (
        812,
        c"CUDA_ERROR_CDP_VERSION_MISMATCH",
        c"cdp version mismatch",
    ),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        902,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        903,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"capture was not ended in the same stream as it began",
    ),
    (
        904,
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"capturing stream has unjoined work",
    ),
    (
        905,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        906,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        908,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (909, c"CUDA_ERROR_TIMEOUT", c"timeout"),
    (
        910,
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"graph exec update failure",
    ),
    (911, c"CUDA_ERROR_EXTERNAL_DEVICE", c"external device"),
    (
        912,
        c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
        c"invalid cluster size",
    ),
    (
        913,
        c"CUDA_ERROR_FUNCTION_NOT_LOADED",
        c"function not loaded",
    ),
    (
        914,
        c"CUDA_ERROR_INVALID_RESOURCE_TYPE",
        c"invalid resource type",
    ),
    (
        915,
        c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        c"invalid resource configuration",
    ),
    (916, c"CUDA_ERROR_KEY_ROTATION", c"key rotation"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];
