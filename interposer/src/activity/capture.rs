//! Stream captures: counted before they begin, so that the prober never breaks one.

use crate::activity::contexts;
use crate::activity::launch::captures;
use crate::process::{guarded, known};
use crate::real::driver;
use crate::state::activity::registry::Contexts;
use crate::state::activity::slots::ANNOUNCE;
use crate::sys;
use tidegate_abi::cuda::CUresult;
use tidegate_core::gate::Capture;

/// A call that begins a capture.
pub fn begin(stream: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    if crate::process::disabled() {
        return call();
    }
    ANNOUNCE.capture_begins();
    // The prober's query under way is a few hundred nanoseconds.
    while ANNOUNCE.probing() {
        std::thread::yield_now();
    }
    let result = call();
    if result.is_ok() {
        note(|contexts, context| {
            if let Some(context) = context {
                contexts.capture_begins(stream as usize, context);
            }
        });
    } else {
        ANNOUNCE.capture_ended();
    }
    result
}

/// A call that ends a capture, if it is not refused.
pub fn end(stream: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let active = |stream| {
        ANNOUNCE.capturing()
            && guarded(|| {
                sys::keeping_errno(|| {
                    driver::driver()
                        .is_some_and(|driver| captures(driver, stream) == Capture::Active)
                })
            })
            .unwrap_or(false)
    };
    let before = active(stream);
    let result = call();
    // An invalidated capture ends with an error, one ended from the wrong thread goes on.
    if before && !active(stream) {
        ANNOUNCE.capture_ended();
        note(|contexts, context| contexts.capture_ended(stream as usize, context));
    }
    result
}

/// Tells the registry, and the calling thread's current context, of a capture: one whose stream or context goes ends by
/// that.
fn note(tell: impl FnOnce(&mut Contexts, Option<usize>)) {
    guarded(|| {
        sys::keeping_errno(|| {
            let context = driver::driver().and_then(contexts::current);
            if let Some(process) = known() {
                let context = context.map(|(context, _)| context);
                tell(&mut sys::lock(&process.contexts), context);
            }
        });
    });
}
