//! The real driver: its handle, its functions by name, and the few that the library itself calls.
//!
//! The library finds it through a handle on `libcuda.so.1` that the process has already opened, never through
//! `RTLD_NEXT`: a driver that was opened with `RTLD_LOCAL`, the default of `dlopen`, is invisible to that. The library
//! never loads a driver by itself.

use super::loader;
use crate::elf;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use tidegate_abi::cuda::{CUcontext, CUdevice, CUevent, CUresult, CUstream, CUuuid};

static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(core::ptr::null_mut());

/// The handle of the driver, if the process has one loaded.
pub fn handle() -> *mut c_void {
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let mode = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    for name in [c"libcuda.so.1", c"libcuda.so"] {
        let found = loader::real_dlopen(name, mode);
        if !found.is_null() {
            HANDLE.store(found, Ordering::Release);
            return found;
        }
    }
    core::ptr::null_mut()
}

/// Whether a function, by which somebody found a driver, is of the one that this library works with. The first one that is
/// found is it. Another copy has contexts and streams of its own, which the functions of this one do not know.
pub fn has(function: *mut c_void) -> bool {
    let mut known = handle();
    if known.is_null() {
        known = adopt(function);
    }
    let of = |function: *mut c_void| elf::object_of(function);
    let own = || loader::real_dlsym(known, c"cuInit");
    known.is_null() || of(function).is_none() || of(function) == of(own())
}

/// Takes the driver that a function is of, whatever the name of its file.
fn adopt(function: *mut c_void) -> *mut c_void {
    // SAFETY: zeroed is a valid value, which the call fills in.
    let mut about: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be asked for; `about` is live.
    if unsafe { libc::dladdr(function, &raw mut about) } == 0 || about.dli_fname.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the name of a loaded object is a C string.
    let path = unsafe { CStr::from_ptr(about.dli_fname) };
    let found = loader::real_dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // A library that wraps some of its functions is none.
    const ALL: [&CStr; 2] = [c"cuInit", c"cuThreadExchangeStreamCaptureMode"];
    if found.is_null()
        || ALL
            .iter()
            .any(|name| loader::real_dlsym(found, name).is_null())
    {
        return core::ptr::null_mut();
    }
    HANDLE.store(found, Ordering::Release);
    found
}

/// The driver's own function of this name, or null.
pub fn symbol(name: &CStr) -> *mut c_void {
    let handle = handle();
    if handle.is_null() {
        // A driver under another file name: linked, or opened with RTLD_GLOBAL.
        return loader::real_dlsym(libc::RTLD_NEXT, name);
    }
    loader::real_dlsym(handle, name)
}

/// A struct of driver functions, and how it is loaded: `None` where the driver lacks one of them.
macro_rules! functions {
    ($(#[$about:meta])* $group:ident; $($(#[$doc:meta])* $field:ident = $($name:literal)|+ : fn($($arg:ty),*);)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub struct $group { $($(#[$doc])* pub $field: unsafe extern "C" fn($($arg),*) -> CUresult),* }

        impl $crate::real::driver::Functions for $group {
            fn load() -> Option<Self> {
                Some(Self { $($field: {
                    let found = [$($name),+].into_iter().map($crate::real::driver::symbol).find(|found| !found.is_null())?;
                    // SAFETY: the driver's function of this name has this signature in every version
                    // that has the name.
                    unsafe { core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($arg),*) -> CUresult>(found) }
                }),* })
            }
        }
    };
}
pub(crate) use functions;

/// A group of driver functions.
pub trait Functions: Sized + 'static {
    /// Finds them all.
    fn load() -> Option<Self>;
}

/// The functions in `cell`, found with the first call.
pub fn loaded<T: Functions>(cell: &AtomicPtr<T>) -> Option<&'static T> {
    let known = cell.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: leaked below and never changed.
        return Some(unsafe { &*known });
    }
    let fresh = Box::into_raw(Box::new(T::load()?));
    let stored = crate::sys::publish(cell, fresh);
    if stored != fresh {
        // SAFETY: made above and shown to nobody.
        drop(unsafe { Box::from_raw(fresh) });
    }
    // SAFETY: leaked and never changed.
    Some(unsafe { &*stored })
}

functions! {
    /// Driver functions the library calls.
    Driver;
    /// `cuCtxGetCurrent`.
    ctx_get_current = c"cuCtxGetCurrent": fn(*mut CUcontext);
    /// `cuCtxGetDevice`, of the current context.
    ctx_get_device = c"cuCtxGetDevice": fn(*mut CUdevice);
    /// `cuCtxPushCurrent`.
    ctx_push = c"cuCtxPushCurrent_v2": fn(CUcontext);
    /// `cuCtxPopCurrent`.
    ctx_pop = c"cuCtxPopCurrent_v2": fn(*mut CUcontext);
    /// `cuCtxGetApiVersion`: fails for a context that is gone.
    ctx_get_api_version = c"cuCtxGetApiVersion": fn(CUcontext, *mut c_uint);
    /// `cuDevicePrimaryCtxGetState`.
    primary_state = c"cuDevicePrimaryCtxGetState": fn(CUdevice, *mut c_uint, *mut c_int);
    /// `cuDeviceGetUuid`.
    device_uuid = c"cuDeviceGetUuid_v2" | c"cuDeviceGetUuid": fn(*mut CUuuid, CUdevice);
    /// `cuStreamQuery`.
    stream_query = c"cuStreamQuery": fn(CUstream);
    /// `cuStreamIsCapturing`.
    stream_is_capturing = c"cuStreamIsCapturing": fn(CUstream, *mut c_int);
    /// `cuThreadExchangeStreamCaptureMode`.
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    /// `cuEventCreate`.
    event_create = c"cuEventCreate": fn(*mut CUevent, c_uint);
    /// `cuEventRecord`.
    event_record = c"cuEventRecord": fn(CUevent, CUstream);
    /// `cuEventQuery`.
    event_query = c"cuEventQuery": fn(CUevent);
    /// `cuEventDestroy`.
    event_destroy = c"cuEventDestroy_v2": fn(CUevent);
}

/// The driver's functions; `None` without a driver, or with one too old to have them all.
pub fn driver() -> Option<&'static Driver> {
    loaded(&DRIVER)
}
