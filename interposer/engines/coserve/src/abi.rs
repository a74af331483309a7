//! The C interface, as `include/tidegate_coserve.h` has it. Every function is total: bad input gives a code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::{Event, Iteration};
use tidegate_policy::lease::priority::{Next, Pools, Priority, Rules};
use tidegate_policy::lease::ride::{Ask, Ride, Rides, Step};
use tidegate_policy::lease::share::Shares;
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::lease::together::{Ask as Beside, Plan, STEPS, Together};
use tidegate_policy::lease::train::Training;

/// Major times 65,536, and minor: a caller of one major goes on with each of its minors that is no lower than its own.
pub const VERSION: u32 = 0x0002_0002;

/// Done.
pub const OK: i32 = 0;
/// A null pointer, or no handle of ours.
pub const NO_HANDLE: i32 = -1;
/// A number that makes no sense.
pub const BAD_INPUT: i32 = -2;
/// A fault of the library's: the handle is not to be used any more.
pub const FAULT: i32 = -3;
/// There is no room for another.
pub const FULL: i32 = -4;

/// "coserve", to tell a handle from something else.
const MARK: u64 = 0x0063_6f73_6572_7665;
/// A turn of a job of weight one, ns: about a unit of training.
const QUANTUM_NS: u64 = 10_000_000;
/// A time above this is not one: a year in ns.
pub(crate) const LONGEST_NS: u64 = 31_536_000_000_000_000;

/// What is promised and how training is bounded.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Config {
    /// 1: shares, in ten-thousandths of what it takes alone. 2: times.
    pub kind: u32,
    /// To first token, a share.
    pub ttft_share: u32,
    /// Per further token, a share.
    pub tpot_share: u32,
    /// Of a thousand users so many may be late; with times.
    pub late_permille: u32,
    /// To first token, ns.
    pub ttft_ns: u64,
    /// Per further token, ns.
    pub tpot_ns: u64,
    /// Left unused of a time, in thousandths.
    pub margin_permille: u32,
    /// Tokens of one pass; see [`Rules`].
    pub batch_tokens: u32,
    /// Activations that may await their backward, tokens.
    pub activations: u32,
    /// Decodes in a row before a prompt that waits is read.
    pub admit_every: u32,
}

/// What happened to a user's request, or to the GPU.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Seen {
    /// 1: it arrived. 2: first token, after `a` ns. 3: ended, first token after `a` ns and each further one after `b`.
    /// 4: users came back after `a` ns and waited `b` ns for background work.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Which.
    pub request: u64,
    /// See `kind`.
    pub a: u64,
    /// See `kind`.
    pub b: u64,
}

/// A pass, and what may run beside it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pass {
    /// Of its shape.
    pub fingerprint: u64,
    /// Cached tokens.
    pub cached: u64,
    /// Requests that decode.
    pub batch: u32,
    /// Prompt tokens.
    pub prompt: u32,
    /// Training tokens that may go forward.
    pub forward: u32,
    /// Zero.
    pub reserved: u32,
    /// Now, ns.
    pub now_ns: u64,
    /// What it took, ns; read by `tg_coserve_ran`.
    pub took_ns: u64,
    /// What was trained meanwhile takes alone, ns; read by `tg_coserve_ran`.
    pub trained_ns: u64,
}

/// A plan for training beside a pass.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Planned {
    /// Training tokens in it.
    pub fused: u32,
    /// Steps of the partition for the trainer.
    pub trainer: u32,
}

/// What there is to do in one process, and what is next: in the order of `Pools` and of `Next`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Turn {
    /// Requests that decode.
    pub decodes: u32,
    /// Prompt tokens that wait; then, prompt tokens of a pass.
    pub prompt: u32,
    /// Training tokens that wait for their forward; then, those of a pass.
    pub samples: u32,
    /// Training tokens that wait for their backward.
    pub activations: u32,
    /// 0: nothing. 1: decode. 2: a pass over prompts and samples. 3: backward.
    pub next: u32,
}

/// One engine.
#[derive(Debug)]
pub struct Coserve {
    mark: u64,
    broken: bool,
    pub(crate) ride: Ride,
    pub(crate) training: Training,
    together: Together,
    priority: Priority,
    shares: Shares,
}

fn promise(config: &Config) -> Option<Promise> {
    let time = |ns: u64| (1..=LONGEST_NS).contains(&ns);
    if config.margin_permille > 1_000 {
        return None;
    }
    match config.kind {
        1 if config.ttft_share <= 100_000 && config.tpot_share <= 100_000 => Some(Promise::Mean {
            ttft: config.ttft_share,
            tpot: config.tpot_share,
        }),
        2 if time(config.ttft_ns) && time(config.tpot_ns) && config.late_permille < 1_000 => {
            Some(Promise::Tail {
                ttft_ns: config.ttft_ns,
                tpot_ns: config.tpot_ns,
                late_permille: config.late_permille,
            })
        }
        _ => None,
    }
}

