//! How the application finds a function by name: `dlsym`, `dlvsym`, `dlopen` and `dlmopen`.
//!
//! All of these are tail calls. glibc looks at its caller's address (for `RTLD_NEXT`, and for the caller's own search
//! path), so a frame of ours would change the result; a wrapper of another library once found itself that way and never
//! returned. Our filter therefore runs before the call, allocates nothing, and locks nothing except to note a second
//! driver. What it does not claim jumps on with the caller's frame. We answer a name of ours only if the driver has it:
//! no function is ever invented.
//!
//! What the filter does not claim jumps to a *neighbour* (a library behind this one that exports a `dlsym` of its own),
//! if there is one, and otherwise to the C library. A function of ours leads on to what the neighbour has for the name,
//! so each of the two sees a launch once. The C library itself answers three kinds of calls that would otherwise return
//! here for ever: calls of the neighbour, calls for `RTLD_NEXT`, and calls for a name of ours by which the neighbour
//! would find our function.
//!
//! A neighbour *before* this library gets the application's calls. It asks for the `dlsym` behind itself by `dlvsym`,
//! because its own name would lead it back to itself. It gets ours, so what it does not answer itself comes here.

use super::proc_address;
use super::table::ROWS;
use crate::elf;
use crate::real::driver;
use crate::real::loader::{
    DEEPBIND_LOADS, DLMOPEN, DLOPEN, DLSYM, REAL_DLMOPEN, REAL_DLOPEN, REAL_DLSYM, behind,
    bootstrap, is_from_next, real_dlsym, real_dlvsym,
};
use crate::{env, log, process, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

static DROP_DEEPBIND: AtomicU8 = AtomicU8::new(0);

/// What becomes of a call, in the two registers of a result.
#[repr(C)]
struct Next {
    /// For `dlsym` 0: go on; 1: answer NULL; else the answer. For `dlvsym` 0: go on; else the answer. For `dlopen` the mode.
    word: usize,
    /// The function to go on with.
    function: *mut c_void,
}

const PASS: usize = 0;
const NULL: usize = 1;

unsafe extern "C" fn filter(
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> Next {
    let real = bootstrap(&REAL_DLSYM, c"dlsym");
    let pass = |function| Next {
        word: PASS,
        function,
    };
    let null = Next {
        word: NULL,
        function: real,
    };
    // What is behind the caller, the C library finds by the caller's address, which a neighbour may not leave it.
    let is_next = handle == libc::RTLD_NEXT;
    let neighbour = || DLSYM.for_call(real, c"dlsym", caller);
    let next = || {
        Some(neighbour)
            .filter(|_| !is_next)
            .and_then(|ask| ask())
            .unwrap_or(real)
    };
    // SAFETY: the caller passes a C string, so a byte follows each that is not zero.
    let may_be_ours = !name.is_null()
        && unsafe { *name == b'c'.cast_signed() && *name.add(1) == b'u'.cast_signed() };
    if !may_be_ours {
        return pass(next());
    }
    // SAFETY: as above.
    let wanted = unsafe { CStr::from_ptr(name) };
    let row = ROWS.iter().find(|row| row.symbol == wanted.to_bytes());
    let Some(row) = row.filter(|_| !process::disabled()) else {
        return pass(next());
    };
    if is_next {
        // The C library finds our function also where it would lead to nothing. A neighbour is not asked: it may be the
        // one that asks.
        let has_driver = row.resolved() || !driver::handle().is_null();
        let leads = has_driver || !real_dlsym(handle, wanted).is_null();
        return if leads { pass(real) } else { null };
    }
    if is_from_next(caller, wanted) {
        return pass(real);
    }
    let found = real_dlsym(handle, wanted);
    if found.is_null() {
        return pass(real);
    }
    if found == row.detour() {
        // The global scope begins with this library. Behind it there may be no driver at all, and
        // glibc's answer to that, with its dlerror, is the right one.
        if row.resolve().is_null() {
            real_dlsym(libc::RTLD_NEXT, wanted);
            return null;
        }
    } else if !driver::has(found) {
        // A library before this one answers by what is behind it.
        if !elf::is_before_own(found) {
            process::guarded(|| {
                sys::keeping_errno(|| proc_address::note_another(wanted.to_bytes()));
            });
        }
        return pass(real);
    } else if row.resolve().is_null() {
        row.offer(found);
    }
    Next {
        word: row.hand_out() as usize,
        function: real,
    }
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
        "mov rdx, qword ptr [rsp + 16]",
        "sub rsp, 8",
        "call {filter}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, 1",
        "ja 2f",
        "je 3f",
        "mov rax, rdx",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "3:",
        "xor eax, eax",
        "2:",
        "ret",
        filter = sym filter,
    )
}

/// What this library exports of `dlfcn.h`.
fn of_dlfcn(name: &CStr) -> Option<usize> {
    Some(match name.to_bytes() {
        b"dlsym" => dlsym as *const () as usize,
        b"dlvsym" => dlvsym as *const () as usize,
        b"dlopen" => dlopen as *const () as usize,
        b"dlmopen" => dlmopen as *const () as usize,
        _ => return None,
    })
}

/// What an object before this one is to be given for what is behind it.
unsafe extern "C" fn before_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> Next {
    let function = real_dlvsym();
    let pass = Next {
        word: PASS,
        function,
    };
    if handle != libc::RTLD_NEXT || name.is_null() || version.is_null() {
        return pass;
    }
    // SAFETY: the caller passes C strings.
    let (name, version) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(version)) };
    let Some(word) = of_dlfcn(name) else {
        return pass;
    };
    // Of a version that glibc does not have there is no function: the error is glibc's.
    if !elf::is_before_own(caller) || process::disabled() || behind(name, version).is_null() {
        return pass;
    }
    Next { word, function }
}

