//! An independent check of the table: the compiler compares the signature of each row with cudarc's function of that
//! name.
//!
//! It compares the number of arguments, and for each argument its size, whether it is a pointer, and the size of what
//! it points to if both sides say that. cudarc has the functions that one version of cuda.h declares, so it lacks those
//! that this version does not have any more, or not yet. Such rows are listed by name; a listed row that cudarc does
//! have does not compile. A twin has the signature of its row. Nothing of cudarc is in the library.

use core::ffi::c_void;
use cudarc::driver::sys;
use tidegate_abi::cuda::{CUresult, CUstreamCallback};

/// How an argument or a result is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    bytes: usize,
    /// Of a pointer: bytes of what it points to; 0: it does not say.
    points_to: Option<usize>,
}

pub trait Pass {
    const AS: Passed;
}

impl<T> Pass for *const T {
    const AS: Passed = Passed {
        bytes: size_of::<Self>(),
        // Bytes, and what has no name here, stand for anything.
        points_to: Some(if size_of::<T>() == 1 {
            0
        } else {
            size_of::<T>()
        }),
    };
}

impl<T> Pass for *mut T {
    const AS: Passed = <*const T as Pass>::AS;
}

macro_rules! values {
    ($($value:ty),* $(,)?) => {
        $(impl Pass for $value {
            const AS: Passed = Passed { bytes: size_of::<Self>(), points_to: None };
        })*
    };
}

values! {
    u8, u16, i32, u32, u64, usize, Option<unsafe extern "C" fn(*mut c_void)>, CUresult, sys::CUresult, CUstreamCallback,
    sys::CUstreamCallback,
    sys::CUlimit, sys::CUmemLocation, sys::CUmemRangeHandleType, sys::CUpointer_attribute, sys::CUstreamCaptureMode,
}

/// Of a function its result and its arguments.
pub trait Signature {
    const IS: &'static [Passed];
}

macro_rules! signatures {
    ($($argument:ident)*) => {
        impl<R: Pass, $($argument: Pass),*> Signature for unsafe extern "C" fn($($argument),*) -> R {
            const IS: &'static [Passed] = &[R::AS, $($argument::AS),*];
        }
        impl<R: Pass, $($argument: Pass),*> Signature for unsafe fn($($argument),*) -> R {
            const IS: &'static [Passed] = &[R::AS, $($argument::AS),*];
        }
        signatures!(@ $($argument)*);
    };
    (@) => {};
    (@ $first:ident $($rest:ident)*) => { signatures!($($rest)*); };
}

signatures!(A B C D E F G H I J K);

pub const fn of<F: Signature + Copy>(_: F) -> &'static [Passed] {
    F::IS
}

pub const fn same(ours: &[Passed], theirs: &[Passed]) -> bool {
    let mut at = 0;
    while at < ours.len() && at < theirs.len() {
        let same = match (ours[at].points_to, theirs[at].points_to) {
            (None, None) => ours[at].bytes == theirs[at].bytes,
            (Some(ours), Some(theirs)) => ours == 0 || theirs == 0 || ours == theirs,
            _ => false,
        };
        if !same {
            return false;
        }
        at += 1;
    }
    ours.len() == theirs.len()
}

/// One row.
macro_rules! judged {
    ($name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        const _: () = {
            let ours = <unsafe extern "C" fn($($ty),*) -> CUresult as $crate::hook::judged::Signature>::IS;
            if let Some(theirs) = $crate::hook::judged::theirs!($name ($($ty),*)) {
                assert!(
                    $crate::hook::judged::same(ours, theirs),
                    concat!("cudarc has another signature of ", stringify!($name))
                );
            }
        };
    };
}

macro_rules! any_of {
    ($ty:ty) => {
        _
    };
}

pub(crate) use {any_of, judged};

macro_rules! lacking {
    ($dollar:tt $($lacking:ident)*) => {
        /// cudarc's signature of a function.
        macro_rules! theirs {
            $(($lacking $dollar types:tt) => { None::<&[$crate::hook::judged::Passed]> };)*
            ($dollar name:ident ($dollar($dollar ty:ty),*)) => {
                Some($crate::hook::judged::of(
                    cudarc::driver::sys::$dollar name as unsafe fn($dollar($crate::hook::judged::any_of!($dollar ty)),*) -> _,
                ))
            };
        }
        pub(crate) use theirs;

        const LACKING: &[&str] = &[$(stringify!($lacking)),*];

        #[allow(non_upper_case_globals)]
        mod listed {
            $(pub const $lacking: () = ();)*
        }

        /// Ambiguous, and so an error, where cudarc has one of them.
        mod lacked {
            use super::listed::*;
            #[allow(unused_imports)]
            use cudarc::driver::sys::*;
            const _: &[()] = &[$($lacking),*];
        }
    };
}

lacking! { $
    // Of CUDA 13.
    cuCtxSynchronize_v2 cuFabricCpyBatchAsync cuLaunchHostFunc_v2 cuMemDiscardAndPrefetchBatchAsync
    cuMemDiscardBatchAsync cuMemPrefetchBatchAsync cuMemcpy3DBatchAsync_v2 cuMemcpy3DWithAttributesAsync
    cuMemcpyBatchAsync_v2 cuMemcpyWithAttributesAsync cuStreamBeginRecaptureToGraph
    // Older than the oldest that is still declared.
    cuCtxCreate cuCtxDestroy cuCtxPopCurrent cuCtxPushCurrent cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset
    cuEventDestroy cuGetProcAddress cuMemHostRegister cuStreamBatchMemOp cuStreamBeginCapture cuStreamDestroy
    cuStreamWaitValue32 cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64
}

/// P-EQUIPMENT-15: the signatures of the hook table equal cudarc's, and the rows that cudarc lacks are listed.
#[test]
fn a_row_that_cudarc_lacks_is_a_row() {
    let has = |name: &&str| {
        super::table::ROWS
            .iter()
            .any(|row| row.symbol == name.as_bytes())
    };
    let none: Vec<_> = LACKING.iter().filter(|name| !has(name)).collect();
    assert!(none.is_empty(), "no rows: {none:?}");
}

#[test]
fn another_signature_is_seen() {
    type Ours = unsafe extern "C" fn(*mut u64, usize) -> CUresult;
    let ours = <Ours as Signature>::IS;
    let of = |theirs: &[Passed]| same(ours, theirs);
    assert!(of(
        <unsafe fn(*mut u64, u64) -> sys::CUresult as Signature>::IS
    ));
    assert!(!of(
        <unsafe fn(*mut u64, u32) -> sys::CUresult as Signature>::IS
    ));
    assert!(!of(
        <unsafe fn(*mut u32, u64) -> sys::CUresult as Signature>::IS
    ));
    assert!(!of(<unsafe fn(u64, u64) -> sys::CUresult as Signature>::IS));
    assert!(!of(<unsafe fn(*mut u64) -> sys::CUresult as Signature>::IS));
}
