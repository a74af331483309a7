//! The return values of the C interface.

use crate::process::{Process, guarded, process};
use crate::sys;
use core::ffi::c_int;

/// Runs a function of the interface; a panic in it is `EIO`.
pub fn answered(f: impl FnOnce(&'static Process) -> Result<(), c_int>) -> c_int {
    guarded(|| {
        sys::keeping_errno(|| match process() {
            Some(process) => f(process).err().map_or(0, |errno| -errno),
            None => -libc::ENOSYS,
        })
    })
    .unwrap_or(-libc::EIO)
}
