//! How the application finds a function by name: `dlsym` and `dlopen`.
//!
//! Both are tail calls. glibc looks at its caller's address (for `RTLD_NEXT`, for
//! the caller's own search path), so an extra frame of ours would change what the caller gets; a
//! wrapper of another library once found itself that way and never returned. Our filter therefore
//! runs before, allocates nothing and locks nothing, and everything it does not claim jumps on with
//! the caller's frame. We answer a name of ours only where the driver has it: no function is ever
//! invented.

use super::loader::{DEEPBIND_LOADS, REAL_DLOPEN, REAL_DLSYM, bootstrap, real_dlsym};
use super::table::ROWS;
use crate::{env, process};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

static DROP_DEEPBIND: AtomicU8 = AtomicU8::new(0);

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
