//! Green contexts: a part of a device's multiprocessors.

use super::context::NON_BLOCKING;
use super::library::{Handle, Result, call, driver};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use tidegate_abi::cuda::{CUdevice, CUgreenCtx, CUstream};

driver! {
    /// The driver's functions for green contexts, since CUDA 12.5.
    Green:
    cuDeviceGetDevResource(CUdevice, *mut Resource, c_int);
    cuDevSmResourceSplitByCount(*mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
    cuDevResourceGenerateDesc(*mut *mut c_void, *mut Resource, c_uint);
    cuGreenCtxCreate(*mut CUgreenCtx, *mut c_void, CUdevice, c_uint);
    cuGreenCtxStreamCreate(*mut CUstream, CUgreenCtx, c_uint, c_int);
}

/// `CUdevResource`: its type, the driver's own bytes, and, of type SM, the number of multiprocessors.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Resource {
    kind: c_int,
    own: [c_int; 23],
    count: c_uint,
    rest: [c_int; 11],
}
const _: () = assert!(size_of::<Resource>() == 144);

/// `CU_DEV_RESOURCE_TYPE_SM` and `CU_GREEN_CTX_DEFAULT_STREAM`.
const SM: c_int = 1;
const DEFAULT_STREAM: c_uint = 1;

impl Green {
    /// Multiprocessors (SMs) of a device.
    ///
    /// # Errors
    /// The driver's; so below.
    pub fn multiprocessors(&self, device: CUdevice) -> Result<u32> {
        Ok(self.all(device)?.count)
    }

    fn all(&self, device: CUdevice) -> Result<Resource> {
        let mut all = Resource::NONE;
        call!(self, cuDeviceGetDevResource(device, &raw mut all, SM))?;
        Ok(all)
    }

    /// A stream of a new green context of at least `least` multiprocessors, and how many it has.
    pub fn stream(&self, device: CUdevice, least: u32) -> Result<(Handle, u32)> {
        let all = self.all(device)?;
        let (mut part, mut rest, mut groups) = (Resource::NONE, Resource::NONE, 1);
        call!(
            self,
            cuDevSmResourceSplitByCount(
                &raw mut part,
                &raw mut groups,
                &raw const all,
                &raw mut rest,
                0,
                least
            )
        )?;
        let (mut description, mut green, mut stream) = (null_mut(), null_mut(), null_mut());
        call!(
            self,
            cuDevResourceGenerateDesc(&raw mut description, &raw mut part, 1)
        )?;
        call!(
            self,
            cuGreenCtxCreate(&raw mut green, description, device, DEFAULT_STREAM)
        )?;
        call!(
            self,
            cuGreenCtxStreamCreate(&raw mut stream, green, NON_BLOCKING, 0)
        )?;
        Ok((stream as Handle, part.count))
    }
}

impl Resource {
    const NONE: Self = Self {
        kind: 0,
        own: [0; 23],
        count: 0,
        rest: [0; 11],
    };
}
