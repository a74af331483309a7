//! The driver's library: how it is loaded, how a function of it is found and called, and what it says instead
//! of success.

use std::ffi::{CStr, CString, c_int, c_void};

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

/// The driver's library, which stays loaded from then on.
pub(super) fn library() -> Result<*mut c_void> {
    // SAFETY: a constant C string; the library's constructors are the driver's own.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: dlerror returns a C string of this thread, or null.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(CudaError::Library(text.unwrap_or_default()))
}

pub(super) fn found(library: *mut c_void, name: &'static str) -> Result<*mut c_void> {
    let text = CString::new(name).map_err(|_| CudaError::Symbol(name))?;
    // SAFETY: a library that stays loaded, and a C string.
    let at = unsafe { libc::dlsym(library, text.as_ptr()) };
    if at.is_null() {
        Err(CudaError::Symbol(name))
    } else {
        Ok(at)
    }
}

/// The driver's function of this name, for who knows its signature.
///
/// # Errors
/// When there is no driver, or it has no such function.
pub fn symbol(name: &'static str) -> Result<*mut c_void> {
    found(library()?, name)
}

/// A table of functions, by their names and parameters in cuda.h.
macro_rules! driver {
    ($(#[$doc:meta])* $table:ident: $($name:ident ( $($ty:ty),* $(,)? );)*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> tidegate_abi::cuda::CUresult,)*
        }

        impl $table {
            /// Loads the driver's library.
            ///
            /// # Errors
            /// When it or one of its functions is not there.
            pub fn load() -> std::result::Result<Self, $crate::cuda::library::CudaError> {
                let library = $crate::cuda::library::library()?;
                Ok(Self {
                    $($name: {
                        let at = $crate::cuda::library::found(library, stringify!($name))?;
                        // SAFETY: the driver's function of this name has this signature in cuda.h.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> tidegate_abi::cuda::CUresult>(at) }
                    },)*
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
