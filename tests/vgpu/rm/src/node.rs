//! Which virtual node a path names, and how a call on it fails.

use core::ffi::{CStr, c_char, c_int};

use tidegate_vgpu::wire::Node;

use crate::next::directory;

/// Sets `errno`; -1.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the location is the calling thread's own and always valid.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The node that `path` names, when there is a virtual GPU.
///
/// # Safety
///
/// `path` is NULL or a C string.
pub(crate) unsafe fn node_of(path: *const c_char) -> Option<(Node, &'static [u8])> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let node = Node::of_path(path.to_bytes())?;
    Some((node, directory()?))
}
