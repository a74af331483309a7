//! stat, in all its forms: a device node looks like the character device it stands for.
//!
//! The real call is made on the socket (by path or by descriptor) and its answer corrected, so that
//! a GPU that is not there is not found.

use core::ffi::{c_char, c_int, c_uint};

use tidegate_vgpu::calls;
use tidegate_vgpu::wire::Node;

use crate::next::{self, Next};
use crate::node::{fail, node_of};

/// `directory/name` as a C string.
pub(crate) struct SocketPath([c_char; 128]);

impl SocketPath {
    pub(crate) const fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr()
    }
}

/// Where the socket of `node` lies, if its path fits.
pub(crate) fn socket_path(node: Node, directory: &[u8]) -> Option<SocketPath> {
    let (name, length) = calls::name_of(node);
    let mut path = SocketPath([0; 128]);
    if directory.len() + 1 + length >= path.0.len() {
        return None;
    }
    let bytes = directory.iter().chain(b"/").chain(&name[..length]);
    for (place, byte) in path.0.iter_mut().zip(bytes) {
        *place = *byte as c_char;
    }
    Some(path)
}

fn disguise(node: Node, stat: &mut libc::stat) {
    let (major, minor) = node.device();
    stat.st_mode = libc::S_IFCHR | 0o666;
    stat.st_rdev = libc::makedev(major, minor);
    stat.st_size = 0;
}

/// # Safety
///
/// `path` is a C string or NULL, `stat` is writable, `real` is a stat of a path.
unsafe fn by_path(
    path: *const c_char,
    stat: *mut libc::stat,
    real: impl Fn(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let node = unsafe { node_of(path) };
    if node.is_some_and(|(node, _)| next::hidden(node) == Some(libc::ENOENT)) {
        return fail(libc::ENOENT);
    }
    let Some((node, socket)) = node.and_then(|(node, dir)| Some((node, socket_path(node, dir)?)))
    else {
        return real(path);
    };
    let rc = real(socket.as_ptr());
    if rc == 0 {
        // SAFETY: the real call filled it.
        disguise(node, unsafe { &mut *stat });
    }
    rc
}

/// # Safety
///
/// `stat` is writable, `real` is a stat of `fd`.
unsafe fn by_fd(fd: c_int, stat: *mut libc::stat, real: impl Fn() -> c_int) -> c_int {
    let rc = real();
    if rc != 0 {
        return rc;
    }
    // SAFETY: the real call filled it.
    let stat = unsafe { &mut *stat };
    if stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
        && let Some(node) = calls::node_of_fd(fd)
    {
        disguise(node, stat);
    }
    rc
}

macro_rules! path_forms {
    ($($name:ident($($before:ident: $ty:ty)?))*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $ty,)?
            path: *const c_char,
            stat: *mut libc::stat,
        ) -> c_int {
            type Fn = unsafe extern "C" fn($($ty,)? *const c_char, *mut libc::stat) -> c_int;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            let Some(next) = NEXT.get() else { return fail(libc::ENOSYS) };
            // SAFETY: the caller's promises are libc's.
            unsafe { by_path(path, stat, |path| next($($before,)? path, stat)) }
        }
    )* };
}
path_forms!(stat() stat64() lstat() lstat64()
    __xstat(version: c_int) __xstat64(version: c_int)
    __lxstat(version: c_int) __lxstat64(version: c_int));

macro_rules! fd_forms {
    ($($name:ident($($before:ident: $ty:ty)?))*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $ty,)?
            fd: c_int,
            stat: *mut libc::stat,
        ) -> c_int {
            type Fn = unsafe extern "C" fn($($ty,)? c_int, *mut libc::stat) -> c_int;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            let Some(next) = NEXT.get() else { return fail(libc::ENOSYS) };
            // SAFETY: the caller's promises are libc's.
            unsafe { by_fd(fd, stat, || next($($before,)? fd, stat)) }
        }
    )* };
}
fd_forms!(fstat() fstat64() __fxstat(version: c_int) __fxstat64(version: c_int));

/// Whether an `*at` call is about `at` itself.
///
/// # Safety
///
/// `path` is a C string or NULL.
unsafe fn is_about_fd(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

macro_rules! at_forms {
    ($($name:ident($($before:ident: $ty:ty)?))*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $ty,)?
            at: c_int,
            path: *const c_char,
            stat: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            type Fn = unsafe extern "C" fn(
                $($ty,)? c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            let Some(next) = NEXT.get() else { return fail(libc::ENOSYS) };
            // SAFETY: the caller's promises are libc's.
            unsafe {
                if is_about_fd(path, flags) {
                    by_fd(at, stat, || next($($before,)? at, path, stat, flags))
                } else {
                    by_path(path, stat, |path| next($($before,)? at, path, stat, flags))
                }
            }
        }
    )* };
}
at_forms!(fstatat() fstatat64()
    __fxstatat(version: c_int) __fxstatat64(version: c_int));

/// # Safety
///
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    type Fn = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    static NEXT: Next<Fn> = Next::new(c"statx");
    let Some(next) = NEXT.get() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: the caller's promises are libc's; `out` is filled where the call succeeded.
    unsafe {
        let about_fd = is_about_fd(path, flags);
        let named = if about_fd { None } else { node_of(path) };
        if named.is_some_and(|(node, _)| next::hidden(node) == Some(libc::ENOENT)) {
            return fail(libc::ENOENT);
        }
        let named = named.and_then(|(node, dir)| Some((node, socket_path(node, dir)?)));
        let (rc, node) = match named {
            Some((node, socket)) => (next(at, socket.as_ptr(), flags, mask, out), Some(node)),
            None => (next(at, path, flags, mask, out), None),
        };
        if rc != 0 {
            return rc;
        }
        let is_socket = libc::mode_t::from((*out).stx_mode) & libc::S_IFMT == libc::S_IFSOCK;
        let node = node.or_else(|| {
            if about_fd && is_socket {
                calls::node_of_fd(at)
            } else {
                None
            }
        });
        if let Some(node) = node {
            let (major, minor) = node.device();
            (*out).stx_mode = (libc::S_IFCHR | 0o666) as u16;
            (*out).stx_rdev_major = major;
            (*out).stx_rdev_minor = minor;
            (*out).stx_size = 0;
        }
        0
    }
}
