//! Contexts: channels of one GPU, the streams on them, and what is current in a thread.
//!
//! A context is born with its hardware queues: one graphics group of `CUDA_DEVICE_MAX_CONNECTIONS`
//! channels, each with an object that computes and one that copies, and [`COPY_GROUPS`] copy groups of
//! [`COPY_CHANNELS`]. Which of the two objects a graphics channel gets first, `TIDEGATE_VGPU_OBJECTS`
//! says: `compute` (default) or `copy`. A fault of any channel is the context's for ever ("sticky").

use std::cell::RefCell;
use std::env;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tidegate_abi::class::{
    ENGINE_TYPE_COPY0, ENGINE_TYPE_GR0, FERMI_CONTEXT_SHARE_A, HOPPER_CHANNEL_GPFIFO_A,
    HOPPER_COMPUTE_A, HOPPER_DMA_COPY_A, KEPLER_CHANNEL_GROUP_A,
};
use tidegate_abi::cuda::{CUcontext, CUdevice, CUresult};
use tidegate_abi::rm::{
    ChannelAlloc, ChannelGroupAlloc, CtxShareAlloc, NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG,
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, WorkSubmitToken,
};
use tidegate_abi::uvm::{
    UVM_REGISTER_CHANNEL, UVM_UNREGISTER_CHANNEL, UvmRegisterChannel, UvmUnregisterChannel,
    UvmUnregisterChannel590,
};
use tidegate_vgpu::ring::{ENTRIES, RING_BYTES};

use crate::capturing;
use crate::channel::{Channel, Mapped, Point};
use crate::driver;
use crate::gpu::{Gpu, Space};
use crate::green::Sms;
use crate::handle::{Kind, Pinned};
use crate::locks;
use crate::memory;
use crate::pool;
use crate::result::{CudaResult, store};
use crate::rm::{self, RmResult, bytes_of};
use crate::stream::{LegacyMark, Stream};

/// Greatest and least stream priority.
pub const PRIORITIES: (i32, i32) = (-5, 0);
/// Copy groups of a context, and channels of each. The driver's library makes about forty channels a
/// context with the default of eight connections; how they are parted waits for a look at a GPU.
const COPY_GROUPS: u32 = 8;
const COPY_CHANNELS: usize = 4;
/// Groups that carry work: streams compute in the first and copy in and out by two others.
const WORKING: usize = 3;

/// One context.
pub struct Context {
    /// Its GPU.
    pub gpu: &'static Gpu,
    /// CUDA ordinal of the GPU.
    pub ordinal: CUdevice,
    /// Unique in the process.
    pub id: u64,
    /// Flags as created.
    pub flags: AtomicU32,
    /// The multiprocessors its kernels run on.
    pub sms: Sms,
    /// The green context it belongs to, or null.
    pub green: AtomicPtr<c_void>,
    /// For the streams.
    pub legacy_mark: LegacyMark,
    groups: Vec<Group>,
    next: [AtomicUsize; WORKING],
    lost: Arc<AtomicI32>,
    destroyed: AtomicBool,
    legacy: OnceLock<&'static Pinned<Stream>>,
    streams: Mutex<Vec<&'static Pinned<Stream>>>,
}

impl Kind for Context {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgCONTEX");
}

/// One TSG and its channels.
struct Group {
    tsg: u32,
    handles: Vec<u32>,
    channels: Vec<Channel>,
}

