//! Events: a point in a stream, with the device's time.
//!
//! Recording appends a release of the event's semaphore, which the device stamps. Waiting and
//! querying look at the point behind that release; recording again moves the point, and who waits
//! already keeps the old one.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUevent, CUresult, CUstream};
use tidegate_vgpu::ring::Op;

use crate::capturing;
use crate::channel::{Point, entry};
use crate::context::{self, Context};
use crate::driver;
use crate::handle::{Kind, Pinned};
use crate::locks;
use crate::result::{CudaResult, store};
use crate::stream::{DefaultStream, Engine, Stream};
use crate::work::{self, Work};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`: in a capture, a node instead of a
/// dependency.
const EXTERNAL: u32 = 1;
/// All creation flags.
const FLAGS: u32 = 7;

/// One event. Destroyed ones are used again.
pub struct Event {
    state: Mutex<State>,
}

impl Kind for Event {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgEVENT!");
}

struct State {
    context: &'static Pinned<Context>,
    flags: u32,
    semaphore: u32,
    /// Last value handed out for the semaphore.
    value: u64,
    /// Behind the release of the last record.
    point: Option<Point>,
}

static RETIRED: Mutex<Vec<&'static Pinned<Event>>> = Mutex::new(Vec::new());

impl Event {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The point of the last record, if any.
    pub fn point(&self) -> Option<Point> {
        self.state().point
    }

    /// Records in `stream`.
    pub fn record(&self, stream: &Stream) -> CudaResult<Point> {
        let mut state = self.state();
        if !std::ptr::eq(state.context, stream.context) {
            return Err(CUresult::INVALID_HANDLE);
        }
        state.value += 1;
        let release = entry(Op::Release, &[u64::from(state.semaphore), state.value]);
        let point = stream.submit(Engine::Compute, &[release])?;
        state.point = Some(point);
        Ok(point)
    }

    fn query(&self) -> CudaResult {
        let state = self.state();
        state.context.check()?;
        match state.point {
            Some(point) if !point.is_done() => {
                point.channel.check()?;
                Err(CUresult::NOT_READY)
            }
            _ => Ok(()),
        }
    }

    /// Device time of the last record, which must be finished.
    fn time(&self) -> CudaResult<u64> {
        let state = self.state();
        let point = state.point.ok_or(CUresult::INVALID_HANDLE)?;
        if state.flags & DISABLE_TIMING != 0 {
            return Err(CUresult::INVALID_HANDLE);
        }
        if !point.is_done() {
            point.channel.check()?;
            return Err(CUresult::NOT_READY);
        }
        let semaphore = driver::semaphores()?.at(state.semaphore);
        Ok(semaphore.at_ns.load(Ordering::Acquire))
    }
}

/// The event an application names.
pub fn named(handle: CUevent) -> CudaResult<&'static Pinned<Event>> {
    driver::get()?;
    // SAFETY: an event handle of the application, by the API's contract.
    unsafe { Pinned::<Event>::resolve(handle) }
}

/// `cuEventCreate`.
pub fn create(out: *mut CUevent, flags: u32) -> CudaResult {
    let context = context::current()?;
    let timed_ipc = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    if out.is_null() || flags & !FLAGS != 0 || timed_ipc {
        return Err(CUresult::INVALID_VALUE);
    }
    let (semaphore, value) = driver::semaphores()?
        .take()
        .ok_or(CUresult::OUT_OF_MEMORY)?;
    let fresh = State {
        context,
        flags,
        semaphore,
        value,
        point: None,
    };
    let retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let event = match retired {
        Some(event) => {
            *event.state() = fresh;
            event.revive();
            event
        }
        None => Pinned::leak(Event {
            state: Mutex::new(fresh),
        }),
    };
    // SAFETY: `out` is the caller's place for an event.
    unsafe { store(out, event.handle()) }
}

/// `cuEventDestroy`: a pending record still runs, and means nothing to anybody.
pub fn destroy(handle: CUevent) -> CudaResult {
    let event = named(handle)?;
    let (gpu, point) = {
        let state = event.state();
        (state.context.gpu, state.point)
    };
    let _held = locks::waiting_call(gpu, || point.map_or(Ok(()), |point| point.wait()))?;
    if !event.retire() {
        return Err(CUresult::INVALID_HANDLE);
    }
    capturing::forget_event(event);
    let (semaphore, value) = {
        let state = event.state();
        (state.semaphore, state.value)
    };
    driver::semaphores()?.give(semaphore, value);
    RETIRED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(event);
    Ok(())
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
    let stream = unsafe { crate::stream::resolve(stream, default)? };
    let event = named(handle)?;
    if flags & EXTERNAL != 0 && capturing::is_capturing(stream) {
        return work::enqueue(stream, Work::EventRecord(event)).map(|_| ());
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
    let stream = unsafe { crate::stream::resolve(stream, default)? };
    let event = named(handle)?;
    if flags & EXTERNAL != 0 && capturing::is_capturing(stream) {
        return work::enqueue(stream, Work::EventWait(event)).map(|_| ());
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
    event.state().context.check()?;
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
