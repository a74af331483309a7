//! libvgpu_rm.so: answers for /dev/nvidia* by asking the device process.
//!
//! Preloaded, last, into every process that shall see the virtual GPU, the agent included. A path
//! of a device node opens a connection to the device process in `TIDEGATE_VGPU_DIR`; an ioctl, stat
//! or mmap of such a descriptor is recognised by the name of the socket at its other end, so there
//! is no table that dup, fork or a passed descriptor could outdate. dup, fcntl and close need
//! nothing: to the kernel the connection is the open file. Everything else goes to the next
//! library, with `errno` as that left it.
//!
//! Nothing here allocates, locks or keeps state but the resolved symbols and the directory, both
//! set when the library is loaded, and what each thread last read off the clock.

mod next;
mod node;
mod reading;
mod stat;

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use core::mem;

use next::Next;
use node::{fail, node_of};
use tidegate_abi::rm;
use tidegate_vgpu::calls::{self, Entry};
use tidegate_vgpu::clock;
use tidegate_vgpu::wire::Node;

fn open_node(node: Node, directory: &[u8], flags: c_int) -> c_int {
    if let Some(errno) = next::hidden(node) {
        return fail(errno);
    }
    match calls::open(directory, node, flags & libc::O_CLOEXEC != 0) {
        Ok(fd) => fd,
        Err(errno) => fail(errno),
    }
}

type OpenFn = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type OpenAtFn = unsafe extern "C" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int;

macro_rules! open_forms {
    ($($name:ident)*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            flags: c_int,
            mode: libc::mode_t,
        ) -> c_int {
            static NEXT: Next<OpenFn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            // SAFETY: the caller's promises are libc's.
            unsafe {
                match node_of(path) {
                    Some((node, directory)) => open_node(node, directory, flags),
                    None => NEXT.get().map_or_else(|| fail(libc::ENOSYS), |f| f(path, flags, mode)),
                }
            }
        }
    )* };
}
open_forms!(open open64 __open_2 __open64_2);

macro_rules! openat_forms {
    ($($name:ident)*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: libc::mode_t,
        ) -> c_int {
            static NEXT: Next<OpenAtFn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            // SAFETY: the caller's promises are libc's.
            unsafe {
                match node_of(path) {
                    Some((node, directory)) => open_node(node, directory, flags),
                    None => {
                        NEXT.get().map_or_else(|| fail(libc::ENOSYS), |f| f(at, path, flags, mode))
                    }
                }
            }
        }
    )* };
}
openat_forms!(openat openat64 __openat_2 __openat64_2);

macro_rules! creat_forms {
    ($($name:ident)*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: libc::mode_t) -> c_int {
            type Fn = unsafe extern "C" fn(*const c_char, libc::mode_t) -> c_int;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            // SAFETY: the caller's promises are libc's.
            unsafe {
                match node_of(path) {
                    Some((node, directory)) => open_node(node, directory, 0),
                    None => NEXT.get().map_or_else(|| fail(libc::ENOSYS), |f| f(path, mode)),
                }
            }
        }
    )* };
}
creat_forms!(creat creat64);

/// The requests that a device node may get; others are not worth a look at the descriptor.
const fn is_ours(request: c_ulong) -> bool {
    rm::escape_of(request).is_some()
        || request < 0x100
        || request == tidegate_abi::uvm::UVM_INITIALIZE
        || request == tidegate_abi::uvm::UVM_DEINITIALIZE
}

/// Whether `request` may carry a `FIFO_DISABLE_CHANNELS`.
const fn may_disable(request: c_ulong) -> bool {
    request == rm::request(rm::NV_ESC_RM_CONTROL, mem::size_of::<rm::Nvos54>())
        || request == rm::request(rm::NV_ESC_IOCTL_XFER_CMD, mem::size_of::<rm::Xfer>())
}

