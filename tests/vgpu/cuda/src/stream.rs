//! The calls on streams.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use tidegate_abi::cuda::{CU_STREAM_PER_THREAD, CUresult, CUstream};

use crate::capturing;
use crate::locks;
use crate::objects::context::{NON_BLOCKING, PRIORITIES, Stream};
use crate::objects::current::{self, DefaultStream, named_stream};
use crate::result::{CudaResult, store};

/// `cuStreamCreateWithPriority`.
pub fn create_with_priority(out: *mut CUstream, flags: u32, priority: i32) -> CudaResult {
    let context = current::context()?;
    if out.is_null() || flags & !NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (greatest, least) = (PRIORITIES.0, PRIORITIES.1);
    let stream = Stream::new(context, flags, priority.clamp(greatest, least), false);
    // SAFETY: `out` is the caller's place for a stream.
    unsafe { store(out, stream.handle()) }
}

/// `cuStreamCreate`.
pub fn create(out: *mut CUstream, flags: u32) -> CudaResult {
    create_with_priority(out, flags, 0)
}

/// `cuStreamDestroy`: returns at once; what was given to the stream still runs.
pub fn destroy(handle: CUstream) -> CudaResult {
    if handle.addr() <= CU_STREAM_PER_THREAD {
        return Err(CUresult::INVALID_HANDLE);
    }
    let stream = named_stream(handle, DefaultStream::Legacy)?;
    let _held = locks::waiting_call(stream.context.gpu, || stream.synchronize())?;
    capturing::destroy_stream(stream);
    stream.context.forget(stream);
    Ok(())
}

/// `cuStreamSynchronize`.
pub fn synchronize(default: DefaultStream, handle: CUstream) -> CudaResult {
    let stream = named_stream(handle, default)?;
    capturing::ask_stream(stream)?;
    let _held = locks::sync(stream.context.gpu);
    stream.synchronize()
}

/// `cuStreamQuery`.
pub fn query(default: DefaultStream, handle: CUstream) -> CudaResult {
    let stream = named_stream(handle, default)?;
    capturing::ask_stream(stream)?;
    stream.query()
}

/// `cuStreamGetPriority`.
pub fn priority(default: DefaultStream, handle: CUstream, out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named_stream(handle, default)?.priority) }
}

/// `cuStreamGetFlags`.
pub fn flags(default: DefaultStream, handle: CUstream, out: *mut u32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named_stream(handle, default)?.flags) }
}

/// `cuStreamGetId`.
pub fn id(default: DefaultStream, handle: CUstream, out: *mut u64) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named_stream(handle, default)?.id) }
}

/// `cuStreamGetCtx`: fails for a stream of a green context.
pub fn get_context(default: DefaultStream, handle: CUstream, out: *mut *mut c_void) -> CudaResult {
    let context = named_stream(handle, default)?.context;
    if !context.green.load(Ordering::Acquire).is_null() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuStreamGetCtx_v2`: the context, or the green context, of a stream.
pub fn get_context_v2(
    default: DefaultStream,
    handle: CUstream,
    out: *mut *mut c_void,
    green: *mut *mut c_void,
) -> CudaResult {
    let context = named_stream(handle, default)?.context;
    let of = context.green.load(Ordering::Acquire);
    let plain = if of.is_null() {
        context.handle()
    } else {
        std::ptr::null_mut()
    };
    // SAFETY: `green` is null or the caller's place for a context, and so is `out`.
    unsafe {
        crate::result::store_optional(green, of);
        store(out, plain)
    }
}

/// `cuStreamGetDevice`.
pub fn device(default: DefaultStream, handle: CUstream, out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, named_stream(handle, default)?.context.ordinal) }
}
