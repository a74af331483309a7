//! Green contexts: a part of a device's multiprocessors.

use super::context::NON_BLOCKING;
use super::library::{Handle, Result, call, driver};
use cudarc::driver::sys::{
    CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUgreenCtx, CUstream,
};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr::null_mut;

driver! {
    /// The driver's functions for green contexts, since CUDA 12.5.
    Green:
    cuDeviceGetDevResource(CUdevice, *mut CUdevResource, CUdevResourceType);
    cuDevSmResourceSplitByCount(*mut CUdevResource, *mut c_uint, *const CUdevResource, *mut CUdevResource, c_uint, c_uint);
    cuDevResourceGenerateDesc(*mut CUdevResourceDesc, *mut CUdevResource, c_uint);
    cuGreenCtxCreate(*mut CUgreenCtx, CUdevResourceDesc, CUdevice, c_uint);
    cuGreenCtxStreamCreate(*mut CUstream, CUgreenCtx, c_uint, c_int);
}

/// `CUdevResource`: its type, the driver's own bytes, and, of type SM, the number of multiprocessors. Its type is a
/// plain number, since the driver writes it: a newer one may know more types than cudarc's enum.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Resource {
    kind: c_int,
    own: [c_int; 23],
    count: c_uint,
    rest: [c_int; 11],
}
const _: () = assert!(size_of::<Resource>() == size_of::<CUdevResource>());
const _: () = assert!(offset_of!(Resource, count) == offset_of!(CUdevResource, __bindgen_anon_1));

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
/// `CU_GREEN_CTX_DEFAULT_STREAM`.
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
        call!(
            self,
            cuDeviceGetDevResource(device, (&raw mut all).cast(), SM)
        )?;
        Ok(all)
    }

    /// A stream of a new green context of at least `least` multiprocessors, and how many it has.
    pub fn stream(&self, device: CUdevice, least: u32) -> Result<(Handle, u32)> {
        let all = self.all(device)?;
        let (mut part, mut rest, mut groups) = (Resource::NONE, Resource::NONE, 1);
        call!(
            self,
            cuDevSmResourceSplitByCount(
                (&raw mut part).cast(),
                &raw mut groups,
                (&raw const all).cast(),
                (&raw mut rest).cast(),
                0,
                least
            )
        )?;
        let (mut description, mut green, mut stream) = (null_mut(), null_mut(), null_mut());
        call!(
            self,
            cuDevResourceGenerateDesc(&raw mut description, (&raw mut part).cast(), 1)
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
