//! How the application's questions for a function are answered: `dlsym`, `dlopen`, `cuGetProcAddress`.
//!
//! `dlsym` and `dlopen` are tail calls. glibc looks at its caller's address (for `RTLD_NEXT`, for
//! the caller's own search path), so an extra frame of ours would change what the caller gets; a
//! wrapper of another library once found itself that way and never returned. Our filter therefore
//! runs before, allocates nothing and locks nothing, and everything it does not claim jumps on with
//! the caller's frame. We answer a name of ours only where the driver has it: no function is ever
//! invented.
//!
//! `cuGetProcAddress` is asked first, with the caller's own version and flags. What it returned
//! decides which ABI the caller gets, so the hook is found by that *pointer*; only where the driver
//! returns one that it does not export is it found by (name, version, stream flag). A function of
//! ours in an ABI no row knows is left alone and counted.

use crate::env;
use crate::hook::driver;
use crate::hook::row::Row;
use crate::hook::table::ROWS;
use crate::process;
use crate::sys;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use tidegate_abi::cuda::{CUresult, GPA_PER_THREAD_DEFAULT_STREAM};

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static DROP_DEEPBIND: AtomicU8 = AtomicU8::new(0);
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

fn bootstrap(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
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

/// `dlsym` answers: 0 go on to glibc, 1 answer NULL, else the answer.
unsafe extern "C" fn filter(handle: *mut c_void, name: *const c_char) -> usize {
    const PASS: usize = 0;
    const NULL: usize = 1;
    bootstrap(&REAL_DLSYM, c"dlsym");
    if name.is_null() || handle == libc::RTLD_NEXT {
        return PASS;
    }
    // SAFETY: the caller passes a C string, so a byte follows each that is not zero.
    if unsafe { *name != b'c'.cast_signed() || *name.add(1) != b'u'.cast_signed() } {
        return PASS;
    }
    // SAFETY: as above.
    let wanted = unsafe { CStr::from_ptr(name) };
    let Some(row) = ROWS.iter().find(|row| row.symbol == wanted.to_bytes()) else {
        return PASS;
    };
    if process::disabled() {
        return PASS;
    }
    let found = real_dlsym(handle, wanted);
    if found.is_null() {
        return PASS;
    }
    if found == row.detour() {
        // The global scope begins with this library. Behind it there may be no driver at all, and
        // glibc's answer to that, with its dlerror, is the right one.
        if row.resolve().is_null() {
            real_dlsym(libc::RTLD_NEXT, wanted);
            return NULL;
        }
    } else {
        row.offer(found);
    }
    row.hand_out() as usize
}

/// `dlsym`.
///
/// # Safety
/// As of `dlsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {filter}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, 1",
        "ja 2f",
        "je 3f",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "3:",
        "xor eax, eax",
        "2:",
        "ret",
        filter = sym filter,
        real = sym REAL_DLSYM,
    )
}

/// Finds glibc's `dlopen` and counts `RTLD_DEEPBIND`; the mode to go on with.
unsafe extern "C" fn before_dlopen(_file: *const c_char, mode: c_int) -> c_int {
    bootstrap(&REAL_DLOPEN, c"dlopen");
    if mode & libc::RTLD_DEEPBIND == 0 {
        return mode;
    }
    DEEPBIND_LOADS.fetch_add(1, Relaxed);
    if DROP_DEEPBIND.load(Relaxed) == 0 {
        DROP_DEEPBIND.store(1 + u8::from(env::no_deepbind()), Relaxed);
    }
    if DROP_DEEPBIND.load(Relaxed) == 2 && !process::disabled() {
        mode & !libc::RTLD_DEEPBIND
    } else {
        mode
    }
}

/// `dlopen`.
///
/// # Safety
/// As of `dlopen(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "call {before}",
        "pop rdi",
        "mov esi, eax",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        before = sym before_dlopen,
        real = sym REAL_DLOPEN,
    )
}

/// A function the application resolved in an ABI that no row knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhooked {
    /// Base name.
    pub name: String,
    /// CUDA version asked for.
    pub version: c_int,
    /// Flags asked with.
    pub flags: u64,
    /// How often.
    pub count: u64,
}

static UNHOOKED: Mutex<Vec<Unhooked>> = Mutex::new(Vec::new());

/// What was resolved past the table.
pub fn unhooked() -> Vec<Unhooked> {
    sys::lock(&UNHOOKED).clone()
}

/// The newest CUDA version whose signatures the table knows by name alone.
const NEWEST_KNOWN: c_int = 13_999;

/// The row for what the driver returned, if there is one.
fn row_for(name: &[u8], version: c_int, flags: u64, found: *mut c_void) -> Option<&'static Row> {
    let thread = flags & GPA_PER_THREAD_DEFAULT_STREAM != 0;
    let keyed = ROWS
        .iter()
        .filter(|row| row.base() == name && row.thread() == thread && row.since <= version)
        .max_by_key(|row| row.since);
    let same = |row: &&Row| row.resolve() == found;
    if let Some(row) = keyed.filter(same) {
        return Some(row);
    }
    let named = || ROWS.iter().filter(|row| row.base() == name);
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
unsafe fn replace(name: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) {
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
    if !ROWS.iter().any(|row| row.base() == name) {
        return;
    }
    if let Some(row) = row_for(name, version, flags, real) {
        row.offer(real);
        // SAFETY: as above.
        unsafe { *found = row.hand_out() };
        return;
    }
    let mut unhooked = sys::lock(&UNHOOKED);
    let known = unhooked.iter_mut().find(|entry| {
        entry.name.as_bytes() == name && entry.version == version && entry.flags == flags
    });
    if let Some(entry) = known {
        entry.count += 1;
        return;
    }
    // A program that asks for ever more versions fills no memory.
    if unhooked.len() < 256 {
        unhooked.push(Unhooked {
            name: String::from_utf8_lossy(name).into_owned(),
            version,
            flags,
            count: 1,
        });
    }
}

/// `cuGetProcAddress` of CUDA 11.3.
pub unsafe fn proc_address(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult,
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(name, found, version, flags) };
    if result.is_ok() {
        // SAFETY: the driver was called with them, successfully.
        process::guarded(|| sys::keeping_errno(|| unsafe { replace(name, found, version, flags) }));
    }
    result
}

/// `cuGetProcAddress` of CUDA 12.0.
pub unsafe fn proc_address_v2(
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
        // SAFETY: the driver was called with them, successfully.
        process::guarded(|| sys::keeping_errno(|| unsafe { replace(name, found, version, flags) }));
    }
    result
}

/// The driver's own function behind `row`, by its exported name.
pub fn real_of(row: &Row) -> *mut c_void {
    CStr::from_bytes_with_nul(row.symbol_nul).map_or(core::ptr::null_mut(), driver::symbol)
}

/// What follows this library in the search order under the name of `row`.
pub fn next_of(row: &Row) -> *mut c_void {
    CStr::from_bytes_with_nul(row.symbol_nul).map_or(core::ptr::null_mut(), |name| {
        real_dlsym(libc::RTLD_NEXT, name)
    })
}
