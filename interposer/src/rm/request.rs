//! One call on one of the driver's files: which file, which request, which bytes.

use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_abi::rm::{self, Layout, Xfer};
use tidegate_core::rm::Call;

/// Which of the driver's files a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`.
    Gpu,
    /// `/dev/nvidia-uvm`.
    Uvm,
    /// None of them.
    Other,
}

/// Which file `fd` is.
pub fn file_of(fd: c_int) -> File {
    let Some(rdev) = device_of(|stat| {
        // SAFETY: `stat` is live; `fstat` is libc's public one, which a preloaded device answers.
        unsafe { libc::fstat(fd, stat) }
    }) else {
        return File::Other;
    };
    if libc::major(rdev) == rm::DEVICE_MAJOR {
        return if libc::minor(rdev) == rm::CTL_MINOR {
            File::Control
        } else {
            File::Gpu
        };
    }
    // The major of nvidia-uvm is dynamic; its device node names it.
    static UVM: AtomicU64 = AtomicU64::new(0);
    let mut uvm = UVM.load(Relaxed);
    if uvm == 0 {
        uvm = device_of(|stat| {
            // SAFETY: a constant C string and a live out-parameter.
            unsafe { libc::stat(c"/dev/nvidia-uvm".as_ptr(), stat) }
        })
        .unwrap_or(0);
        UVM.store(uvm, Relaxed);
    }
    if uvm != 0 && libc::major(rdev) == libc::major(uvm) {
        File::Uvm
    } else {
        File::Other
    }
}

fn device_of(ask: impl FnOnce(*mut libc::stat) -> c_int) -> Option<libc::dev_t> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let done = ask(stat.as_mut_ptr()) == 0;
    // SAFETY: zeroed is a valid stat, and the call filled it in.
    let stat = unsafe { stat.assume_init() };
    (done && stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
}

/// One ioctl of the driver, unwrapped.
#[derive(Clone, Copy)]
pub struct Request {
    /// `NV_ESC_*`.
    pub escape: u32,
    /// Bytes of the argument.
    pub size: usize,
    /// The argument.
    pub argument: *mut c_void,
}

impl Request {
    /// The request behind `request`; `None` where it is not one of the driver's.
    ///
    /// # Safety
    /// `argument` points to what the request number says.
    pub unsafe fn of(request: c_ulong, argument: *mut c_void) -> Option<Self> {
        let escape = rm::escape_of(request)?;
        let size = rm::size_of_request(request);
        if escape != rm::NV_ESC_IOCTL_XFER_CMD || size != size_of::<Xfer>() {
            return Some(Self {
                escape,
                size,
                argument,
            });
        }
        // SAFETY: the size in the number is that of the wrapper.
        let inner = unsafe { argument.cast::<Xfer>().read_unaligned() };
        let argument = inner.ptr as *mut c_void;
        (!argument.is_null()).then_some(Self {
            escape: inner.cmd,
            size: inner.size as usize,
            argument,
        })
    }

    /// Reads the structure if the request has its size.
    ///
    /// # Safety
    /// `argument` points to `size` bytes.
    pub unsafe fn read<T: Copy>(&self, escape: u32) -> Option<T> {
        (self.escape == escape && self.size == size_of::<T>())
            // SAFETY: the caller's promise, and the size is that of T, which is plain integers.
            .then(|| unsafe { self.argument.cast::<T>().read_unaligned() })
    }
}

/// Whether what is to be read of a request depends on the driver's layouts.
///
/// # Safety
/// The request's argument has the size in its number.
pub unsafe fn depends_on_layout(call: &Request) -> bool {
    // SAFETY: the caller's promise.
    let argument = unsafe { bytes(call.argument as u64, call.size) };
    tidegate_core::rm::depends_on_layout(call.escape, argument)
}

/// What a request says of RM objects.
///
/// # Safety
/// The request's argument has the size in its number, and the driver has read what it points to.
pub unsafe fn decode(layout: Layout, call: &Request) -> Option<Call> {
    // SAFETY: the caller's promise.
    let argument = unsafe { bytes(call.argument as u64, call.size) };
    let nested = tidegate_core::rm::nested(layout, call.escape, argument);
    // SAFETY: the driver has read as much, in every branch that `layout` says.
    let parameters = nested.map_or(&[][..], |at| unsafe { bytes(at.address, at.needed) });
    tidegate_core::rm::decode(layout, call.escape, argument, parameters)
}

/// The bytes at an address.
///
/// # Safety
/// `address` is not 0 and has as many bytes, which nobody writes for as long as they are read.
pub unsafe fn bytes<'a>(address: u64, length: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(address as *const u8, length) }
}