impl Context {
    /// Makes a context on the GPU of `ordinal`, whose kernels run on `sms`.
    pub fn new(ordinal: CUdevice, flags: u32, sms: Sms) -> CudaResult<&'static Pinned<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let gpu = device(ordinal)?;
        let space = gpu.space()?;
        let lost = Arc::new(AtomicI32::new(0));
        let connections = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
        let connections = connections
            .and_then(|text| text.parse().ok())
            .unwrap_or(8_usize);
        let compute = (ENGINE_TYPE_GR0, connections.clamp(1, 32));
        let copies = (0..COPY_GROUPS).map(|at| (ENGINE_TYPE_COPY0 + at, COPY_CHANNELS));
        let groups = std::iter::once(compute)
            .chain(copies)
            .map(|shape| Group::new(gpu, space, shape, &lost))
            .collect::<CudaResult<Vec<_>>>()?;
        // A driver without this control keeps its watchdog, which does no harm.
        let _ = gpu.rm.control(
            "RC_SOFT_DISABLE_WATCHDOG",
            gpu.subdevice,
            NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG,
            &mut [],
        );
        let context = Pinned::leak(Self {
            gpu,
            ordinal,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags: AtomicU32::new(flags),
            sms,
            green: AtomicPtr::default(),
            legacy_mark: LegacyMark::default(),
            groups,
            next: Default::default(),
            lost,
            destroyed: AtomicBool::new(false),
            legacy: OnceLock::new(),
            streams: Mutex::default(),
        });
        context
            .legacy
            .get_or_init(|| Stream::new(context, 0, 0, true));
        Ok(context)
    }

    /// Fails for a destroyed context and for one that faulted.
    #[inline]
    pub fn check(&self) -> CudaResult {
        if self.destroyed.load(Ordering::Relaxed) {
            return Err(CUresult::CONTEXT_IS_DESTROYED);
        }
        match self.lost.load(Ordering::Relaxed) {
            0 => driver::check(),
            error => Err(CUresult(error)),
        }
    }

    /// The legacy default stream.
    pub fn legacy(&self) -> &'static Pinned<Stream> {
        self.legacy.get().expect("set when the context was made")
    }

    /// The streams that the legacy stream may have to wait for.
    pub fn streams(&self) -> MutexGuard<'_, Vec<&'static Pinned<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a destroyed stream, and those destroyed before it, once their work is finished.
    pub fn forget(&self, stream: &'static Pinned<Stream>) {
        stream.retire();
        self.streams()
            .retain(|s| s.is_live() || !s.tails().iter().all(Point::is_done));
    }

    /// Channels for a new stream, per engine, round robin.
    pub fn next_channels(&'static self) -> [&'static Channel; WORKING] {
        std::array::from_fn(|engine| {
            let channels = &self.groups[engine].channels;
            &channels[self.next[engine].fetch_add(1, Ordering::Relaxed) % channels.len()]
        })
    }

    fn channels(&'static self) -> impl Iterator<Item = &'static Channel> {
        self.groups.iter().flat_map(|group| &group.channels)
    }

    /// Sleeps until everything given to this context is finished.
    pub fn synchronize(&'static self) -> CudaResult {
        self.check()?;
        let _held = locks::sync(self.gpu);
        self.channels()
            .map(Channel::end)
            .try_for_each(|point| point.wait())
    }

    fn destroy(&'static self) {
        let _held = locks::call(self.gpu);
        // A context that faulted has nothing left to wait for.
        let _ = self.synchronize();
        self.destroyed.store(true, Ordering::Relaxed);
        for group in &self.groups {
            group.free(self.gpu);
        }
        memory::drop_context(self.id);
    }
}

impl Group {
    fn new(
        gpu: &'static Gpu,
        space: &'static Space,
        (engine, count): (u32, usize),
        lost: &Arc<AtomicI32>,
    ) -> CudaResult<Self> {
        let rm = &gpu.rm;
        let mut p = ChannelGroupAlloc {
            h_va_space: space.vaspace,
            engine_type: engine,
            ..ChannelGroupAlloc::default()
        };
        let tsg = rm.alloc(
            "alloc TSG",
            gpu.device,
            KEPLER_CHANNEL_GROUP_A,
            bytes_of(&mut p),
        )?;
        let share = if engine == ENGINE_TYPE_GR0 {
            let mut p = CtxShareAlloc {
                h_va_space: space.vaspace,
                ..CtxShareAlloc::default()
            };
            rm.alloc(
                "alloc context share",
                tsg,
                FERMI_CONTEXT_SHARE_A,
                bytes_of(&mut p),
            )?
        } else {
            0
        };
        let mut group = Self {
            tsg,
            handles: Vec::with_capacity(count),
            channels: Vec::with_capacity(count),
        };
        for _ in 0..count {
            group.add(gpu, space, engine, share, lost)?;
        }
        let mut schedule = [0_u8; 4];
        schedule[0] = 1;
        rm.control(
            "GPFIFO_SCHEDULE",
            tsg,
            NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
            &mut schedule[..rm.branch.schedule_size()],
        )?;
        Ok(group)
    }

