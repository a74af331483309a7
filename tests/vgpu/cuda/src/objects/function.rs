//! Kernels that can be launched.

use std::ffi::{CString, c_void};
use std::sync::atomic::AtomicI32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUfunction, CUresult};
use tidegate_vgpu::ring::ARGS;

use crate::handle::{Kind, Pinned};
use crate::image::Param;
use crate::result::CudaResult;

/// A kernel that can be launched.
pub struct Function {
    /// Its name.
    pub name: CString,
    /// Its number on the ring.
    pub id: u64,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Handle of the module it is of.
    pub module: usize,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, which applications set.
    pub dynamic_shared: AtomicI32,
    /// What the launch interface of CUDA 2 set.
    pub prepared: Mutex<Prepared>,
}

impl Kind for Function {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgFUNCTI");
}

impl Function {
    /// What the launch interface of CUDA 2 set.
    pub fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the parameter buffer.
    pub fn param_bytes(&self) -> usize {
        self.params
            .iter()
            .map(|p| p.offset + p.size)
            .max()
            .unwrap_or(0)
    }

    /// The first words of the parameter buffer from what a launch was given.
    ///
    /// # Safety
    /// `params`, if not null, has a pointer to each parameter; `extra`, if not null, is a list of
    /// `CU_LAUNCH_PARAM_*` as the manual wants it.
    pub unsafe fn gather(
        &self,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CudaResult<([u64; ARGS], u32)> {
        let mut words = [0_u64; ARGS];
        let room = size_of_val(&words);
        let out = words.as_mut_ptr().cast::<u8>();
        let mut used = self.param_bytes();
        if !params.is_null() {
            for (i, param) in self.params.iter().enumerate() {
                // SAFETY: there is a pointer for each parameter.
                let from = unsafe { *params.add(i) };
                let fits = param.size.min(room.saturating_sub(param.offset));
                if !from.is_null() {
                    // SAFETY: the application's parameter has its size, and `fits` bytes at its
                    // offset are inside `words`.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from.cast::<u8>(),
                            out.add(param.offset.min(room)),
                            fits,
                        );
                    }
                }
            }
        } else if !extra.is_null() {
            // SAFETY: `extra` is a list as the manual wants it.
            let (buffer, size) = unsafe { extra_buffer(extra)? };
            used = size;
            // SAFETY: the application's buffer has `size` bytes, of which at most `room` are taken.
            unsafe { std::ptr::copy_nonoverlapping(buffer, out, size.min(room)) };
        } else if !self.params.is_empty() {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok((words, used.min(room).div_ceil(8) as u32))
    }
}

/// # Safety
/// `extra` is a list of `CU_LAUNCH_PARAM_*` keys and values that ends with a 0.
unsafe fn extra_buffer(extra: *mut *mut c_void) -> CudaResult<(*const u8, usize)> {
    const END: usize = 0;
    const BUFFER_POINTER: usize = 1;
    const BUFFER_SIZE: usize = 2;
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the list has an END, which stops this loop.
        let (key, value) = unsafe { ((*at).addr(), at.add(1)) };
        match key {
            END => break,
            // SAFETY: a key other than END has a value behind it.
            BUFFER_POINTER => buffer = unsafe { (*value).cast::<u8>().cast_const() },
            // SAFETY: as above, and this value points to a size.
            BUFFER_SIZE => size = unsafe { *(*value).cast::<usize>() },
            _ => return Err(CUresult::INVALID_VALUE),
        }
        // SAFETY: the list goes on behind the value.
        at = unsafe { at.add(2) };
    }
    if buffer.is_null() && size > 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok((buffer, size))
}

/// What the old calls have set for a function.
#[derive(Clone, Copy)]
pub struct Prepared {
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// The parameter buffer.
    pub params: [u8; ARGS * 8],
    /// Bytes of it in use.
    pub bytes: usize,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            block: [1; 3],
            shared: 0,
            params: [0; ARGS * 8],
            bytes: 0,
        }
    }
}

/// The function an application names.
pub fn named(handle: CUfunction) -> CudaResult<&'static Pinned<Function>> {
    // SAFETY: a function handle of the application, by the API's contract.
    unsafe { Pinned::<Function>::resolve(handle) }
}
