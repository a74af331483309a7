//! The functions for training between two steps, since 2.1.

use crate::abi::{BAD_INPUT, Coserve, LONGEST_NS, NO_HANDLE, OK, with};
use tidegate_policy::lease::train::{Between, Granted, LARGEST, Ran, Rules};

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
