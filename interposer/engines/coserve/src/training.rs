//! The functions for training between two steps, since 2.1; which blocks leave, since 2.2.

use crate::abi::{BAD_INPUT, Coserve, LONGEST_NS, NO_HANDLE, OK, with};
use tidegate_policy::lease::train::{Between, Granted, Held, LARGEST, Ran, Rules, leaves};

/// From now on samples ride, by these rules.
///
/// # Safety
/// `at` is null, or a handle that no other thread uses; `rules` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_trains(at: *mut Coserve, rules: *const Rules) -> i32 {
    // SAFETY: the caller's promise.
    let Some(rules) = (unsafe { rules.as_ref() }) else {
        return NO_HANDLE;
    };
    if rules.reserved != 0 || rules.strict > 1 || rules.activations == 0 || rules.chunk > LARGEST {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            coserve.training.bound(*rules);
            coserve.ride.in_pieces(rules.chunk);
            OK
        })
    }
}

/// What may be trained before the next step.
///
/// # Safety
/// As of [`tg_coserve_trains`]; the other pointers are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_grant(
    at: *mut Coserve,
    ask: *const Between,
    out: *mut Granted,
) -> i32 {
    // SAFETY: the caller's promise.
    let (Some(ask), Some(out)) = (unsafe { ask.as_ref() }, unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = Granted::default();
    if ask.now_ns > LONGEST_NS || ask.kind > 4 {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            *out = coserve.training.grant(ask, &mut coserve.ride);
            OK
        })
    }
}

/// A unit is over.
///
/// # Safety
/// As of [`tg_coserve_trains`]; `ran` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_unit_ran(at: *mut Coserve, ran: *const Ran) -> i32 {
    // SAFETY: the caller's promise.
    let Some(ran) = (unsafe { ran.as_ref() }) else {
        return NO_HANDLE;
    };
    let rows = (1..=LARGEST).contains(&ran.rows);
    if ran.ns > LONGEST_NS || !(1..=4).contains(&ran.kind) || !rows {
        return BAD_INPUT;
    }
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |coserve| {
            coserve.training.ran(ran, &mut coserve.ride);
            OK
        })
    }
}

/// Which of the `count` samples gives its blocks to a user's request: its place in `out`, or `count`.
///
/// # Safety
/// As of [`tg_coserve_trains`]; `held` is null or has `count` samples, `out` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_coserve_leaves(
    at: *mut Coserve,
    held: *const Held,
    count: u32,
    out: *mut u32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return NO_HANDLE;
    };
    *out = count;
    if held.is_null() {
        return NO_HANDLE;
    }
    // SAFETY: the caller's promise.
    let held = unsafe { std::slice::from_raw_parts(held, count as usize) };
    // SAFETY: the caller's promise.
    unsafe {
        with(at, |_| {
            *out = leaves(held).map_or(count, |place| place as u32);
            OK
        })
    }
}