/// The system's clock; what a thread reads off `CLOCK_MONOTONIC` is remembered for its next ioctl.
///
/// # Safety
///
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, now: *mut libc::timespec) -> c_int {
    type Fn = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    static NEXT: Next<Fn> = Next::new(c"clock_gettime");
    // SAFETY: the caller's promises are libc's; after a success there is a time behind `now`.
    unsafe {
        let result = NEXT
            .get()
            .map_or_else(|| fail(libc::ENOSYS), |f| f(clock, now));
        if result == 0 && clock == libc::CLOCK_MONOTONIC {
            reading::note(now.read());
        }
        result
    }
}

/// # Safety
///
/// As in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    type Fn = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
    static NEXT: Next<Fn> = Next::new(c"ioctl");
    // The instant that the gate latency is measured to, so it comes before everything else.
    let entry = if may_disable(request) {
        let read_ns = reading::last_but_one();
        let at_ns = clock::now_ns();
        Entry { at_ns, read_ns }
    } else {
        Entry::default()
    };
    // Callers with an `int` request sign-extend it.
    let request = if request >> 32 == 0xffff_ffff {
        request & 0xffff_ffff
    } else {
        request
    };
    if is_ours(request)
        && let Some(node) = calls::node_of_fd(fd)
    {
        // SAFETY: the caller's promises are the driver's.
        return match unsafe { calls::ioctl(fd, node, request, arg as u64, entry) } {
            Ok(value) => value,
            Err(errno) => fail(errno),
        };
    }
    // SAFETY: the caller's promises are libc's.
    NEXT.get()
        .map_or_else(|| fail(libc::ENOSYS), |f| unsafe { f(fd, request, arg) })
}

macro_rules! mmap_forms {
    ($($name:ident)*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: libc::off_t,
        ) -> *mut c_void {
            type Fn = unsafe extern "C" fn(
                *mut c_void,
                usize,
                c_int,
                c_int,
                c_int,
                libc::off_t,
            ) -> *mut c_void;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && calls::node_of_fd(fd).is_some() {
                let (at, length, offset) = (address as u64, length as u64, offset as u64);
                // SAFETY: the caller's promises are mmap's.
                let mapped = unsafe { calls::mmap(fd, at, length, prot, flags, offset) };
                return mapped.unwrap_or_else(|errno| {
                    fail(errno);
                    libc::MAP_FAILED
                });
            }
            match NEXT.get() {
                // SAFETY: the caller's promises are libc's.
                Some(f) => unsafe { f(address, length, prot, flags, fd, offset) },
                None => {
                    fail(libc::ENOSYS);
                    libc::MAP_FAILED
                }
            }
        }
    )* };
}
mmap_forms!(mmap mmap64);

macro_rules! access_forms {
    ($($name:ident($($before:ident: $before_ty:ty)?; $($after:ident: $after_ty:ty)?))*) => { $(
        /// # Safety
        ///
        /// As in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $before_ty,)?
            path: *const c_char,
            mode: c_int
            $(, $after: $after_ty)?
        ) -> c_int {
            type Fn = unsafe extern "C" fn(
                $($before_ty,)? *const c_char, c_int $(, $after_ty)?) -> c_int;
            static NEXT: Next<Fn> = Next::new(next::name(concat!(stringify!($name), "\0")));
            let Some(next) = NEXT.get() else { return fail(libc::ENOSYS) };
            // SAFETY: the caller's promises are libc's; the socket's path is a C string.
            unsafe {
                let node = node_of(path);
                if let Some(errno) = node.and_then(|(node, _)| next::hidden(node)) {
                    return fail(errno);
                }
                match node.and_then(|(node, directory)| stat::socket_path(node, directory)) {
                    Some(socket) => {
                        next($($before,)? socket.as_ptr(), mode & !libc::X_OK $(, $after)?)
                    }
                    None => next($($before,)? path, mode $(, $after)?),
                }
            }
        }
    )* };
}
access_forms!(access(;) faccessat(at: c_int; flags: c_uint));
