//! The process' ioctls on the driver's files: which channels it owns, and when a new one may run.
//!
//! The driver's library calls `ioctl` of libc. Every call goes on unchanged to the next `ioctl`;
//! one on `/dev/nvidia*` is read after it succeeded, because handles are outputs, and a free is
//! taken out of the graph before it is forwarded, because from then on the pair may be dead. Which
//! file a descriptor is, `fstat` says at each call: no table to keep right across dup, fork and
//! descriptors received from elsewhere.

use crate::clock;
use crate::hook::resolve;
use crate::process::{self, Process, process};
use crate::rm::trace;
use crate::sys;
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::collections::BTreeMap;
use tidegate_abi::rm::{self, Nvos00, Nvos54, RmApiVersion, Xfer};
use tidegate_abi::uvm;
use tidegate_core::gate::{Agent, holds_schedule};
use tidegate_core::rm::{Call, Graph, Lifted, Record, uvm_register};
use tidegate_core::suspect::Reason;

/// RM objects, and what the agent has not been told.
#[derive(Debug, Default)]
pub struct Rm {
    /// What stands.
    pub graph: Graph,
    /// To the agent, in order.
    pub outbox: Vec<Up>,
    /// The application's descriptor of the control file on which each client was last seen to be used.
    pub files: BTreeMap<u32, c_int>,
    /// The descriptor of the UVM file on which channels are registered.
    pub uvm: Option<c_int>,
    /// Version of the driver, as it told the driver's library; empty before.
    pub driver: String,
    /// Tickets the agent let go.
    pub granted: Vec<u64>,
    tickets: u64,
}

/// Something for the agent.
#[derive(Clone, Debug)]
pub enum Up {
    /// The object graph changed.
    Record(Record),
    /// A schedule call waits.
    Schedule {
        /// Its number.
        ticket: u64,
        /// RM client.
        client: u32,
        /// TSG or channel.
        object: u32,
    },
    /// A device is busy for an odd reason, or no longer.
    Suspect {
        /// Ordinal.
        device: usize,
        /// The reason.
        reason: Option<Reason>,
        /// Busy since.
        since_ns: u64,
    },
    /// An edge, from a process without a page.
    Edge {
        /// Ordinal.
        device: usize,
        /// The activity word after it.
        activity: u64,
        /// When; on an idle edge when the work was proven done.
        at_ns: u64,
        /// Launches of the period that ended.
        launches: u64,
        /// Its last graph.
        graph: u64,
    },
    /// Something for the node's events.
    Note {
        /// Stable name.
        kind: &'static str,
        /// For people.
        text: String,
    },
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Futex: raised with every ticket the agent lets go.
pub static GRANTS: AtomicU32 = AtomicU32::new(0);

/// The next `ioctl`.
///
/// # Safety
/// As of `ioctl(2)`.
pub unsafe fn next(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        real = resolve::real_dlsym(libc::RTLD_NEXT, c"ioctl");
        if real.is_null() {
            sys::set_errno(libc::ENOSYS);
            return -1;
        }
        REAL.store(real, Relaxed);
    }
    // SAFETY: libc's ioctl takes its one variadic argument in the same register; the caller's own.
    unsafe { core::mem::transmute::<*mut c_void, Ioctl>(real)(fd, request, argument) }
}

/// `ioctl`.
///
/// # Safety
/// As of `ioctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let watched = rm::escape_of(request).is_some()
        || request == uvm::UVM_REGISTER_CHANNEL
        || (trace::on() && trace::is_uvm(request));
    if !watched || argument.is_null() || process::disabled() {
        // SAFETY: the caller's own arguments.
        return unsafe { next(fd, request, argument) };
    }
    // SAFETY: the request's type is the driver's; its argument is the structure its number names,
    // which is looked at only on the driver's files.
    unsafe { observed(fd, request, argument) }
}

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

fn file_of(fd: c_int) -> File {
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
    unsafe fn read<T: Copy>(&self, escape: u32) -> Option<T> {
        (self.escape == escape && self.size == size_of::<T>())
            // SAFETY: the caller's promise, and the size is that of T, which is plain integers.
            .then(|| unsafe { self.argument.cast::<T>().read_unaligned() })
    }
}