    fn add(
        &mut self,
        gpu: &'static Gpu,
        space: &'static Space,
        engine: u32,
        share: u32,
        lost: &Arc<AtomicI32>,
    ) -> CudaResult {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let rm = &gpu.rm;
        let semaphores = driver::semaphores()?;
        let mut p = ChannelAlloc {
            h_object_buffer: semaphores.object,
            gp_fifo_entries: ENTRIES as u32,
            h_context_share: share,
            h_va_space: if share == 0 { space.vaspace } else { 0 },
            ..ChannelAlloc::default()
        };
        let channel = rm.alloc(
            "alloc channel",
            self.tsg,
            HOPPER_CHANNEL_GPFIFO_A,
            &mut bytes_of(&mut p)[..rm.branch.channel_alloc_size()],
        )?;
        for object in objects(engine) {
            rm.alloc("alloc engine object", channel, *object, &mut [])?;
        }
        let mut token = WorkSubmitToken::default();
        rm.control(
            "GET_WORK_SUBMIT_TOKEN",
            channel,
            NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
            bytes_of(&mut token),
        )?;
        let ring = rm.map(&gpu.path, gpu.device, channel, RING_BYTES)?;
        let mut p = UvmRegisterChannel {
            uuid: gpu.uuid.bytes,
            rm_ctrl_fd: rm.ctl.as_raw_fd(),
            h_client: rm.client,
            h_channel: channel,
            ..UvmRegisterChannel::default()
        };
        rm::uvm(
            "UVM_REGISTER_CHANNEL",
            &rm.uvm,
            UVM_REGISTER_CHANNEL,
            &mut p,
            |p| p.rm_status,
        )?;
        let mapped = Mapped {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            ring,
            semaphore: semaphores.take().ok_or(CUresult::OUT_OF_MEMORY)?,
        };
        self.handles.push(channel);
        // SAFETY: the whole ring was just mapped, this is its only producer, and rings of a
        // destroyed context stay mapped because a stale stream may still look at its points.
        self.channels
            .push(unsafe { Channel::new(gpu, space, &mapped, Arc::clone(lost)) });
        Ok(())
    }

    fn free(&self, gpu: &Gpu) {
        let rm = &gpu.rm;
        for &channel in &self.handles {
            // What the driver does not free here it frees with the file.
            let _ = unregister(gpu, channel);
        }
        let _ = rm.free(self.tsg);
    }
}

/// The engine objects of a channel, in the order they are made.
fn objects(engine: u32) -> &'static [u32] {
    static COPY_FIRST: OnceLock<bool> = OnceLock::new();
    let copy_first = || env::var("TIDEGATE_VGPU_OBJECTS").is_ok_and(|first| first == "copy");
    if engine != ENGINE_TYPE_GR0 {
        &[HOPPER_DMA_COPY_A]
    } else if *COPY_FIRST.get_or_init(copy_first) {
        &[HOPPER_DMA_COPY_A, HOPPER_COMPUTE_A]
    } else {
        &[HOPPER_COMPUTE_A, HOPPER_DMA_COPY_A]
    }
}

fn unregister(gpu: &Gpu, channel: u32) -> RmResult {
    let rm = &gpu.rm;
    let what = "UVM_UNREGISTER_CHANNEL";
    if rm.branch.uvm_unregister_channel_size() == size_of::<UvmUnregisterChannel590>() {
        let mut p = UvmUnregisterChannel590 {
            h_client: rm.client,
            h_channel: channel,
            rm_status: 0,
        };
        return rm::uvm(what, &rm.uvm, UVM_UNREGISTER_CHANNEL, &mut p, |p| {
            p.rm_status
        });
    }
    let mut p = UvmUnregisterChannel {
        uuid: gpu.uuid.bytes,
        h_client: rm.client,
        h_channel: channel,
        rm_status: 0,
    };
    rm::uvm(what, &rm.uvm, UVM_UNREGISTER_CHANNEL, &mut p, |p| {
        p.rm_status
    })
}

/// The GPU of a CUDA ordinal.
pub fn device(ordinal: CUdevice) -> CudaResult<&'static Gpu> {
    let gpus = &driver::get()?.gpus;
    let at = usize::try_from(ordinal).map_err(|_| CUresult::INVALID_DEVICE)?;
    gpus.get(at).ok_or(CUresult::INVALID_DEVICE)
}

