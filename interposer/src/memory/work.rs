//! What a job reports of its work: useful units, and the progress of a training.

use super::answered::answered;
use crate::process::Process;
use crate::{clock, sys};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use tidegate_proto::v1::{self, client_event::Event};

/// Sent no more often than this.
const EVERY_NS: u64 = 100_000_000;
/// How long a last word is waited for, where no agent takes it.
const LAST_WORD_NS: u64 = 500_000_000;
const LOOK_NS: u64 = 2_000_000;

/// `tg_training`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Training {
    step: u64,
    steps: u64,
    begun: u64,
    tokens: u64,
    units: u64,
    units_redone: u64,
    reclaims: u64,
    layers: u32,
    resident_layers: u32,
    loss: f64,
    adapter: *const c_char,
    served: *const c_char,
}
const _: () = assert!(size_of::<Training>() == 88);

/// `tg_progress`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_progress(units: u64) -> c_int {
    answered(|process| {
        process.page().process.units.fetch_add(units, AcqRel);
        process.memory.work.units.fetch_add(units, AcqRel);
        Ok(())
    })
}

/// `tg_trainer`.
///
/// # Safety
/// `now` is null or has `size` bytes, and its texts are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_trainer(now: *const Training, size: usize) -> c_int {
    answered(|process| {
        if now.is_null() || size < size_of::<Training>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: this function's contract; a later header's struct begins as this one.
        let now = unsafe { now.read_unaligned() };
        // SAFETY: as above.
        let (adapter, served) = unsafe { (text(now.adapter), text(now.served)) };
        let said = v1::Training {
            step: now.step,
            steps: now.steps,
            begun: now.begun,
            tokens: now.tokens,
            units: now.units,
            units_redone: now.units_redone,
            reclaims: now.reclaims,
            layers: now.layers,
            resident_layers: now.resident_layers,
            loss: Some(now.loss).filter(|loss| loss.is_finite()),
            adapter,
            served,
        };
        let last = said.adapter.is_empty() && said.served.is_empty();
        let mut training = sys::lock(&process.memory.work.training);
        training.0 += 1;
        training.1 = Some(said);
        let number = training.0;
        drop(training);
        if !last {
            process.bell.ring();
            hear_out(process, number);
        }
        Ok(())
    })
}

/// Waits until the agent is told: what ends a training is often the last that its process says.
fn hear_out(process: &Process, number: u64) {
    let end = clock::now_ns() + LAST_WORD_NS;
    let told = || process.memory.work.training_sent.load(Acquire) >= number;
    while process.link.ever.load(Acquire) && !told() && clock::now_ns() < end {
        sys::sleep_ns(LOOK_NS);
    }
}

/// # Safety
/// `at` is null or a C string.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: this function's contract.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// What the agent has been told of it.
#[derive(Debug, Default)]
pub(super) struct Work {
    at_ns: u64,
    /// Units when this session began.
    before: u64,
    units: u64,
    training: Option<v1::Training>,
    /// The last that was sent. It is on its way when the reporter comes here again: it has waited in between, and what
    /// carries the stream runs then.
    sent: u64,
}

impl Work {
    /// A new session.
    pub(super) fn attach(process: &Process) -> Self {
        let before = process.memory.work.units.load(Acquire);
        Self {
            before,
            units: before,
            ..Self::default()
        }
    }

    /// Sends what is new.
    pub(super) fn deliver(&mut self, process: &Process, now: u64, send: &mut impl FnMut(Event)) {
        process
            .memory
            .work
            .training_sent
            .fetch_max(self.sent, AcqRel);
        if now.saturating_sub(self.at_ns) < EVERY_NS || !self.is_unsaid(process) {
            return;
        }
        self.at_ns = now;
        let (number, training) = sys::lock(&process.memory.work.training).clone();
        self.sent = number;
        if training != self.training {
            self.training.clone_from(&training);
            training
                .map(Event::Training)
                .into_iter()
                .for_each(&mut *send);
        }
        if process.link.stream_lane.load(Acquire) {
            self.units = process.memory.work.units.load(Acquire);
            send(Event::Progress(v1::Progress {
                units: self.units - self.before,
            }));
        }
    }

    /// Whether something is new. With a page the agent reads the units there.
    pub(super) fn is_unsaid(&self, process: &Process) -> bool {
        let streams = process.link.stream_lane.load(Acquire);
        (streams && process.memory.work.units.load(Acquire) != self.units)
            || process.memory.work.training_sent.load(Acquire)
                < sys::lock(&process.memory.work.training).0
            || sys::lock(&process.memory.work.training).1 != self.training
    }
}
