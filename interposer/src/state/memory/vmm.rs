//! The driver's virtual memory management, and the few other calls that memory needs.

use crate::real::driver::functions;
use core::ffi::{c_int, c_void};
use tidegate_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream};
use tidegate_abi::vmm::{Access, Properties};

functions! {
    /// What a driver of CUDA 10.2 or later has.
    Vmm;
    /// `cuMemAddressReserve`.
    reserve = c"cuMemAddressReserve": fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    /// `cuMemAddressFree`.
    address_free = c"cuMemAddressFree": fn(CUdeviceptr, usize);
    /// `cuMemCreate`.
    create = c"cuMemCreate": fn(*mut u64, usize, *const Properties, u64);
    /// `cuMemRelease`.
    release = c"cuMemRelease": fn(u64);
    /// `cuMemMap`.
    map = c"cuMemMap": fn(CUdeviceptr, usize, usize, u64, u64);
    /// `cuMemUnmap`.
    unmap = c"cuMemUnmap": fn(CUdeviceptr, usize);
    /// `cuMemSetAccess`.
    set_access = c"cuMemSetAccess": fn(CUdeviceptr, usize, *const Access, usize);
    /// `cuMemGetAllocationGranularity`.
    granularity = c"cuMemGetAllocationGranularity": fn(*mut usize, *const Properties, c_int);
    /// `cuDeviceGetAttribute`.
    device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, CUdevice);
    /// `cuPointerGetAttribute`.
    pointer_attribute = c"cuPointerGetAttribute": fn(*mut c_void, c_int, CUdeviceptr);
    /// `cuCtxSynchronize`.
    ctx_synchronize = c"cuCtxSynchronize": fn();
    /// `cuCtxPushCurrent`.
    ctx_push = c"cuCtxPushCurrent_v2": fn(CUcontext);
    /// `cuCtxPopCurrent`.
    ctx_pop = c"cuCtxPopCurrent_v2": fn(*mut CUcontext);
    /// `cuStreamCreate`.
    stream_create = c"cuStreamCreate": fn(*mut CUstream, u32);
    /// `cuStreamSynchronize`.
    stream_synchronize = c"cuStreamSynchronize": fn(CUstream);
    /// `cuMemsetD8Async`.
    fill = c"cuMemsetD8Async": fn(CUdeviceptr, u8, usize, CUstream);
}

/// A call the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver answered {0}")]
pub struct Refused(pub c_int);

impl Refused {
    /// Whether it was for want of memory.
    pub const fn is_out_of_memory(self) -> bool {
        self.0 == CUresult::OUT_OF_MEMORY.0
    }

    /// Whether the driver refuses every further call for that context, in which nothing runs any more: it was ended or
    /// lost, or the driver is being shut down.
    pub const fn is_of_a_lost_context(self) -> bool {
        const DEINITIALIZED: c_int = 4;
        const INVALID_CONTEXT: c_int = 201;
        const ECC_UNCORRECTABLE: c_int = 214;
        const NVLINK_UNCORRECTABLE: c_int = 220;
        const ILLEGAL_ADDRESS: c_int = 700;
        const CONTEXT_IS_DESTROYED: c_int = 709;
        const ASSERT: c_int = 710;
        // A stack, an instruction, an address, an address space, a program counter, or a launch that failed.
        const HARDWARE_STACK_ERROR: c_int = 714;
        const LAUNCH_FAILED: c_int = 719;
        matches!(
            self.0,
            DEINITIALIZED
                | INVALID_CONTEXT
                | ECC_UNCORRECTABLE
                | NVLINK_UNCORRECTABLE
                | ILLEGAL_ADDRESS
                | CONTEXT_IS_DESTROYED
                | ASSERT
                | HARDWARE_STACK_ERROR..=LAUNCH_FAILED
        )
    }

    /// As the driver said it.
    pub const fn result(self) -> CUresult {
        CUresult(self.0)
    }
}

const fn check(result: CUresult) -> Result<(), Refused> {
    if result.is_ok() {
        Ok(())
    } else {
        Err(Refused(result.0))
    }
}

impl Vmm {
    /// Makes a handle.
    pub fn make(&self, properties: &Properties, bytes: u64) -> Result<u64, Refused> {
        let mut handle = 0;
        // SAFETY: the out-parameter and the properties are live for the call.
        check(unsafe { (self.create)(&raw mut handle, bytes as usize, properties, 0) })?;
        Ok(handle)
    }

    /// Gives a handle up.
    pub fn give_up(&self, handle: u64) -> Result<(), Refused> {
        // SAFETY: no pointers; the driver checks the handle.
        check(unsafe { (self.release)(handle) })
    }

