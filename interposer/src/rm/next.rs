//! The `ioctl` behind the one that this library exports.

use crate::real::loader;
use crate::sys;
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The next `ioctl`.
///
/// # Safety
/// As of `ioctl(2)`.
pub unsafe fn next(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        real = loader::real_dlsym(libc::RTLD_NEXT, c"ioctl");
        if real.is_null() {
            sys::set_errno(libc::ENOSYS);
            return -1;
        }
        REAL.store(real, Relaxed);
    }
    // SAFETY: libc's ioctl takes its one variadic argument in the same register; the caller's own.
    unsafe { core::mem::transmute::<*mut c_void, Ioctl>(real)(fd, request, argument) }
}