/// What is done around one ioctl.
enum Before {
    Nothing,
    Freed(Lifted),
}

/// # Safety
/// As of `ioctl(2)` on a driver file with a non-null argument.
unsafe fn observed(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let before = process::guarded(|| {
        sys::keeping_errno(|| {
            let file = file_of(fd);
            let process = match file {
                File::Other => None,
                _ => process(),
            }?;
            // SAFETY: on a driver file the argument is what the number says.
            let before = unsafe { before(process, file, request, argument) };
            Some((process, file, before))
        })
    })
    .flatten();
    // SAFETY: the caller's own arguments.
    let result = unsafe { next(fd, request, argument) };
    if let Some((process, file, before)) = before {
        process::guarded(|| {
            // SAFETY: as above; the driver has filled the structure in.
            sys::keeping_errno(|| unsafe {
                after(process, fd, file, request, argument, before, result);
            });
        });
    }
    result
}

/// # Safety
/// `argument` is what `request` says.
unsafe fn before(
    process: &'static Process,
    file: File,
    request: c_ulong,
    argument: *mut c_void,
) -> Before {
    if file == File::Uvm {
        return Before::Nothing;
    }
    // SAFETY: the caller's promise.
    let Some(call) = (unsafe { Request::of(request, argument) }) else {
        return Before::Nothing;
    };
    // SAFETY: the argument of a driver's request has the size in its number.
    if let Some(free) = unsafe { call.read::<Nvos00>(rm::NV_ESC_RM_FREE) } {
        let client = if free.h_root == 0 {
            free.h_object_old
        } else {
            free.h_root
        };
        let mut records = Vec::new();
        let mut rm = sys::lock(&process.rm);
        let lifted = rm.graph.lift(client, free.h_object_old, &mut records);
        rm.say(process, records);
        return Before::Freed(lifted);
    }
    // SAFETY: as above.
    if let Some(control) = unsafe { call.read::<Nvos54>(rm::NV_ESC_RM_CONTROL) }
        && matches!(
            control.cmd,
            rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
                | rm::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE
                | rm::NVC36F_CTRL_CMD_GPFIFO_SCHEDULE
        )
        && control.params != 0
        && control.params_size >= 1
    {
        // SAFETY: the driver reads the same bytes, the first of which is bEnable.
        let enable = unsafe { (control.params as *const u8).read() } != 0;
        hold(process, control.h_client, control.h_object, enable);
    }
    Before::Nothing
}

/// Holds a schedule call until the agent has the pair in its lists.
fn hold(process: &'static Process, client: u32, object: u32, enable: bool) {
    let agent = if process.attached.load(Acquire) {
        Agent::Attached
    } else {
        Agent::Absent
    };
    if !holds_schedule(process.role(), agent, enable) {
        return;
    }
    let ticket = {
        let mut rm = sys::lock(&process.rm);
        rm.tickets += 1;
        let ticket = rm.tickets;
        rm.outbox.push(Up::Schedule {
            ticket,
            client,
            object,
        });
        ticket
    };
    process.bell.ring();
    let limit = process.limits.schedule_hold.load(Relaxed);
    let end = clock::now_ns().saturating_add(limit);
    loop {
        let seen = GRANTS.load(Acquire);
        {
            let mut rm = sys::lock(&process.rm);
            if let Some(at) = rm.granted.iter().position(|granted| *granted == ticket) {
                rm.granted.swap_remove(at);
                return;
            }
        }
        let now = clock::now_ns();
        if now >= end || !process.attached.load(Acquire) {
            break;
        }
        sys::futex_wait(&GRANTS, seen, (end - now).min(50_000_000));
    }
    sys::lock(&process.rm).outbox.push(Up::Note {
        kind: "channel_leak",
        text: format!("client {client:#x}: schedule of {object:#x} let through ungated"),
    });
    process.bell.ring();
}

