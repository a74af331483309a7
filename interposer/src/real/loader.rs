//! The C library's own `dlsym` and `dlopen`, behind those that this library exports, and those of a *neighbour*:
//! another preloaded library behind this one that exports a `dlsym` of its own.
//!
//! This library looks up what it needs itself by the C library's functions, never by a neighbour's. What the
//! application looks up goes on to the neighbour, which it would reach without this library. A neighbour before this
//! library gets this library's functions when it asks for those behind itself.

use crate::elf::{self, Span};
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's `dlsym`, once it was asked for.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlopen`, once it was asked for.
pub static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The C library's `dlmopen`, once it was asked for.
pub static REAL_DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Libraries opened with `RTLD_DEEPBIND`.
pub static DEEPBIND_LOADS: AtomicU64 = AtomicU64::new(0);

/// Before glibc 2.34 the functions of `dlfcn.h` are in libdl, which has to be loaded.
#[used]
static LIBDL: unsafe extern "C" fn(*mut c_void) -> c_int = libc::dlclose;

/// glibc's `dlvsym`, once it was asked for; null on musl, which has none.
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// glibc's `dlvsym`, behind the one that this library exports; null on musl.
pub fn real_dlvsym() -> *mut c_void {
    let known = REAL_DLVSYM.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = elf::function_of_glibc(c"dlvsym");
    REAL_DLVSYM.store(found, Relaxed);
    found
}

/// What glibc has behind this library under a name and a version of it; null: nothing, or there is no glibc.
pub fn behind(name: &CStr, version: &CStr) -> *mut c_void {
    let dlvsym = real_dlvsym();
    if dlvsym.is_null() {
        return dlvsym;
    }
    // SAFETY: glibc's dlvsym has this signature; RTLD_NEXT is what follows this library.
    unsafe {
        let dlvsym = core::mem::transmute::<*mut c_void, Dlvsym>(dlvsym);
        dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr())
    }
}

/// The C library's own function of this name.
fn from_libc(name: &CStr) -> *mut c_void {
    if real_dlvsym().is_null() {
        return elf::function(name);
    }
    [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.3.4", c"GLIBC_2.17"]
        .into_iter()
        .map(|version| behind(name, version))
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

/// A library behind this one that exports a function of the C library's.
#[derive(Debug)]
pub struct Neighbour {
    /// 0: not looked for, 1: there is none, 2: there is one.
    known: AtomicU8,
    function: AtomicPtr<c_void>,
    begin: AtomicU64,
    end: AtomicU64,
}

/// The one with a `dlsym`.
pub static DLSYM: Neighbour = Neighbour::new();
/// The one with a `dlopen`.
pub static DLOPEN: Neighbour = Neighbour::new();
/// The one with a `dlmopen`.
pub static DLMOPEN: Neighbour = Neighbour::new();

thread_local! {
    /// The thread asks a neighbour, which may itself look something up.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

impl Neighbour {
    const fn new() -> Self {
        Self {
            known: AtomicU8::new(0),
            function: AtomicPtr::new(core::ptr::null_mut()),
            begin: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    /// Looks for one: whoever comes next in the search order, and is not the C library.
    fn look(&self, real: *mut c_void, name: &CStr) -> bool {
        let next = real_dlsym(libc::RTLD_NEXT, name);
        let there = elf::span_of(next).filter(|span| elf::span_of(real) != Some(*span));
        if let Some(Span { begin, end, .. }) = there {
            self.function.store(next, Relaxed);
            self.begin.store(begin, Relaxed);
            self.end.store(end, Relaxed);
        }
        self.known.store(1 + u8::from(there.is_some()), Release);
        there.is_some()
    }

    /// Its function, if there is one, for a call that comes from `caller`. What it calls itself is for the C library:
    /// it would get its own question back.
    pub fn for_call(
        &self,
        real: *mut c_void,
        name: &CStr,
        caller: *const c_void,
    ) -> Option<*mut c_void> {
        let there = match self.known.load(Acquire) {
            0 => !real.is_null() && self.look(real, name),
            known => known == 2,
        };
        let own = self.begin.load(Relaxed)..self.end.load(Relaxed);
        (there && !own.contains(&(caller as u64)) && !ASKING.get())
            .then(|| self.function.load(Relaxed))
    }
}

/// What a neighbour's `dlsym` answers for a name in an object, if there is a neighbour and it has an answer. It is not asked
/// where it would find this library's own function.
pub fn ask_neighbour(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    if handle.is_null() {
        return None;
    }
    let real = bootstrap(&REAL_DLSYM, c"dlsym");
    let dlsym = DLSYM.for_call(real, c"dlsym", core::ptr::null())?;
    ASKING.set(true);
    // SAFETY: every dlsym has this signature; the handle is of an object that stays loaded.
    let found = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym)(handle, name.as_ptr()) };
    ASKING.set(false);
    Some(found).filter(|found| !found.is_null())
}

/// Whether a call comes from the object that has the next function of this name behind this library: a neighbour that looks
/// for what is behind itself.
pub fn is_from_next(caller: *const c_void, name: &CStr) -> bool {
    let next = real_dlsym(libc::RTLD_NEXT, name);
    !next.is_null() && elf::object_of(next) == elf::object_of(caller)
}