    /// Reserves addresses, aligned.
    pub fn addresses(&self, bytes: u64, alignment: u64) -> Result<CUdeviceptr, Refused> {
        let mut at = 0;
        // SAFETY: the out-parameter is live for the call.
        check(unsafe { (self.reserve)(&raw mut at, bytes as usize, alignment as usize, 0, 0) })?;
        Ok(at)
    }

    /// Gives addresses up.
    pub fn forget(&self, at: CUdeviceptr, bytes: u64) -> Result<(), Refused> {
        // SAFETY: no pointers; the driver checks the range.
        check(unsafe { (self.address_free)(at, bytes as usize) })
    }

    /// Maps a whole handle, without access.
    pub fn attach(&self, at: CUdeviceptr, bytes: u64, handle: u64) -> Result<(), Refused> {
        // SAFETY: no pointers; the driver checks range and handle.
        check(unsafe { (self.map)(at, bytes as usize, 0, handle, 0) })
    }

    /// Takes whole mappings away.
    pub fn detach(&self, at: CUdeviceptr, bytes: u64) -> Result<(), Refused> {
        // SAFETY: no pointers; the driver checks the range.
        check(unsafe { (self.unmap)(at, bytes as usize) })
    }

    /// Gives devices access to what is mapped.
    pub fn open(&self, at: CUdeviceptr, bytes: u64, access: &[Access]) -> Result<(), Refused> {
        // SAFETY: the list is live for the call and as long as said.
        check(unsafe { (self.set_access)(at, bytes as usize, access.as_ptr(), access.len()) })
    }

    /// Smallest unit of handles.
    pub fn unit(&self, properties: &Properties) -> Result<u64, Refused> {
        let mut bytes = 0_usize;
        // SAFETY: the out-parameter and the properties are live for the call.
        check(unsafe { (self.granularity)(&raw mut bytes, properties, 0) })?;
        Ok(bytes as u64)
    }

    /// A device's attribute, 0 if the driver does not know it.
    pub fn attribute(&self, attribute: c_int, device: CUdevice) -> c_int {
        let mut value = 0;
        // SAFETY: the out-parameter is live for the call.
        let known = unsafe { (self.device_attribute)(&raw mut value, attribute, device) };
        if known.is_ok() { value } else { 0 }
    }

    /// Number of the buffer at an address, 0 if it has none.
    pub fn buffer_id(&self, at: CUdeviceptr) -> u64 {
        const BUFFER_ID: c_int = 7;
        let mut id = 0_u64;
        // SAFETY: the attribute is a 64-bit number, and the place for it is live for the call.
        let known = unsafe { (self.pointer_attribute)((&raw mut id).cast(), BUFFER_ID, at) };
        if known.is_ok() { id } else { 0 }
    }

    /// Runs `f` with a context current.
    pub fn within<T>(
        &self,
        context: usize,
        f: impl FnOnce() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        // SAFETY: no pointers but the handle, which the driver checks.
        check(unsafe { (self.ctx_push)(context as CUcontext) })?;
        let result = f();
        let mut popped: CUcontext = core::ptr::null_mut();
        // SAFETY: the out-parameter is live; what was pushed above is popped.
        unsafe { (self.ctx_pop)(&raw mut popped) };
        result
    }

    /// Waits for a context.
    pub fn settle(&self, context: usize) -> Result<(), Refused> {
        // SAFETY: no arguments.
        self.within(context, || check(unsafe { (self.ctx_synchronize)() }))
    }

    /// A stream of our own in a context.
    pub fn stream(&self, context: usize) -> Result<usize, Refused> {
        const NON_BLOCKING: u32 = 1;
        let mut stream: CUstream = core::ptr::null_mut();
        self.within(context, || {
            // SAFETY: the out-parameter is live for the call.
            check(unsafe { (self.stream_create)(&raw mut stream, NON_BLOCKING) })
        })?;
        Ok(stream as usize)
    }

    /// Queues a fill with zero on a stream of our own.
    pub fn zero(&self, context: usize, stream: usize, at: u64, bytes: u64) -> Result<(), Refused> {
        self.within(context, || {
            // SAFETY: the range is ours and mapped, the stream our own of that context.
            check(unsafe { (self.fill)(at, 0, bytes as usize, stream as CUstream) })
        })
    }

    /// Waits for a stream of our own.
    pub fn drain(&self, context: usize, stream: usize) -> Result<(), Refused> {
        self.within(context, || {
            // SAFETY: the stream is our own, of that context.
            check(unsafe { (self.stream_synchronize)(stream as CUstream) })
        })
    }
}
