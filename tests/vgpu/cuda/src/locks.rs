//! The locks of libcuda itself, by setting: `TIDEGATE_VGPU_LOCKS=calls` or `calls+sync`.
//!
//! The real library holds a lock of the context over calls that wait for the GPU, so a call from a
//! second thread that needs the lock waits for the GPU as well, and for ever while the channels are
//! disabled. Which calls do is not documented. The model takes the lock, with `calls`, in a launch
//! whose queue is full, in free, host free, synchronous copies, module load and unload, and the end
//! of a context, stream or event; with `calls+sync` in synchronisation too; and always in every call
//! that maps, unmaps, makes or releases device memory. Contexts of one GPU share a lock here, which
//! only makes the model stricter.

use std::env;
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::gpu::Gpu;
use crate::result::CudaResult;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Model {
    Off,
    Calls,
    CallsAndSync,
}

fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    *MODEL.get_or_init(|| match env::var("TIDEGATE_VGPU_LOCKS").as_deref() {
        Ok("calls") => Model::Calls,
        Ok("calls+sync") => Model::CallsAndSync,
        _ => Model::Off,
    })
}

/// GPUs of a node.
const GPUS: usize = 16;

/// Who holds the lock, and how often: a call may hold it and make another that does.
struct Lock {
    state: Mutex<Option<(ThreadId, u32)>>,
    freed: Condvar,
}

static LOCKS: [Lock; GPUS] = [const {
    Lock {
        state: Mutex::new(None),
        freed: Condvar::new(),
    }
}; GPUS];

impl Lock {
    fn state(&self) -> MutexGuard<'_, Option<(ThreadId, u32)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) {
        let me = thread::current().id();
        let mut state = self.state();
        loop {
            match &mut *state {
                None => {
                    *state = Some((me, 1));
                    return;
                }
                Some((owner, depth)) if *owner == me => {
                    *depth += 1;
                    return;
                }
                Some(_) => {
                    state = self
                        .freed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn give(&self) {
        let mut state = self.state();
        if let Some((_, depth)) = &mut *state {
            *depth -= 1;
            if *depth == 0 {
                *state = None;
                self.freed.notify_one();
            }
        }
    }
}

/// The lock, held until this is dropped by the thread that took it.
#[must_use]
pub struct Held {
    lock: Option<&'static Lock>,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(lock) = self.lock {
            lock.give();
        }
    }
}

fn hold_if(wanted: bool, gpu: &Gpu) -> Held {
    let lock = LOCKS.get(gpu.card.minor as usize).filter(|_| wanted);
    if let Some(lock) = lock {
        lock.take();
    }
    Held {
        lock,
        _of_this_thread: PhantomData,
    }
}

/// For a call that the model counts.
pub fn call(gpu: &Gpu) -> Held {
    hold_if(model() >= Model::Calls, gpu)
}

/// For a call that the model counts and that need not wait by the manual: `wait` is done under the lock.
pub fn waiting_call(gpu: &Gpu, wait: impl FnOnce() -> CudaResult) -> CudaResult<Held> {
    let held = call(gpu);
    if model() >= Model::Calls {
        wait()?;
    }
    Ok(held)
}

/// For a call that synchronises and does nothing else.
pub fn sync(gpu: &Gpu) -> Held {
    hold_if(model() == Model::CallsAndSync, gpu)
}