/// `dlvsym`.
///
/// # Safety
/// As of `dlvsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rcx, qword ptr [rsp + 24]",
        "call {before}",
        "mov r11, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "test r11, r11",
        "je 2f",
        "jmp r11",
        "2:",
        "ret",
        before = sym before_dlvsym,
    )
}

/// Finds the next `dlopen` and counts `RTLD_DEEPBIND`.
unsafe extern "C" fn before_dlopen(
    _file: *const c_char,
    mode: c_int,
    caller: *const c_void,
) -> Next {
    let real = bootstrap(&REAL_DLOPEN, c"dlopen");
    bootstrap(&REAL_DLSYM, c"dlsym");
    let function = DLOPEN.for_call(real, c"dlopen", caller).unwrap_or(real);
    let with = |mode: c_int| Next {
        word: mode as usize,
        function,
    };
    if mode & libc::RTLD_DEEPBIND == 0 {
        return with(mode);
    }
    DEEPBIND_LOADS.fetch_add(1, Relaxed);
    if DROP_DEEPBIND.load(Relaxed) == 0 {
        DROP_DEEPBIND.store(1 + u8::from(env::no_deepbind()), Relaxed);
    }
    if DROP_DEEPBIND.load(Relaxed) == 2 && !process::disabled() {
        with(mode & !libc::RTLD_DEEPBIND)
    } else {
        with(mode)
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
        "mov rdx, qword ptr [rsp + 8]",
        "call {before}",
        "pop rdi",
        "mov esi, eax",
        "mov rax, rdx",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        before = sym before_dlopen,
    )
}

/// Finds the next `dlmopen`, and says that what is opened in another namespace is not seen.
unsafe extern "C" fn before_dlmopen(
    namespace: libc::c_long,
    _file: *const c_char,
    caller: *const c_void,
) -> *mut c_void {
    /// The namespace of the program itself.
    const BASE: libc::c_long = 0;
    let real = bootstrap(&REAL_DLMOPEN, c"dlmopen");
    bootstrap(&REAL_DLSYM, c"dlsym");
    if namespace != BASE && !process::disabled() {
        process::guarded(|| {
            log::debug(|| {
                "the program opens a library in a namespace of its own (dlmopen): GPU work of that library is not seen"
                    .to_owned()
            });
        });
    }
    DLMOPEN.for_call(real, c"dlmopen", caller).unwrap_or(real)
}

/// `dlmopen`.
///
/// # Safety
/// As of `dlmopen(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(
    namespace: libc::c_long,
    file: *const c_char,
    mode: c_int,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdx, qword ptr [rsp + 24]",
        "call {before}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2:",
        "ret",
        before = sym before_dlmopen,
    )
}
