//! The C library's own `dlsym` and `dlopen`, behind those that this library exports.

use super::elf;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's `dlsym`, once it was asked for.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlopen`, once it was asked for.
pub static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Libraries opened with `RTLD_DEEPBIND`.
pub static DEEPBIND_LOADS: AtomicU64 = AtomicU64::new(0);

/// glibc's `dlvsym`. Null where the C library has none (musl): a reference that had to be found would end every
/// program there before its first instruction.
fn dlvsym() -> *mut c_void {
    let found: *mut c_void;
    // SAFETY: reads the entry that the loader fills for a weak symbol.
    unsafe {
        core::arch::asm!(
            ".weak dlvsym",
            "mov {found}, qword ptr [rip + dlvsym@GOTPCREL]",
            found = out(reg) found,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    found
}

/// Before glibc 2.34 `dlvsym` is in libdl, and a weak reference alone does not bring that.
#[used]
static LIBDL: unsafe extern "C" fn(*mut c_void) -> c_int = libc::dlclose;

/// The C library's own function of this name: `dlvsym` is the one door that is not ours.
fn from_libc(name: &CStr) -> *mut c_void {
    let dlvsym = dlvsym();
    if dlvsym.is_null() {
        return elf::function(name);
    }
    // SAFETY: glibc's dlvsym has this signature.
    let dlvsym = unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(dlvsym) };
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
    let found = from_libc(name);
    slot.store(found, Relaxed);
    found
}

/// The C library's `dlsym`, from this library's place in the search order.
pub fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = bootstrap(&REAL_DLSYM, c"dlsym");
    if real.is_null() {
        return real;
    }
    // SAFETY: every dlsym has this signature; handle and name are the caller's.
    unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real)(handle, name.as_ptr()) }
}

/// The C library's `dlopen`.
pub fn real_dlopen(name: &CStr, mode: c_int) -> *mut c_void {
    let real = bootstrap(&REAL_DLOPEN, c"dlopen");
    if real.is_null() {
        return real;
    }
    // SAFETY: every dlopen has this signature; `name` is a C string.
    unsafe { core::mem::transmute::<*mut c_void, Dlopen>(real)(name.as_ptr(), mode) }
}