impl Coserve {
    fn new(config: &Config) -> Option<Self> {
        let leasing = Leasing {
            promise: promise(config)?,
            margin_permille: config.margin_permille,
            switch_ns: 0,
            gate_ns: 0,
            grace_ns: 0,
        };
        Some(Self {
            mark: MARK,
            broken: false,
            ride: Ride::new(leasing),
            training: Training::default(),
            together: Together::default(),
            priority: Priority::new(Rules {
                batch_tokens: config.batch_tokens,
                activations: config.activations,
                admit_every: config.admit_every,
            }),
            shares: Shares::new(QUANTUM_NS),
        })
    }

    fn see(&mut self, seen: &Seen, now_ns: u64) -> i32 {
        if seen.reserved != 0 {
            return BAD_INPUT;
        }
        let request = seen.request;
        let event = match seen.kind {
            1 => Event::Arrived { request },
            2 => Event::First {
                request,
                ttft_ns: seen.a,
            },
            3 => Event::Ended {
                request,
                ttft_ns: seen.a,
                tpot_ns: seen.b,
            },
            4 => Event::Returned {
                idle_ns: seen.a,
                gap: false,
                delayed_ns: seen.b,
            },
            _ => return BAD_INPUT,
        };
        if now_ns > LONGEST_NS || seen.a > LONGEST_NS || seen.b > LONGEST_NS {
            return BAD_INPUT;
        }
        self.ride.see(&event, now_ns);
        OK
    }

    fn beside(&mut self, pass: &Pass) -> Plan {
        let next = Iteration {
            fingerprint: pass.fingerprint,
            batch: pass.batch,
            cached: pass.cached,
            prompt: pass.prompt,
        };
        let leaser = self.ride.leaser();
        let alone_ns = leaser.predicted(&next);
        let room_ns = leaser.slack(&next, pass.now_ns) as f64;
        self.together.plan(&Beside {
            next,
            alone_ns,
            room_ns,
            forward_tokens: pass.forward,
        })
    }

    fn ran(&mut self, pass: &Pass, planned: &Planned) -> i32 {
        let times = [pass.now_ns, pass.took_ns, pass.trained_ns];
        let odd = pass.reserved != 0 || times.into_iter().any(|ns| ns > LONGEST_NS);
        if planned.trainer as usize >= STEPS || odd {
            return BAD_INPUT;
        }
        let next = Iteration {
            fingerprint: pass.fingerprint,
            batch: pass.batch,
            cached: pass.cached,
            prompt: pass.prompt,
        };
        let alone_ns = self.ride.leaser().predicted(&next);
        let plan = Plan {
            fused: planned.fused,
            trainer: planned.trainer,
            more_ns: 0.0,
        };
        let (took, trained) = (pass.took_ns as f64, pass.trained_ns as f64);
        let more = self.together.ran(plan, alone_ns, took, trained);
        self.ride.leaser().spent(more);
        OK
    }

    fn turn(&mut self, turn: &mut Turn) {
        let next = self.priority.next(Pools {
            decodes: turn.decodes,
            prompt: turn.prompt,
            samples: turn.samples,
            activations: turn.activations,
        });
        turn.next = match next {
            Next::Nothing => 0,
            Next::Decode => 1,
            Next::Forward { prompt, samples } => {
                (turn.prompt, turn.samples) = (prompt, samples);
                2
            }
            Next::Backward => 3,
        };
    }
}

/// Runs `body` on a handle; a panic in it is a code, and the handle's last.
///
/// # Safety
/// `at` is null, or what `tg_coserve_new` gave and `tg_coserve_free` has not taken, and no other thread uses it.
pub(crate) unsafe fn with(at: *mut Coserve, body: impl FnOnce(&mut Coserve) -> i32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(coserve) = (unsafe { at.as_mut() }) else {
        return NO_HANDLE;
    };
    if coserve.mark != MARK {
        return NO_HANDLE;
    }
    if coserve.broken {
        return FAULT;
    }
    let done = catch_unwind(AssertUnwindSafe(|| body(coserve)));
    done.unwrap_or_else(|_| {
        coserve.broken = true;
        FAULT
    })
}

/// The version of the interface.
#[unsafe(no_mangle)]
pub const extern "C" fn tg_coserve_version() -> u32 {
    VERSION
}

/// A handle with these settings in `out`.
///
/// # Safety
/// Both pointers are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_new(config: *const Config, out: *mut *mut Coserve) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(config), Some(out)) = (unsafe { config.as_ref() }, unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = std::ptr::null_mut();
    match catch_unwind(|| Coserve::new(config)) {
        Ok(Some(made)) => {
            *out = Box::into_raw(Box::new(made));
            OK
        }
        Ok(None) => BAD_INPUT,
        Err(_) => FAULT,
    }
}

