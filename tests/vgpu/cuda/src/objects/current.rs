//! What handles mean in the calling thread: its current context, and its default streams.

use std::cell::RefCell;

use tidegate_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUresult, CUstream};

use super::context::{Context, Stream};
use crate::driver;
use crate::handle::Pinned;
use crate::result::CudaResult;

thread_local! {
    static CURRENT: RefCell<Vec<Option<&'static Pinned<Context>>>> =
        const { RefCell::new(Vec::new()) };
}

/// Works on the calling thread's stack of contexts.
pub fn with_stack<R>(
    f: impl FnOnce(&mut Vec<Option<&'static Pinned<Context>>>) -> R,
) -> CudaResult<R> {
    CURRENT
        .try_with(|stack| f(&mut stack.borrow_mut()))
        .map_err(|_| CUresult::DEINITIALIZED)
}

/// The calling thread's current context, which must be usable.
pub fn context() -> CudaResult<&'static Pinned<Context>> {
    let top = with_stack(|stack| stack.last().copied().flatten())?;
    let Some(context) = top else {
        driver::get()?;
        return Err(CUresult::INVALID_CONTEXT);
    };
    context.check()?;
    Ok(context)
}

/// The context a caller names.
pub fn named_context(handle: CUcontext) -> CudaResult<&'static Pinned<Context>> {
    driver::get()?;
    // SAFETY: a context handle of the application, by the API's contract.
    let context = unsafe { Pinned::<Context>::resolve(handle) };
    let context = context.map_err(|_| CUresult::INVALID_CONTEXT)?;
    if context.is_destroyed() {
        return Err(CUresult::CONTEXT_IS_DESTROYED);
    }
    Ok(context)
}

/// The context a caller names, or the current one for null.
pub fn named_or_current(handle: CUcontext) -> CudaResult<&'static Pinned<Context>> {
    if handle.is_null() {
        context()
    } else {
        named_context(handle)
    }
}

/// Which default stream a stream of 0 means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The one that synchronises with all others.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

thread_local! {
    static PER_THREAD: RefCell<ThreadStreams> = const { RefCell::new(ThreadStreams(Vec::new())) };
}

/// The calling thread's default streams, one per context it used.
struct ThreadStreams(Vec<&'static Pinned<Stream>>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        for stream in &self.0 {
            stream.context.forget(stream);
        }
    }
}

fn per_thread(context: &'static Pinned<Context>) -> CudaResult<&'static Pinned<Stream>> {
    PER_THREAD
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            if let Some(own) = streams.0.iter().find(|s| std::ptr::eq(s.context, context)) {
                return *own;
            }
            let own = Stream::new(context, 0, 0, false);
            streams.0.push(own);
            own
        })
        .map_err(|_| CUresult::DEINITIALIZED)
}

/// The stream an application names.
///
/// # Safety
/// `handle` is a stream handle as [`Pinned::resolve`] wants it.
pub unsafe fn stream(
    handle: CUstream,
    default: DefaultStream,
) -> CudaResult<&'static Pinned<Stream>> {
    match (handle.addr(), default) {
        (0, DefaultStream::Legacy) | (CU_STREAM_LEGACY, _) => Ok(context()?.legacy()),
        (0, DefaultStream::PerThread) | (CU_STREAM_PER_THREAD, _) => per_thread(context()?),
        _ => {
            driver::check()?;
            // SAFETY: as this function's own contract says.
            let stream = unsafe { Pinned::<Stream>::resolve(handle)? };
            stream.context.check()?;
            Ok(stream)
        }
    }
}

/// The stream a caller names.
pub fn named_stream(
    handle: CUstream,
    default: DefaultStream,
) -> CudaResult<&'static Pinned<Stream>> {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { stream(handle, default) }
}
