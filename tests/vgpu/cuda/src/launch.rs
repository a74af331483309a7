//! Launches: every signature becomes a [`Kernel`] and goes to its stream.

use std::ffi::{c_uint, c_void};

use tidegate_abi::cuda::{
    CUfunction, CUhostFn, CUlaunchConfig, CUresult, CUstream, CUstreamCallback,
};

use crate::capturing;
use crate::handle::Pinned;
use crate::objects::current::{self, DefaultStream};
use crate::objects::function::{self, Function};
use crate::objects::sms::Sms;
use crate::objects::work::{self, Host, Kernel, Work};
use crate::result::CudaResult;
use crate::submit;

/// Most threads in a block.
const MAX_THREADS: u64 = 1024;

/// Refuses a grid or block that the GPU cannot run.
pub fn check_dims(dims: &[u32; 6]) -> CudaResult {
    let threads = dims[3..].iter().map(|n| u64::from(*n)).product::<u64>();
    let grid_ok = dims[0] <= i32::MAX as u32 && dims[1] <= 65_535 && dims[2] <= 65_535;
    if dims.contains(&0) || !grid_ok || threads > MAX_THREADS || dims[5] > 64 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(())
}

/// A launch as data.
///
/// # Safety
/// `params` and `extra` are as [`Function::gather`] wants them.
pub unsafe fn kernel(
    sms: Sms,
    function: &'static Pinned<Function>,
    dims: [u32; 6],
    shared: u32,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult<Kernel> {
    check_dims(&dims)?;
    // SAFETY: this function's own contract.
    let (params, words) = unsafe { function.gather(params, extra)? };
    Ok(Kernel {
        function,
        dims,
        shared,
        params,
        words,
        sms,
    })
}

/// `cuLaunchKernel`.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn launch(
    default: DefaultStream,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    let dims = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
    let (sms, function) = (stream.context.sms, function::named(function)?);
    // SAFETY: parameters of the application, by the API's contract.
    let kernel = unsafe { kernel(sms, function, dims, shared, params, extra)? };
    submit::enqueue_kernel(stream, &kernel)
}

/// `cuLaunchKernelEx`. Attributes (clusters, priorities, ...) have nothing to act on here.
pub fn launch_ex(
    default: DefaultStream,
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult {
    if config.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    let c = unsafe { config.read_unaligned() };
    launch(
        default,
        function,
        c.grid_dim_x,
        c.grid_dim_y,
        c.grid_dim_z,
        c.block_dim_x,
        c.block_dim_y,
        c.block_dim_z,
        c.shared_mem_bytes,
        c.stream,
        params,
        extra,
    )
}

/// `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn cooperative(
    default: DefaultStream,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
) -> CudaResult {
    launch(
        default,
        function,
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z,
        shared,
        stream,
        params,
        std::ptr::null_mut(),
    )
}

/// `cuLaunchHostFunc`.
pub fn host_function(
    default: DefaultStream,
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    submit::enqueue(stream, Work::Host(work::host(function, data)?)).map(|_| ())
}

/// `CU_HOST_TASK_SPINWAIT`, the highest of the ways in which the driver's thread waits for host functions.
const SPIN_WAIT: c_uint = 1;

/// `cuLaunchHostFunc_v2`: no thread waits in another way here.
pub fn host_function_v2(
    default: DefaultStream,
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
    mode: c_uint,
) -> CudaResult {
    if mode > SPIN_WAIT {
        return Err(CUresult::INVALID_VALUE);
    }
    host_function(default, stream, function, data)
}

struct Callback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: CUstream,
    data: *mut c_void,
}

unsafe extern "C" fn call_back(at: *mut c_void) {
    // SAFETY: `at` is the box that `stream_callback` leaked for this one call.
    let callback = unsafe { Box::from_raw(at.cast::<Callback>()) };
    // SAFETY: the application promised that this call is valid on a driver thread.
    unsafe { (callback.function)(callback.stream, CUresult::SUCCESS, callback.data) };
}

/// `cuStreamAddCallback`.
pub fn stream_callback(
    default: DefaultStream,
    handle: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    _flags: c_uint,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(handle, default)? };
    let function = function.ok_or(CUresult::INVALID_VALUE)?;
    if capturing::is_capturing(stream) {
        capturing::ask_stream(stream)?;
    }
    let boxed = Box::new(Callback {
        function,
        stream: handle,
        data,
    });
    let host = Host {
        function: call_back,
        data: Box::into_raw(boxed).cast(),
    };
    submit::enqueue(stream, Work::Host(host)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_without_threads_or_with_too_many_is_refused() {
        assert!(check_dims(&[1, 1, 1, 1024, 1, 1]).is_ok());
        assert!(check_dims(&[1, 1, 1, 0, 1, 1]).is_err());
        assert!(check_dims(&[1, 1, 1, 1024, 2, 1]).is_err());
        assert!(check_dims(&[1, 65_536, 1, 1, 1, 1]).is_err());
    }
}
