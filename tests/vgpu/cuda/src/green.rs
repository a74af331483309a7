//! Green contexts: contexts that own some of a device's multiprocessors (SMs).
//!
//! What is modelled is what a program can see: how SMs are divided, that a green context brings hardware
//! queues of its own into its process' address space, and that a kernel runs on the SMs of the context
//! it was recorded in, wherever its graph is launched. Kernels of disjoint contexts still take turns
//! as those of any two TSGs do.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use tidegate_abi::cuda::{CUcontext, CUdevice, CUgreenCtx, CUresult, CUstream};

use crate::context;
use crate::driver;
use crate::handle::{Kind, Pinned};
use crate::objects::context::{Context, NON_BLOCKING, Stream};
use crate::objects::current::{self, DefaultStream};
use crate::objects::sms::Sms;
use crate::result::{CudaResult, code, store, store_optional};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: u32 = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which every green context must ask for.
const DEFAULT_STREAM: u32 = 1;
/// On compute capability 9.0 a partition has at least eight SMs, and a multiple of eight (cuda.h, at
/// `cuDevSmResourceSplitByCount`).
const LEAST: u32 = 8;

/// `CUdevResource`: the type, the driver's own bytes, and the number of SMs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    kind: u32,
    first: u32,
    own: [u32; 22],
    count: u32,
    rest: [u32; 11],
}
const _: () = assert!(size_of::<Resource>() == 144);

impl Sms {
    const fn resource(self) -> Resource {
        Resource {
            kind: SM,
            first: self.first,
            own: [0; 22],
            count: self.count,
            rest: [0; 11],
        }
    }
}

impl Resource {
    fn sms(&self) -> CudaResult<Sms> {
        let end = self.first.checked_add(self.count);
        if self.kind != SM || self.count == 0 || end.is_none_or(|end| end > Sms::ALL.count) {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(Sms {
            first: self.first,
            count: self.count,
        })
    }
}

/// `CUdevResourceDesc`.
struct Description(Sms);

impl Kind for Description {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgSMDESC");
}

/// One green context.
pub struct Green {
    context: &'static Pinned<Context>,
}

impl Kind for Green {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgGREENC");
}

fn named(handle: CUgreenCtx) -> CudaResult<&'static Pinned<Green>> {
    // SAFETY: a green context of the application, by the API's contract.
    unsafe { Pinned::resolve(handle) }
}

fn answer(out: *mut Resource, kind: u32, sms: Sms) -> CudaResult {
    if kind != SM {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `out` is the caller's place for a resource.
    unsafe { store(out, sms.resource()) }
}

/// `cuDeviceGetDevResource`.
pub fn of_device(device: CUdevice, out: *mut Resource, kind: u32) -> CudaResult {
    driver::device(device)?;
    answer(out, kind, Sms::ALL)
}

/// `cuCtxGetDevResource`.
pub fn of_context(handle: CUcontext, out: *mut Resource, kind: u32) -> CudaResult {
    answer(out, kind, current::named_or_current(handle)?.sms)
}

/// `cuGreenCtxGetDevResource`.
pub fn of_green(handle: CUgreenCtx, out: *mut Resource, kind: u32) -> CudaResult {
    answer(out, kind, named(handle)?.context.sms)
}

/// `cuDevSmResourceSplitByCount`.
pub fn split(
    out: *mut Resource,
    groups: *mut u32,
    input: *const Resource,
    remaining: *mut Resource,
    _flags: u32,
    least: u32,
) -> CudaResult {
    if groups.is_null() || input.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: both are the caller's, and not null.
    let (wanted, input) = unsafe { (groups.read(), input.read_unaligned()) };
    let all = input.sms()?;
    let size = least.max(1).next_multiple_of(LEAST);
    let most = all.count / size;
    if most == 0 {
        return Err(code::INVALID_RESOURCE_CONFIGURATION);
    }
    let made = if out.is_null() {
        most
    } else {
        wanted.min(most)
    };
    if !out.is_null() {
        for number in 0..made {
            let group = Sms {
                first: all.first + number * size,
                count: size,
            };
            // SAFETY: the caller's array has `wanted` places, of which this is one.
            unsafe { store(out.wrapping_add(number as usize), group.resource())? };
        }
    }
    let rest = Sms {
        first: all.first + made * size,
        count: all.count - made * size,
    };
    // SAFETY: the caller's places; `remaining` may be null.
    unsafe {
        store_optional(remaining, rest.resource());
        store(groups, made)
    }
}

/// `cuDevResourceGenerateDesc`. A list of resources must be what one split left together.
pub fn describe(out: *mut *mut c_void, list: *const Resource, count: u32) -> CudaResult {
    if list.is_null() || count != 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller's array of one.
    let sms = unsafe { list.read_unaligned() }.sms()?;
    // SAFETY: `out` is the caller's place for the description.
    unsafe { store(out, Pinned::leak(Description(sms)).handle()) }
}

/// `cuGreenCtxCreate`.
pub fn create(
    out: *mut CUgreenCtx,
    description: *mut c_void,
    device: CUdevice,
    flags: u32,
) -> CudaResult {
    if flags != DEFAULT_STREAM {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: a description of the application, by the API's contract.
    let description = unsafe { Pinned::<Description>::resolve(description)? };
    let context = Context::new(device, 0, description.0)?;
    let green = Pinned::leak(Green { context }).handle();
    context.green.store(green, Ordering::Release);
    // SAFETY: `out` is the caller's place for a green context.
    unsafe { store(out, green) }
}

/// `cuGreenCtxDestroy`.
pub fn destroy(handle: CUgreenCtx) -> CudaResult {
    let green = named(handle)?;
    if !green.retire() {
        return Err(CUresult::INVALID_HANDLE);
    }
    context::destroy(green.context.handle())
}

/// `cuCtxFromGreenCtx`.
pub fn context_of(out: *mut CUcontext, handle: CUgreenCtx) -> CudaResult {
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, named(handle)?.context.handle()) }
}

/// `cuGreenCtxStreamCreate`: such streams never wait for a default stream.
pub fn create_stream(
    out: *mut CUstream,
    handle: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> CudaResult {
    if flags != NON_BLOCKING {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = named(handle)?.context;
    let stream = Stream::new(context, flags, priority, false);
    // SAFETY: `out` is the caller's place for a stream.
    unsafe { store(out, stream.handle()) }
}

/// `cuStreamGetGreenCtx`: null for a stream of another context.
pub fn of_stream(handle: CUstream, out: *mut CUgreenCtx) -> CudaResult {
    let stream = current::named_stream(handle, DefaultStream::Legacy)?;
    let green = stream.context.green.load(Ordering::Acquire);
    // SAFETY: `out` is the caller's place for a green context.
    unsafe { store(out, green) }
}