/// Takes a handle back.
///
/// # Safety
/// As of [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_free(at: *mut Coserve) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { at.as_mut() } {
        Some(coserve) if coserve.mark == MARK => coserve.mark = 0,
        _ => return NO_HANDLE,
    }
    // SAFETY: it is what `tg_coserve_new` made of a box.
    drop(unsafe { Box::from_raw(at) });
    OK
}

/// Something happened to a user's request at `now_ns`.
///
/// # Safety
/// As of [`with`]; `seen` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_see(at: *mut Coserve, seen: *const Seen, now_ns: u64) -> i32 {
    // SAFETY: the caller's promise.
    let Some(seen) = (unsafe { seen.as_ref() }) else {
        return NO_HANDLE;
    };
    // SAFETY: the caller's promise.
    unsafe { with(at, |coserve| coserve.see(seen, now_ns)) }
}

/// How many rows of background requests ride in the next step.
///
/// # Safety
/// As of [`with`]; the other pointers are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_rides(
    at: *mut Coserve,
    ask: *const Ask,
    out: *mut Rides,
) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(ask), Some(out)) = (unsafe { ask.as_ref() }, unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = Rides::default();
    if ask.now_ns > LONGEST_NS || ask.reserved != 0 {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            *out = coserve.ride.plan(ask);
            OK
        })
    }
}

/// A step is over.
///
/// # Safety
/// As of [`with`]; `step` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_rode(at: *mut Coserve, step: *const Step) -> i32 {
    // SAFETY: the caller's promise.
    let Some(step) = (unsafe { step.as_ref() }) else {
        return NO_HANDLE;
    };
    if step.took_ns > LONGEST_NS || step.now_ns > LONGEST_NS || step.interval_ns > LONGEST_NS {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            coserve.ride.ran(step);
            coserve.training.stepped();
            OK
        })
    }
}

/// What is trained beside a pass.
///
/// # Safety
/// As of [`with`]; the other pointers are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_beside(
    at: *mut Coserve,
    pass: *const Pass,
    out: *mut Planned,
) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(pass), Some(out)) = (unsafe { pass.as_ref() }, unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = Planned::default();
    if pass.reserved != 0 || pass.now_ns > LONGEST_NS {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            let plan = coserve.beside(pass);
            *out = Planned {
                fused: plan.fused,
                trainer: plan.trainer,
            };
            OK
        })
    }
}

/// A pass with training beside it is over.
///
/// # Safety
/// As of [`with`]; the other pointers are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_ran(
    at: *mut Coserve,
    pass: *const Pass,
    planned: *const Planned,
) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(pass), Some(planned)) = (unsafe { pass.as_ref() }, unsafe { planned.as_ref() })
    else {
        return NO_HANDLE;
    };
    // SAFETY: the caller's promise.
    unsafe { with(at, |coserve| coserve.ran(pass, planned)) }
}

/// What one process that serves and trains runs next.
///
/// # Safety
/// As of [`with`]; `turn` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_next(at: *mut Coserve, turn: *mut Turn) -> i32 {
    // SAFETY: the caller's promise.
    let Some(turn) = (unsafe { turn.as_mut() }) else {
        return NO_HANDLE;
    };
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            coserve.turn(turn);
            OK
        })
    }
}

/// A job of this weight shares the GPU from now on; of weight zero, no more.
///
/// # Safety
/// As of [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_job(at: *mut Coserve, job: u64, weight: u32) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            if weight == 0 {
                coserve.shares.remove(job);
                return OK;
            }
            if coserve.shares.set(job, weight) {
                OK
            } else {
                FULL
            }
        })
    }
}

/// Whose unit is next, of the `count` jobs that are ready: its place among them in `out`, or `count`.
///
/// # Safety
/// As of [`with`]; `ready` is null or has `count` jobs, `out` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_whose(
    at: *mut Coserve,
    ready: *const u64,
    count: u32,
    out: *mut u32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = count;
    if ready.is_null() {
        return NO_HANDLE;
    }
    // SAFETY: the caller's promise.
    let ready = unsafe { std::slice::from_raw_parts(ready, count as usize) };
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            let next = coserve.shares.next(|job| ready.contains(&job));
            let place = next.and_then(|next| ready.iter().position(|job| *job == next));
            *out = place.map_or(count, |place| place as u32);
            OK
        })
    }
}

/// A unit of a job took `ns`.
///
/// # Safety
/// As of [`with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_took(at: *mut Coserve, job: u64, ns: u64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            coserve.shares.took(job, ns);
            OK
        })
    }
}
