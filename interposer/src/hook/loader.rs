//! glibc's own `dlsym` and `dlopen`, behind those that this library exports.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// glibc's `dlsym`, once it was asked for.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// glibc's `dlopen`, once it was asked for.
pub static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Libraries opened with `RTLD_DEEPBIND`.
pub static DEEPBIND_LOADS: AtomicU64 = AtomicU64::new(0);

/// glibc's own function of this name: `dlvsym` is the one door that is not ours.
fn from_glibc(name: &CStr) -> *mut c_void {
    [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"]
        .into_iter()
        // SAFETY: C strings; RTLD_NEXT is what follows this library.
        .map(|version| unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) })
        .find(|found| !found.is_null())
        .unwrap_or(core::ptr::null_mut())
}

/// The function in `slot`, found with the first call.
pub fn bootstrap(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = slot.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = from_glibc(name);
    slot.store(found, Relaxed);
    found
}

/// glibc's `dlsym`, from this library's place in the search order.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = bootstrap(&REAL_DLSYM, c"dlsym");
    if real.is_null() {
        return real;
    }
    // SAFETY: glibc's dlsym has this signature; handle and name are the caller's.
    unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real)(handle, name.as_ptr()) }
}

/// glibc's `dlopen`.
pub fn real_dlopen(name: &CStr, mode: c_int) -> *mut c_void {
    let real = bootstrap(&REAL_DLOPEN, c"dlopen");
    if real.is_null() {
        return real;
    }
    // SAFETY: glibc's dlopen has this signature; `name` is a C string.
    unsafe { core::mem::transmute::<*mut c_void, Dlopen>(real)(name.as_ptr(), mode) }
}
