//! The calls on events.

use tidegate_abi::cuda::{CUevent, CUresult, CUstream};

use crate::capturing;
use crate::locks;
use crate::objects::current::{self, DefaultStream};
use crate::objects::event::{DISABLE_TIMING, Event, named};
use crate::objects::work::Work;
use crate::result::{CudaResult, store};
use crate::submit;

/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`: in a capture, a node instead of a
/// dependency.
const EXTERNAL: u32 = 1;
/// All creation flags.
const FLAGS: u32 = 7;

/// `cuEventCreate`.
pub fn create(out: *mut CUevent, flags: u32) -> CudaResult {
    let context = current::context()?;
    let timed_ipc = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    if out.is_null() || flags & !FLAGS != 0 || timed_ipc {
        return Err(CUresult::INVALID_VALUE);
    }
    let event = Event::new(context, flags)?;
    // SAFETY: `out` is the caller's place for an event.
    unsafe { store(out, event.handle()) }
}

/// `cuEventDestroy`: a pending record still runs, and means nothing to anybody.
pub fn destroy(handle: CUevent) -> CudaResult {
    let event = named(handle)?;
    let (gpu, point) = (event.context().gpu, event.point());
    let _held = locks::waiting_call(gpu, || point.map_or(Ok(()), |point| point.wait()))?;
    if !event.retire() {
        return Err(CUresult::INVALID_HANDLE);
    }
    capturing::forget_event(event);
    Event::give_back(event)
}

/// `cuEventRecord`.
pub fn record(default: DefaultStream, handle: CUevent, stream: CUstream) -> CudaResult {
    record_with_flags(default, handle, stream, 0)
}

/// `cuEventRecordWithFlags`.
pub fn record_with_flags(
    default: DefaultStream,
    handle: CUevent,
    stream: CUstream,
    flags: u32,
) -> CudaResult {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    let event = named(handle)?;
    if flags & EXTERNAL != 0 && capturing::is_capturing(stream) {
        return submit::enqueue(stream, Work::EventRecord(event)).map(|_| ());
    }
    if capturing::record_event(stream, event)? {
        return Ok(());
    }
    event.record(stream).map(|_| ())
}

/// `cuStreamWaitEvent`.
pub fn stream_wait(
    default: DefaultStream,
    stream: CUstream,
    handle: CUevent,
    flags: u32,
) -> CudaResult {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    let event = named(handle)?;
    if flags & EXTERNAL != 0 && capturing::is_capturing(stream) {
        return submit::enqueue(stream, Work::EventWait(event)).map(|_| ());
    }
    let point = event.point();
    if capturing::wait_event(stream, event, point.is_some())? {
        return Ok(());
    }
    point.map_or(Ok(()), |point| stream.submit_wait(point))
}

/// `cuEventQuery`.
pub fn query(handle: CUevent) -> CudaResult {
    let event = named(handle)?;
    capturing::ask_event(event)?;
    event.query()
}

/// `cuEventSynchronize`.
pub fn synchronize(handle: CUevent) -> CudaResult {
    let event = named(handle)?;
    capturing::ask_event(event)?;
    event.context().check()?;
    match event.point() {
        Some(point) => point.wait(),
        None => Ok(()),
    }
}

/// `cuEventElapsedTime`, both signatures.
pub fn elapsed(out: *mut f32, start: CUevent, end: CUevent) -> CudaResult {
    let (start, end) = (named(start)?, named(end)?);
    capturing::ask_event(start)?;
    capturing::ask_event(end)?;
    let (start, end) = (start.time()?, end.time()?);
    let ns = end.cast_signed() - start.cast_signed();
    // SAFETY: `out` is the caller's place for the time.
    unsafe { store(out, (ns as f64 / 1e6) as f32) }
}
