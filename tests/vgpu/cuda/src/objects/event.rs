//! Events: a point in a stream, with the device's time.
//!
//! Recording appends a release of the event's semaphore, which the device stamps. Waiting and
//! querying look at the point behind that release; recording again moves the point, and who waits
//! already keeps the old one.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUevent, CUresult};
use tidegate_vgpu::ring::Op;

use super::context::{Context, Engine, Stream};
use crate::channel::{Point, entry};
use crate::driver;
use crate::handle::{Kind, Pinned};
use crate::result::CudaResult;

/// `CU_EVENT_DISABLE_TIMING`.
pub const DISABLE_TIMING: u32 = 2;

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

    /// An event of `context`.
    pub fn new(context: &'static Pinned<Context>, flags: u32) -> CudaResult<&'static Pinned<Self>> {
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
        Ok(match retired {
            Some(event) => {
                *event.state() = fresh;
                event.revive();
                event
            }
            None => Pinned::leak(Event {
                state: Mutex::new(fresh),
            }),
        })
    }

    /// Takes back an event that was destroyed, to be used again.
    pub fn give_back(event: &'static Pinned<Self>) -> CudaResult {
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

    /// Its context.
    pub fn context(&self) -> &'static Pinned<Context> {
        self.state().context
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

    /// Whether the last record is finished.
    pub fn query(&self) -> CudaResult {
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
    pub fn time(&self) -> CudaResult<u64> {
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