/// # Safety
/// `argument` is what `request` says, and the driver has seen it.
unsafe fn after(
    process: &'static Process,
    fd: c_int,
    file: File,
    request: c_ulong,
    argument: *mut c_void,
    before: Before,
    result: c_int,
) {
    let mut records = Vec::new();
    if trace::on() {
        // SAFETY: the caller's promise.
        unsafe { trace::write(fd, file, request, argument, result) };
    }
    if file == File::Uvm {
        if request == uvm::UVM_REGISTER_CHANNEL && result == 0 {
            // SAFETY: the argument of this request on this file.
            let register = unsafe { bytes(argument as u64, size_of::<uvm::UvmRegisterChannel>()) };
            if let Some(call) = uvm_register(register) {
                let mut rm = sys::lock(&process.rm);
                if rm.uvm.replace(fd) != Some(fd) && process.attached.load(Acquire) {
                    process.bell.ring();
                }
                rm.graph.apply(call, &mut records);
                rm.say(process, records);
            }
        }
        return;
    }
    // SAFETY: the caller's promise.
    let Some(call) = (unsafe { Request::of(request, argument) }) else {
        return;
    };
    let mut rm = sys::lock(&process.rm);
    if let Before::Freed(lifted) = before {
        // SAFETY: the argument of a driver's request has the size in its number.
        let free = unsafe { call.read::<Nvos00>(rm::NV_ESC_RM_FREE) };
        let failed = result != 0 || free.is_none_or(|free| free.status != 0);
        if failed {
            rm.graph.put_back(lifted, &mut records);
            rm.say(process, records);
        } else if let Some(free) = free
            && [0, free.h_object_old].contains(&free.h_root)
        {
            rm.files.remove(&free.h_object_old);
        }
        return;
    }
    if result != 0 {
        return;
    }
    // SAFETY: as above.
    if let Some(said) = unsafe { call.read::<RmApiVersion>(rm::NV_ESC_CHECK_VERSION_STR) } {
        let text = said.version.split(|byte| *byte == 0).next();
        rm.driver = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        return;
    }
    // SAFETY: as above.
    if let Some(decoded) = unsafe { decode(&call) } {
        if let (Call::Alloc { client, handle, .. }, File::Control) = (decoded, file) {
            // RM accepts a call for a client only on the file that the client was made on. What makes a
            // client names none.
            rm.files
                .insert(if client == 0 { handle } else { client }, fd);
        }
        rm.graph.apply(decoded, &mut records);
        rm.say(process, records);
    }
}

impl Rm {
    /// The clients that own channels, and where: the one with most of them first.
    pub fn owners(&self) -> Vec<(u32, c_int)> {
        let mut owners = self.graph.owners();
        owners.sort_by_key(|&(_, channels)| core::cmp::Reverse(channels));
        let file = |client: u32| self.files.get(&client).map(|fd| (client, *fd));
        owners
            .into_iter()
            .filter_map(|(client, _)| file(client))
            .collect()
    }

    /// Forgets a client whose file is closed, with which the driver freed it.
    pub fn drop_client(&mut self, process: &Process, client: u32) {
        let mut records = Vec::new();
        self.files.remove(&client);
        drop(self.graph.lift(client, client, &mut records));
        self.say(process, records);
    }

    /// Puts what changed into the outbox.
    fn say(&mut self, process: &Process, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        // Without an agent nobody empties the box, and the next one gets a snapshot.
        if process.attached.load(Acquire) {
            self.outbox.extend(records.into_iter().map(Up::Record));
            process.bell.ring();
        }
    }
}

/// # Safety
/// The request's argument has the size in its number, and the driver has read what it points to.
unsafe fn decode(call: &Request) -> Option<Call> {
    // SAFETY: the caller's promise.
    let argument = unsafe { bytes(call.argument as u64, call.size) };
    let nested = tidegate_core::rm::nested(call.escape, argument);
    // SAFETY: the driver has read as much, in every branch.
    let parameters = nested.map_or(&[][..], |at| unsafe { bytes(at.address, at.needed) });
    tidegate_core::rm::decode(call.escape, argument, parameters)
}

/// # Safety
/// `address` is not 0 and has as many bytes, which nobody writes for as long as they are read.
pub unsafe fn bytes<'a>(address: u64, length: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(address as *const u8, length) }
}

#[cfg(test)]
mod tests;