thread_local! {
    static CURRENT: RefCell<Vec<Option<&'static Pinned<Context>>>> =
        const { RefCell::new(Vec::new()) };
}

fn with_stack<R>(f: impl FnOnce(&mut Vec<Option<&'static Pinned<Context>>>) -> R) -> CudaResult<R> {
    CURRENT
        .try_with(|stack| f(&mut stack.borrow_mut()))
        .map_err(|_| CUresult::DEINITIALIZED)
}

/// The calling thread's current context, which must be usable.
pub fn current() -> CudaResult<&'static Pinned<Context>> {
    let top = with_stack(|stack| stack.last().copied().flatten())?;
    let Some(context) = top else {
        driver::get()?;
        return Err(CUresult::INVALID_CONTEXT);
    };
    context.check()?;
    Ok(context)
}

fn named(handle: CUcontext) -> CudaResult<&'static Pinned<Context>> {
    driver::get()?;
    // SAFETY: a context handle of the application, by the API's contract.
    let context = unsafe { Pinned::<Context>::resolve(handle) };
    let context = context.map_err(|_| CUresult::INVALID_CONTEXT)?;
    if context.destroyed.load(Ordering::Relaxed) {
        return Err(CUresult::CONTEXT_IS_DESTROYED);
    }
    Ok(context)
}

/// The context a caller names, or the current one for null.
pub fn named_or_current(handle: CUcontext) -> CudaResult<&'static Pinned<Context>> {
    if handle.is_null() {
        current()
    } else {
        named(handle)
    }
}

