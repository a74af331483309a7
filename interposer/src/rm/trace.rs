//! `TIDEGATE_RM_TRACE=FILE`: every ioctl on the driver's files, one line of JSON each, after it returned.
//!
//! The trace shows what a driver does: which objects a context consists of, in which order they are made, and which
//! calls a memory operation makes. Bytes are written as they are, in hexadecimal, and read elsewhere with the layouts
//! of `tidegate-abi`:
//!
//! ```text
//! {"ns":1,"pid":2,"tid":3,"fd":4,"file":"ctl","request":"0xc030462b","result":0,
//!  "escape":43,"argument":"...","parameters":"..."}
//! ```
//!
//! The file is opened, appended to and closed for each line. So no descriptor of ours stays in the application's table,
//! and a process that is killed has written everything that it did.

use super::request::{File, Request, bytes};
use crate::process::Process;
use crate::{clock, env, sys};
use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tidegate_abi::rm::Layout;
use tidegate_abi::uvm;
use tidegate_core::rm::nested;

/// Longest argument or parameters written; what is longer is cut.
const MOST: usize = 544;

static ON: AtomicU32 = AtomicU32::new(2);

/// Whether `TIDEGATE_RM_TRACE` is set.
pub fn on() -> bool {
    match ON.load(Relaxed) {
        2 => {
            let on = env::rm_trace().is_some();
            ON.store(u32::from(on), Relaxed);
            on
        }
        on => on == 1,
    }
}

/// Whether `request` may be one of `/dev/nvidia-uvm`, whose numbers are small.
pub const fn is_uvm(request: c_ulong) -> bool {
    request < 256 || request == uvm::UVM_INITIALIZE || request == uvm::UVM_DEINITIALIZE
}

/// Bytes of a UVM request's argument that are safe to read.
const fn uvm_bytes(request: c_ulong) -> usize {
    match request {
        uvm::UVM_INITIALIZE => size_of::<uvm::UvmInitialize>(),
        uvm::UVM_MM_INITIALIZE => size_of::<uvm::UvmMmInitialize>(),
        uvm::UVM_REGISTER_GPU => size_of::<uvm::UvmRegisterGpu>(),
        uvm::UVM_REGISTER_GPU_VASPACE => size_of::<uvm::UvmRegisterGpuVaspace>(),
        uvm::UVM_REGISTER_CHANNEL => size_of::<uvm::UvmRegisterChannel>(),
        uvm::UVM_CREATE_EXTERNAL_RANGE => size_of::<uvm::UvmCreateExternalRange>(),
        uvm::UVM_UNMAP_EXTERNAL => size_of::<uvm::UvmUnmapExternal>(),
        // Base, length and offset; or base and length.
        uvm::UVM_MAP_EXTERNAL_ALLOCATION => 24,
        uvm::UVM_FREE | uvm::UVM_VALIDATE_VA_RANGE => 16,
        _ => 0,
    }
}

fn hex(line: &mut String, bytes: &[u8]) {
    for byte in &bytes[..bytes.len().min(MOST)] {
        // Writing to a string cannot fail.
        let _ = write!(line, "{byte:02x}");
    }
}

/// Appends one line.
///
/// # Safety
/// `argument` is what `request` says on a file of this kind, and the driver has seen it.
pub unsafe fn write(
    process: &Process,
    (fd, file): (c_int, File),
    request: c_ulong,
    argument: *mut c_void,
    result: c_int,
) {
    let Some(path) = env::rm_trace() else { return };
    let name = match file {
        File::Control => "ctl",
        File::Gpu => "gpu",
        File::Uvm => "uvm",
        File::Other => return,
    };
    let mut line = format!(
        "{{\"ns\":{},\"pid\":{},\"tid\":{},\"fd\":{fd},\"file\":\"{name}\",\"request\":\"{request:#x}\",\"result\":{result}",
        clock::now_ns(),
        std::process::id(),
        sys::gettid(),
    );
    if file == File::Uvm {
        line.push_str(",\"argument\":\"");
        // SAFETY: the argument of this request has at least as many bytes in every branch.
        hex(&mut line, unsafe {
            bytes(argument as u64, uvm_bytes(request))
        });
    } else {
        // SAFETY: the caller's promise.
        let Some(call) = (unsafe { Request::of(request, argument) }) else {
            return;
        };
        // SAFETY: as above; XFER's inner size is that of its argument.
        let argument = unsafe { bytes(call.argument as u64, call.size.min(MOST)) };
        let _ = write!(line, ",\"escape\":{},\"argument\":\"", call.escape);
        hex(&mut line, argument);
        let layout = sys::lock(&process.rm).layout.unwrap_or(Layout::ByAnswers);
        if let Some(at) = nested(layout, call.escape, argument)
            && at.succeeded
            && result == 0
        {
            let mut copy = [0; MOST];
            let length = at.said.max(at.needed).min(MOST);
            line.push_str("\",\"parameters\":\"");
            match sys::copy_own(at.address, &mut copy[..length]) {
                // SAFETY: the driver has read as much there.
                0 => hex(&mut line, unsafe { bytes(at.address, at.needed) }),
                copied => hex(&mut line, &copy[..copied]),
            }
        }
    }
    line.push_str("\"}\n");
    append(path, line.as_bytes());
}

fn append(path: &CStr, line: &[u8]) {
    // SAFETY: a C string that lives as long as the environment, and bytes that outlive the call.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        let fd = libc::open(path.as_ptr(), flags, 0o600);
        if fd >= 0 {
            libc::write(fd, line.as_ptr().cast(), line.len());
            libc::close(fd);
        }
    }
}
