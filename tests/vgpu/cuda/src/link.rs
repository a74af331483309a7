//! `cuLink*`: images added to a link become one image, written out as PTX text.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_abi::cuda::CUresult;

use crate::handle::Table;
use crate::image::{self, Image};
use crate::objects::current;
use crate::result::code::FILE_NOT_FOUND;
use crate::result::{CudaResult, store, store_optional};

/// One link in progress.
pub struct Link {
    image: Mutex<Image>,
    /// The result, which the application may use until it destroys the link.
    text: Mutex<Vec<u8>>,
}

static LINKS: Table<Link> = Table::new();

/// `cuLinkCreate`.
pub fn create(
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
    out: *mut *mut c_void,
) -> CudaResult {
    current::context()?;
    let link = Arc::new(Link {
        image: Mutex::default(),
        text: Mutex::default(),
    });
    // SAFETY: `out` is the caller's place for a link.
    unsafe { store(out, LINKS.add(link)) }
}

fn add(link: *mut c_void, bytes: &[u8]) -> CudaResult {
    let image = image::parse(bytes)?;
    LINKS
        .get(link)?
        .image
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .link(image);
    Ok(())
}

/// `cuLinkAddData`.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn add_data(
    link: *mut c_void,
    _kind: i32,
    data: *mut u8,
    bytes: usize,
    _name: *const c_char,
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
) -> CudaResult {
    if data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's image has `bytes` bytes.
    add(link, unsafe { std::slice::from_raw_parts(data, bytes) })
}

/// `cuLinkAddFile`.
pub fn add_file(
    link: *mut c_void,
    _kind: i32,
    path: *const c_char,
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
) -> CudaResult {
    if path.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application passes a C string.
    let path = unsafe { CStr::from_ptr(path) }
        .to_str()
        .map_err(|_| FILE_NOT_FOUND)?;
    add(link, &std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?)
}

/// `cuLinkComplete`.
pub fn complete(link: *mut c_void, out: *mut *const c_void, bytes: *mut usize) -> CudaResult {
    let link = LINKS.get(link)?;
    let text = link
        .image
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .to_ptx();
    let mut kept = link.text.lock().unwrap_or_else(PoisonError::into_inner);
    *kept = text.into_bytes();
    kept.push(0);
    // SAFETY: the first is the caller's place, the second too or null; the text lives as long as
    // the link.
    unsafe {
        store(out, kept.as_ptr().cast())?;
        store_optional(bytes, kept.len());
    }
    Ok(())
}

/// `cuLinkDestroy`.
pub fn destroy(link: *mut c_void) -> CudaResult {
    LINKS.remove(link).map(|_| ())
}