/// Every `cuCtxCreate`: makes a context and pushes it.
pub fn create(out: *mut CUcontext, flags: u32, ordinal: CUdevice) -> CudaResult {
    driver::get()?;
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = Context::new(ordinal, flags, Sms::ALL)?;
    with_stack(|stack| stack.push(Some(context)))?;
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuCtxCreate_v3`: execution affinity is accepted and has no effect, as without MPS.
pub fn create_v3(
    out: *mut CUcontext,
    _affinity: *mut c_void,
    _count: i32,
    flags: u32,
    ordinal: CUdevice,
) -> CudaResult {
    create(out, flags, ordinal)
}

/// `cuCtxCreate_v4`.
pub fn create_v4(
    out: *mut CUcontext,
    _parameters: *mut c_void,
    flags: u32,
    ordinal: CUdevice,
) -> CudaResult {
    create(out, flags, ordinal)
}

/// `cuCtxDestroy`.
pub fn destroy(handle: CUcontext) -> CudaResult {
    let context = named(handle)?;
    let primary = primaries()[context.ordinal as usize].context;
    if primary.is_some_and(|primary| std::ptr::eq(primary, context)) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|stack| {
        if stack
            .last()
            .copied()
            .flatten()
            .is_some_and(|top| std::ptr::eq(top, context))
        {
            stack.pop();
        }
    })?;
    context.destroy();
    Ok(())
}

/// `cuCtxPushCurrent`.
pub fn push(handle: CUcontext) -> CudaResult {
    let context = named(handle)?;
    with_stack(|stack| stack.push(Some(context)))
}

/// `cuCtxPopCurrent`.
pub fn pop(out: *mut CUcontext) -> CudaResult {
    driver::get()?;
    let top = with_stack(Vec::pop)?
        .flatten()
        .ok_or(CUresult::INVALID_CONTEXT)?;
    // SAFETY: `out` is null or the caller's place for a context.
    unsafe { crate::result::store_optional(out, top.handle()) };
    Ok(())
}

/// `cuCtxSetCurrent`: null empties the top of the stack.
pub fn set_current(handle: CUcontext) -> CudaResult {
    driver::get()?;
    let context = if handle.is_null() {
        None
    } else {
        Some(named(handle)?)
    };
    with_stack(|stack| {
        stack.pop();
        if context.is_some() {
            stack.push(context);
        }
    })
}

/// `cuCtxGetCurrent`: null when there is none.
pub fn get_current(out: *mut CUcontext) -> CudaResult {
    driver::get()?;
    let top = with_stack(|stack| stack.last().copied().flatten())?;
    let handle = top.map_or(std::ptr::null_mut(), |context| context.handle());
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, handle) }
}

/// `cuCtxGetDevice`.
pub fn get_device(out: *mut CUdevice) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, current()?.ordinal) }
}

/// `cuCtxGetDevice_v2`.
pub fn get_device_v2(out: *mut CUdevice, context: CUcontext) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, named_or_current(context)?.ordinal) }
}

/// `cuCtxGetFlags`.
pub fn get_flags(out: *mut u32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the flags.
    unsafe { store(out, current()?.flags.load(Ordering::Relaxed)) }
}

/// `cuCtxSetFlags`.
pub fn set_flags(flags: u32) -> CudaResult {
    current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// `cuCtxGetId`.
pub fn get_id(context: CUcontext, out: *mut u64) -> CudaResult {
    // SAFETY: `out` is the caller's place for the number.
    unsafe { store(out, named_or_current(context)?.id) }
}

/// `cuCtxGetApiVersion`.
pub fn api_version(context: CUcontext, out: *mut u32) -> CudaResult {
    named_or_current(context)?;
    // SAFETY: `out` is the caller's place for the version.
    unsafe { store(out, 3020) }
}

/// `cuCtxSynchronize`.
pub fn synchronize() -> CudaResult {
    synchronize_v2(std::ptr::null_mut())
}

/// `cuCtxSynchronize_v2`.
pub fn synchronize_v2(context: CUcontext) -> CudaResult {
    let context = named_or_current(context)?;
    capturing::ask_context(context.id)?;
    context.synchronize()?;
    pool::reap();
    Ok(())
}

/// `cuCtxGetStreamPriorityRange`.
pub fn priority_range(least: *mut i32, greatest: *mut i32) -> CudaResult {
    current()?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        crate::result::store_optional(least, PRIORITIES.1);
        crate::result::store_optional(greatest, PRIORITIES.0);
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Primary {
    context: Option<&'static Pinned<Context>>,
    retained: u32,
    flags: u32,
}

fn primaries() -> MutexGuard<'static, Vec<Primary>> {
    static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let count = driver::get().map_or(0, |driver| driver.gpus.len());
    if primaries.len() < count {
        primaries.resize(count, Primary::default());
    }
    primaries
}

/// `cuDevicePrimaryCtxRetain`.
pub fn primary_retain(out: *mut CUcontext, ordinal: CUdevice) -> CudaResult {
    device(ordinal)?;
    let mut primaries = primaries();
    let primary = &mut primaries[ordinal as usize];
    let context = match primary.context {
        Some(context) => context,
        None => Context::new(ordinal, primary.flags, Sms::ALL)?,
    };
    primary.context = Some(context);
    primary.retained += 1;
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuDevicePrimaryCtxRelease`: the last one destroys.
pub fn primary_release(ordinal: CUdevice) -> CudaResult {
    device(ordinal)?;
    let mut primaries = primaries();
    let primary = &mut primaries[ordinal as usize];
    match primary.retained {
        0 => return Err(CUresult::INVALID_CONTEXT),
        1 => {
            let context = primary.context.take();
            primary.retained = 0;
            drop(primaries);
            if let Some(context) = context {
                context.destroy();
            }
        }
        _ => primary.retained -= 1,
    }
    Ok(())
}

/// `cuDevicePrimaryCtxReset`: destroys whatever the count.
pub fn primary_reset(ordinal: CUdevice) -> CudaResult {
    device(ordinal)?;
    let context = {
        let primary = &mut primaries()[ordinal as usize];
        primary.retained = 0;
        primary.context.take()
    };
    if let Some(context) = context {
        context.destroy();
    }
    Ok(())
}

/// `cuDevicePrimaryCtxSetFlags`.
pub fn primary_set_flags(ordinal: CUdevice, flags: u32) -> CudaResult {
    device(ordinal)?;
    let primary = &mut primaries()[ordinal as usize];
    primary.flags = flags;
    if let Some(context) = primary.context {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxGetState`.
pub fn primary_state(ordinal: CUdevice, flags: *mut u32, active: *mut i32) -> CudaResult {
    device(ordinal)?;
    let primary = primaries()[ordinal as usize];
    // SAFETY: both are the caller's places.
    unsafe {
        store(flags, primary.flags)?;
        store(active, i32::from(primary.context.is_some()))
    }
}
