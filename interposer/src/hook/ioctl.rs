//! The process' ioctls on the driver's files: which channels it owns, and when a new one may run.
//!
//! The driver's library calls `ioctl` of libc. Every call is passed unchanged to the next `ioctl`. A call on
//! `/dev/nvidia*` is read after it succeeded, because handles are outputs. A free is applied to the graph before it is
//! forwarded, because from then on the pair may be dead. `fstat` says at each call which file a descriptor is, so there
//! is no table to keep right across dup, fork and descriptors that come from elsewhere.
//!
//! If a channel appears that no hooked call led to, the library's threads are started: work that no hook sees can still
//! be stopped.

use crate::hook::table;
use crate::process::{self, Process, process};
use crate::rm::next::next;
use crate::rm::outbox::say;
use crate::rm::request::{File, Request, bytes, decode, depends_on_layout, file_of};
use crate::rm::{trace, version};
use crate::state::objects::{GRANTS, Up};
use crate::{clock, sys};
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use tidegate_abi::rm::{self, Layout, Nvos00, Nvos54, RmApiVersion};
use tidegate_abi::uvm;
use tidegate_core::gate::{Agent, Switch, holds_schedule};
use tidegate_core::rm::{Call, Lifted, Record, uvm_register};

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
        say(process, &mut rm, records);
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
        let known = matches!(sys::lock(&process.rm).layout, Some(Layout::Known(_)));
        // SAFETY: the driver reads the same bytes, the first of which is bEnable.
        let schedule = match unsafe { (control.params as *const u8).read() } {
            0 if known => Switch::Disable,
            _ => Switch::Enable,
        };
        hold(process, control.h_client, control.h_object, schedule);
    }
    Before::Nothing
}

/// Holds a schedule call until the agent has the pair in its lists.
fn hold(process: &'static Process, client: u32, object: u32, schedule: Switch) {
    let agent = if process.link.attached.load(Acquire) {
        Agent::Attached
    } else {
        Agent::Absent
    };
    if !holds_schedule(process.role(), agent, schedule) {
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
        if now >= end || !process.link.attached.load(Acquire) {
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

/// A channel was registered with UVM by the descriptor `fd`.
fn after_uvm(process: &'static Process, fd: c_int, register: &[u8]) {
    let Some(call) = uvm_register(register) else {
        return;
    };
    let mut records = Vec::new();
    let mut rm = sys::lock(&process.rm);
    if rm.uvm.replace(fd) != Some(fd) && process.link.attached.load(Acquire) {
        process.bell.ring();
    }
    rm.graph.apply(call, &mut records);
    say(process, &mut rm, records);
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
    if trace::on() {
        // SAFETY: the caller's promise.
        unsafe { trace::write(process, (fd, file), request, argument, result) };
    }
    if file == File::Uvm {
        if request == uvm::UVM_REGISTER_CHANNEL && result == 0 {
            // SAFETY: the argument of this request on this file.
            let register = unsafe { bytes(argument as u64, size_of::<uvm::UvmRegisterChannel>()) };
            after_uvm(process, fd, register);
        }
        return;
    }
    // SAFETY: the caller's promise.
    let Some(call) = (unsafe { Request::of(request, argument) }) else {
        return;
    };
    let mut records = Vec::new();
    let mut rm = sys::lock(&process.rm);
    if let Before::Freed(lifted) = before {
        // SAFETY: the argument of a driver's request has the size in its number.
        let free = unsafe { call.read::<Nvos00>(rm::NV_ESC_RM_FREE) };
        let failed = result != 0 || free.is_none_or(|free| free.status != 0);
        if failed {
            rm.graph.put_back(lifted, &mut records);
            say(process, &mut rm, records);
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
        rm.hear(String::from_utf8_lossy(text.unwrap_or_default()).into_owned());
        return;
    }
    // SAFETY: as above.
    let depends = file == File::Control && unsafe { depends_on_layout(&call) };
    if depends && rm.driver.is_empty() && !rm.asked {
        // Nobody has asked in this process so far.
        rm.asked = true;
        if let Some(version) = version::on_file(fd) {
            rm.hear(version);
        }
    }
    let layout = rm.layout.unwrap_or(Layout::ByAnswers);
    // SAFETY: as above.
    if let Some(decoded) = unsafe { decode(layout, &call) } {
        if let (Call::Alloc { client, handle, .. }, File::Control) = (decoded, file) {
            // RM accepts a call for a client only on the file that the client was made on. What makes a
            // client names none.
            rm.files
                .insert(if client == 0 { handle } else { client }, fd);
        }
        rm.graph.apply(decoded, &mut records);
        let is_work = |record: &Record| matches!(record, Record::ChannelUp(_));
        let works = records.iter().any(is_work);
        say(process, &mut rm, records);
        drop(rm);
        if works {
            table::start_unseen(process);
        }
    }
}

#[cfg(test)]
mod tests;
