//! The driver's library: how it is loaded, how a function of it is found and called, and what it says instead
//! of success.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error;
use std::ffi::c_int;
use std::sync::OnceLock;

/// What a driver call said instead of success.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("libcuda.so.1 does not load: {0}")]
    Library(String),
    /// A driver without one of the functions.
    #[error("this libcuda.so.1 has no {0}")]
    Symbol(&'static str),
    /// An error code.
    #[error("{call}: CUDA error {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// `CUresult`.
        code: c_int,
    },
}

pub(super) type Result<T = ()> = std::result::Result<T, CudaError>;

/// A handle of the driver, as a number: handles may be used from any thread.
pub type Handle = usize;

/// The driver's library, which stays loaded from then on. cudarc's own functions look it up, too, but panic where
/// it or a function is missing; here both are errors. So cudarc gives the signatures, and libloading finds the functions.
pub(super) fn library() -> Result<&'static Library> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LOADED.get() {
        return Ok(library);
    }
    // SAFETY: the library's constructors are the driver's own.
    let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        let why = error.source().map(ToString::to_string);
        CudaError::Library(why.unwrap_or_else(|| error.to_string()))
    })?;
    Ok(LOADED.get_or_init(|| library))
}

/// The driver's function of this name.
///
/// # Safety
/// `F` is the type of a pointer to it, by its signature in cuda.h.
pub(super) unsafe fn found<F: Copy>(library: &Library, name: &'static str) -> Result<F> {
    // SAFETY: the caller's.
    let function = unsafe { library.get::<F>(name) };
    function
        .map(|function| *function)
        .map_err(|_| CudaError::Symbol(name))
}

/// The driver's function of this name.
///
/// # Safety
/// `F` is the type of a pointer to it, by its signature in cuda.h.
///
/// # Errors
/// When there is no driver, or it has no such function.
pub unsafe fn function<F: Copy>(name: &'static str) -> Result<F> {
    // SAFETY: the caller's.
    unsafe { found(library()?, name) }
}

/// A table of functions, by their names and parameters in cuda.h: the compiler compares each with cudarc's. Only the
/// result is a plain number: a driver may answer what cudarc's enum of results does not list.
macro_rules! driver {
    ($(#[$doc:meta])* $table:ident: $($name:ident ( $($ty:ty),* $(,)? );)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> tidegate_abi::cuda::CUresult,)*
        }

        $(const _: unsafe fn($($ty),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;)*

        impl $table {
            /// Loads the driver's library.
            ///
            /// # Errors
            /// When it or one of its functions is not there.
            pub fn load() -> std::result::Result<Self, $crate::cuda::library::CudaError> {
                let library = $crate::cuda::library::library()?;
                Ok(Self {
                    // SAFETY: the driver's function of this name has this signature in cuda.h.
                    $($name: unsafe { $crate::cuda::library::found(library, stringify!($name))? },)*
                })
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}

/// One call, its result as an error with the function's name.
macro_rules! call {
    ($cuda:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: every pointer that this crate passes is to memory that lives through the call (or is
        // null where the function takes null), handles are the driver's own, and device addresses
        // are dereferenced by the device only.
        let result = unsafe { ($cuda.$name)($($argument),*) };
        if result.is_ok() {
            Ok(())
        } else {
            Err($crate::cuda::library::CudaError::Call { call: stringify!($name), code: result.0 })
        }
    }};
}

pub(super) use {call, driver};
