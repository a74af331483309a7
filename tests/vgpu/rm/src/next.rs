//! What the shim knows: the next library's symbols, and where the virtual GPU is.
//!
//! Both are found when the library is loaded, before there are threads. A call that comes earlier,
//! from another library's constructor, looks for itself.

use core::ffi::CStr;
use core::marker::PhantomData;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::OnceLock;

/// A C string from a literal that a macro ended with NUL; checked when the shim is built.
pub(crate) const fn name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a symbol's name ends with its only NUL"),
    }
}

/// A function of the next library.
pub(crate) struct Next<F> {
    name: &'static CStr,
    at: AtomicPtr<libc::c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// `F` is the type of the C function called `name`.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        assert!(mem::size_of::<F>() == mem::size_of::<*mut libc::c_void>());
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// The function, if the next library has it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            // SAFETY: a C string; dlsym has no other precondition.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if at.is_null() {
                return None;
            }
            self.at.store(at, Ordering::Relaxed);
        }
        // SAFETY: `new` says that this name has type `F`, a function pointer of the same size.
        Some(unsafe { mem::transmute_copy::<*mut libc::c_void, F>(&at) })
    }
}

struct Directory {
    bytes: [u8; 108],
    length: usize,
}

static DIRECTORY: OnceLock<Option<Directory>> = OnceLock::new();
static LOADED: AtomicBool = AtomicBool::new(false);

fn read_directory() -> Option<Directory> {
    // SAFETY: a C string; nobody changes the environment while the library is loaded.
    let value = unsafe { libc::getenv(c"TIDEGATE_VGPU_DIR".as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv gives a C string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    let mut directory = Directory {
        bytes: [0; 108],
        length: value.len(),
    };
    directory
        .bytes
        .get_mut(..value.len())?
        .copy_from_slice(value);
    (!value.is_empty()).then_some(directory)
}

/// The directory of the virtual GPU, as the environment had it when the library was loaded.
pub(crate) fn directory() -> Option<&'static [u8]> {
    let directory = DIRECTORY.get_or_init(read_directory).as_ref()?;
    directory.bytes.get(..directory.length)
}

extern "C" fn load() {
    if !LOADED.swap(true, Ordering::Relaxed) {
        directory();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
