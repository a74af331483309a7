//! What the shim knows: the next library's symbols, where the virtual GPU is, and which of its nodes this
//! process does not see.
//!
//! Both are found when the library is loaded, before there are threads. A call that comes earlier,
//! from another library's constructor, looks for itself.

use core::ffi::{CStr, c_int};
use core::marker::PhantomData;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::OnceLock;

use tidegate_vgpu::wire::Node;

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

/// A variable of the environment.
struct Variable {
    bytes: [u8; 108],
    length: usize,
}

impl Variable {
    fn read(name: &CStr) -> Option<Self> {
        // SAFETY: a C string; nobody changes the environment while the library is loaded.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: getenv gives a C string.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        let mut variable = Self {
            bytes: [0; 108],
            length: value.len(),
        };
        variable
            .bytes
            .get_mut(..value.len())?
            .copy_from_slice(value);
        (!value.is_empty()).then_some(variable)
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }
}

static DIRECTORY: OnceLock<Option<Variable>> = OnceLock::new();
static HIDDEN: OnceLock<Option<Variable>> = OnceLock::new();
static LOADED: AtomicBool = AtomicBool::new(false);

/// The directory of the virtual GPU, as the environment had it when the library was loaded.
pub(crate) fn directory() -> Option<&'static [u8]> {
    let directory = DIRECTORY.get_or_init(|| Variable::read(c"TIDEGATE_VGPU_DIR"));
    directory.as_ref()?.bytes()
}

/// With what number opening `node` fails in this process, as in a container that was given only some of the
/// machine's GPUs: `TIDEGATE_VGPU_HIDE` is a list of names, `nvidia1:2,nvidiactl:13`.
pub(crate) fn hidden(node: Node) -> Option<c_int> {
    let hidden = HIDDEN.get_or_init(|| Variable::read(c"TIDEGATE_VGPU_HIDE"));
    let mut rows = hidden.as_ref()?.bytes()?.split(|&byte| byte == b',');
    rows.find_map(|row| {
        let colon = row.iter().position(|&byte| byte == b':')?;
        let (name, number) = row.split_at(colon);
        let number = str::from_utf8(number.get(1..)?).ok()?.parse().ok()?;
        (Node::of_name(name) == Some(node)).then_some(number)
    })
}

extern "C" fn load() {
    if !LOADED.swap(true, Ordering::Relaxed) {
        directory();
        hidden(Node::Ctl);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
