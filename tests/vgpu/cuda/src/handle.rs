//! Handles: the opaque pointers applications hold.
//!
//! Contexts, streams, events and functions are on the launch path, so their handle is the address
//! of an object that is never given back to the allocator: a stale handle finds a retired object
//! and is refused, and no lookup is paid. Everything else is found in a [`Table`] by number.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_abi::cuda::CUresult;

use crate::result::CudaResult;

/// An object whose address is its handle.
#[repr(C)]
pub struct Pinned<T> {
    magic: AtomicU64,
    body: T,
}

/// What tells the objects of one kind from any others.
pub trait Kind: 'static {
    /// Stands at the start of a live object.
    const MAGIC: u64;
}

impl<T: Kind> Pinned<T> {
    /// Makes an object that lives as long as the process.
    pub fn leak(body: T) -> &'static Self {
        Box::leak(Box::new(Self {
            magic: AtomicU64::new(T::MAGIC),
            body,
        }))
    }

    /// The object behind a handle of the application.
    ///
    /// # Safety
    /// `handle` is null or was given out by this library; anything else is undefined, as it is
    /// with the real driver.
    pub unsafe fn resolve(handle: *mut c_void) -> CudaResult<&'static Self> {
        if handle.is_null() || !handle.cast::<Self>().is_aligned() {
            return Err(CUresult::INVALID_HANDLE);
        }
        // SAFETY: objects are never freed, so any handle ever given out is readable; another
        // kind's object is at least as large as the magic, which is looked at first.
        let object = unsafe { &*handle.cast::<Self>() };
        if object.magic.load(Ordering::Relaxed) == T::MAGIC {
            Ok(object)
        } else {
            Err(CUresult::INVALID_HANDLE)
        }
    }

    /// The handle given to the application.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Makes every handle to this object invalid. False if it was already.
    pub fn retire(&self) -> bool {
        self.magic.swap(0, Ordering::AcqRel) == T::MAGIC
    }

    /// Whether handles to this object are valid.
    pub fn is_live(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == T::MAGIC
    }

    /// Makes a retired object live again.
    pub fn revive(&self) {
        self.magic.store(T::MAGIC, Ordering::Release);
    }
}

impl<T> std::ops::Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

/// Objects found by number.
pub struct Table<T> {
    rows: Mutex<Option<HashMap<usize, Arc<T>>>>,
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            rows: Mutex::new(None),
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut HashMap<usize, Arc<T>>) -> R) -> R {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        f(rows.get_or_insert_default())
    }

    /// Adds an object; its handle.
    pub fn add(&self, object: Arc<T>) -> *mut c_void {
        let handle = Arc::as_ptr(&object).cast_mut().cast::<c_void>();
        self.with(|rows| rows.insert(handle.addr(), object));
        handle
    }

    /// The object behind `handle`.
    pub fn get(&self, handle: *mut c_void) -> CudaResult<Arc<T>> {
        self.with(|rows| rows.get(&handle.addr()).cloned())
            .ok_or(CUresult::INVALID_HANDLE)
    }

    /// Takes the object behind `handle` out.
    pub fn remove(&self, handle: *mut c_void) -> CudaResult<Arc<T>> {
        self.with(|rows| rows.remove(&handle.addr()))
            .ok_or(CUresult::INVALID_HANDLE)
    }
}
