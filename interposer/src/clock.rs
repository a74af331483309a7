//! The only file that reads a clock: monotonic nanoseconds of this process, as in the page.
//!
//! It calls the kernel's own code (the vDSO), not the C library's `clock_gettime`: that symbol may belong to another
//! preloaded library, which shifts, stops or speeds up clocks for the application. The application is to see the faked
//! time, but its work is to be measured by the real one.

use crate::elf;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// What is asked, once it was looked for.
static ASKED: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The kernel's function, or the C library's where the kernel maps none.
fn clock_gettime() -> ClockGettime {
    let mut asked = ASKED.load(Relaxed);
    if asked.is_null() {
        asked = elf::of_the_kernel(c"__vdso_clock_gettime");
        if asked.is_null() {
            let own: ClockGettime = libc::clock_gettime;
            asked = own as *mut c_void;
        }
        ASKED.store(asked, Relaxed);
    }
    // SAFETY: both have this signature.
    unsafe { core::mem::transmute::<*mut c_void, ClockGettime>(asked) }
}

/// `CLOCK_MONOTONIC` now, nanoseconds.
pub fn now_ns() -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a live timespec of this frame, all the call writes to.
    unsafe { clock_gettime()(libc::CLOCK_MONOTONIC, &raw mut at) };
    (at.tv_sec.unsigned_abs())
        .wrapping_mul(1_000_000_000)
        .wrapping_add(at.tv_nsec.unsigned_abs())
}
