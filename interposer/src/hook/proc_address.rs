//! How the application finds a function by `cuGetProcAddress`.
//!
//! The driver is asked first, with the caller's own version and flags. Its answer decides which ABI the caller gets, so
//! the hook is found by that *pointer*. Only if the driver returns a function that it does not export, the hook is
//! found by (name, version, stream flag). A function of ours in an ABI that no row has is left alone and counted.

use crate::real::row::Row;
use crate::state::unhooked::count;
use crate::{process, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use tidegate_abi::cuda::{CUresult, GPA_PER_THREAD_DEFAULT_STREAM};

/// The newest CUDA version whose signatures the table knows by name alone.
const NEWEST_KNOWN: c_int = 13_999;

/// The row for what the driver returned, if there is one.
fn row_for(
    rows: &'static [Row],
    name: &[u8],
    version: c_int,
    flags: u64,
    found: *mut c_void,
) -> Option<&'static Row> {
    let thread = flags & GPA_PER_THREAD_DEFAULT_STREAM != 0;
    let keyed = rows
        .iter()
        .filter(|row| row.base() == name && row.thread() == thread && row.since <= version)
        .max_by_key(|row| row.since);
    let same = |row: &&Row| row.resolve() == found;
    if let Some(row) = keyed.filter(same) {
        return Some(row);
    }
    let named = || rows.iter().filter(|row| row.base() == name);
    // A symbol without a per-thread form is the same function under either flag.
    if let Some(row) = named().find(same) {
        return Some(row);
    }
    if version > NEWEST_KNOWN {
        return None;
    }
    keyed.or_else(|| {
        named()
            .filter(|row| {
                row.since <= version && named().all(|other| !other.thread()) && !row.thread()
            })
            .max_by_key(|row| row.since)
    })
}

/// Puts our hook where the driver put its function.
///
/// # Safety
/// `name` and `found` are what the driver was just called with, successfully.
unsafe fn replace(
    rows: &'static [Row],
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) {
    if name.is_null() || found.is_null() || process::disabled() {
        return;
    }
    // SAFETY: the driver wrote it.
    let real = unsafe { *found };
    if real.is_null() {
        return;
    }
    // SAFETY: the driver read it as a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if !rows.iter().any(|row| row.base() == name) {
        return;
    }
    if let Some(row) = row_for(rows, name, version, flags, real) {
        row.offer(real);
        // SAFETY: as above.
        unsafe { *found = row.hand_out() };
        return;
    }
    count(name, version, flags);
}

/// Notes a function of another copy of the driver's library.
pub fn note_another(symbol: &[u8]) {
    count(symbol, 0, 0);
}

/// `cuGetProcAddress` of CUDA 11.3.
pub unsafe fn proc_address(
    rows: &'static [Row],
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult,
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(name, found, version, flags) };
    if result.is_ok() {
        process::guarded(|| {
            // SAFETY: the driver was called with them, successfully.
            sys::keeping_errno(|| unsafe { replace(rows, name, found, version, flags) });
        });
    }
    result
}

/// `cuGetProcAddress` of CUDA 12.0.
pub unsafe fn proc_address_v2(
    rows: &'static [Row],
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> CUresult,
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(name, found, version, flags, status) };
    if result.is_ok() {
        process::guarded(|| {
            // SAFETY: the driver was called with them, successfully.
            sys::keeping_errno(|| unsafe { replace(rows, name, found, version, flags) });
        });
    }
    result
}
