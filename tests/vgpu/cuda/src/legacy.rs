//! The launch interface of CUDA 2 and 3: a function carries its block shape and parameters.

use std::ffi::{c_uint, c_void};

use tidegate_abi::cuda::{CUfunction, CUresult, CUstream, CudaLaunchParams};
use tidegate_vgpu::ring::ARGS;

use crate::launch;
use crate::objects::current::{self, DefaultStream};
use crate::objects::function::{self, Prepared};
use crate::objects::work::Kernel;
use crate::result::CudaResult;
use crate::submit;

fn prepare(function: CUfunction, f: impl FnOnce(&mut Prepared)) -> CudaResult {
    f(&mut function::named(function)?.prepared());
    Ok(())
}

/// `cuFuncSetBlockShape`.
pub fn block_shape(function: CUfunction, x: i32, y: i32, z: i32) -> CudaResult {
    let sizes = [x, y, z];
    if sizes.iter().any(|size| *size <= 0) {
        return Err(CUresult::INVALID_VALUE);
    }
    prepare(function, |p| p.block = sizes.map(i32::cast_unsigned))
}

/// `cuFuncSetSharedSize`.
pub fn shared_size(function: CUfunction, bytes: c_uint) -> CudaResult {
    prepare(function, |p| p.shared = bytes)
}

/// `cuParamSetSize`.
pub fn param_size(function: CUfunction, bytes: c_uint) -> CudaResult {
    prepare(function, |p| p.bytes = bytes as usize)
}

fn put(function: CUfunction, offset: i32, bytes: &[u8]) -> CudaResult {
    let offset = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
    prepare(function, |p| {
        // What does not fit is no parameter the device reads.
        if let Some(place) = p.params.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    })
}

/// `cuParamSeti`.
pub fn param_int(function: CUfunction, offset: i32, value: c_uint) -> CudaResult {
    put(function, offset, &value.to_ne_bytes())
}

/// `cuParamSetf`.
pub fn param_float(function: CUfunction, offset: i32, value: f32) -> CudaResult {
    put(function, offset, &value.to_ne_bytes())
}

/// `cuParamSetv`.
pub fn param_bytes(
    function: CUfunction,
    offset: i32,
    at: *const c_void,
    bytes: c_uint,
) -> CudaResult {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's parameter has `bytes` bytes.
    put(function, offset, unsafe {
        std::slice::from_raw_parts(at.cast(), bytes as usize)
    })
}

/// `cuLaunchGridAsync`.
pub fn launch_grid_async(
    function: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, DefaultStream::Legacy)? };
    let function = function::named(function)?;
    let prepared = *function.prepared();
    let [x, y, z] = prepared.block;
    let grid = |size| u32::try_from(size).map_err(|_| CUresult::INVALID_VALUE);
    let dims = [grid(width)?, grid(height)?, 1, x, y, z];
    launch::check_dims(&dims)?;
    let mut params = [0; ARGS];
    for (word, bytes) in params.iter_mut().zip(prepared.params.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    let kernel = Kernel {
        function,
        dims,
        shared: prepared.shared,
        params,
        words: prepared.bytes.min(ARGS * 8).div_ceil(8) as u32,
        sms: stream.context.sms,
    };
    submit::enqueue_kernel(stream, &kernel)
}

/// `cuLaunchGrid`.
pub fn launch_grid(function: CUfunction, width: i32, height: i32) -> CudaResult {
    launch_grid_async(function, width, height, std::ptr::null_mut())
}

/// `cuLaunch`.
pub fn launch(function: CUfunction) -> CudaResult {
    launch_grid(function, 1, 1)
}

/// `cuLaunchCooperativeKernelMultiDevice`.
pub fn cooperative_multi(list: *mut CudaLaunchParams, count: c_uint, _flags: c_uint) -> CudaResult {
    if list.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for i in 0..count as usize {
        // SAFETY: the application's array has `count` entries and is not null.
        let p = unsafe { list.add(i).read_unaligned() };
        launch::cooperative(
            DefaultStream::Legacy,
            p.function,
            p.grid_dim_x,
            p.grid_dim_y,
            p.grid_dim_z,
            p.block_dim_x,
            p.block_dim_y,
            p.block_dim_z,
            p.shared_mem_bytes,
            p.stream,
            p.kernel_params,
        )?;
    }
    Ok(())
}
