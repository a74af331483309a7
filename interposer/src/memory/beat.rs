//! What an online engine reports of its iterations: `tg_beat`.

use super::answered::answered;
use crate::clock;
use crate::process::{Process, ring};
use core::ffi::c_int;
use core::sync::atomic::Ordering::Acquire;
use tidegate_abi::page::DEVICES;
use tidegate_core::beat::Iteration;
use tidegate_core::gate::Role;

/// `tg_iteration`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Said {
    begin_ns: u64,
    end_ns: u64,
    fingerprint: u64,
    cached: u64,
    prompt: u64,
    waiting_tokens: u64,
    free_blocks: u64,
    blocks: u64,
    batch: u32,
    waiting: u32,
}
const _: () = assert!(size_of::<Said>() == 72);

/// `TG_EVERY_DEVICE`, and a batch that is not known.
const ALL: u32 = u32::MAX;

impl Said {
    fn iteration(&self, now: u64) -> Result<Iteration, c_int> {
        let end_ns = if self.end_ns == 0 { now } else { self.end_ns };
        if self.begin_ns == 0 || self.begin_ns > end_ns {
            return Err(libc::EINVAL);
        }
        Ok(Iteration {
            begin_ns: self.begin_ns,
            end_ns,
            fingerprint: self.fingerprint,
            batch: (self.batch != ALL).then_some(self.batch),
            cached: self.cached,
            prompt: self.prompt,
            waiting_tokens: self.waiting_tokens,
            waiting: self.waiting,
            free_blocks: self.free_blocks,
            blocks: self.blocks,
        })
    }
}

/// Whoever asks for iterations; `ENOTCONN`: nobody does.
fn asked(process: &Process) -> Result<u64, c_int> {
    match process.memory.beats.wanted() {
        0 => Err(libc::ENOTCONN),
        _ if process.role() != Role::Online => Err(libc::ENOTCONN),
        wanted => Ok(wanted),
    }
}

fn say(process: &Process, device: u32, done: &Iteration, wanted: u64) -> Result<(), c_int> {
    let seen = process.devices.load(Acquire);
    let devices = match usize::try_from(device) {
        _ if device == ALL => seen,
        Ok(at) if at < DEVICES => 1 << at,
        _ => return Err(libc::EINVAL),
    };
    let page = process.page();
    let session = page.header.session.load(Acquire);
    let written = process.memory.beats.write(wanted, session, devices, done);
    if written.ok_or(libc::ENOTCONN)? {
        process.bell.ring();
    }
    ring(page);
    Ok(())
}

/// `tg_beat`.
///
/// # Safety
/// `done` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_beat(device: u32, done: *const Said, size: usize) -> c_int {
    answered(|process| {
        let wanted = asked(process)?;
        if done.is_null() {
            return Ok(());
        }
        if size < size_of::<Said>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: this function's contract; a later header's struct begins as this one.
        let said = unsafe { done.read_unaligned() };
        say(process, device, &said.iteration(clock::now_ns())?, wanted)
    })
}
