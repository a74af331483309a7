//! Streams: the order of work, and the default streams' implicit dependencies.
//!
//! A stream's work goes to one compute channel (streams share channels round robin) and, for
//! copies, to a copy channel; a change of channel inside a stream is a fence. The legacy default
//! stream waits for what every blocking stream of its context had been given, and every blocking
//! stream's next work waits for what the legacy stream had been given. Lock order: legacy stream,
//! list of streams, stream, mark of the legacy stream, channel.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream};
use tidegate_vgpu::ring::{Entry, Op};

use crate::capturing;
use crate::channel::{Channel, HostFunction, Point, entry};
use crate::context::{self, Context};
use crate::driver;
use crate::handle::{Kind, Pinned};
use crate::locks;
use crate::result::{CudaResult, store};

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

/// Which default stream a stream of 0 means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The one that synchronises with all others.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// Which engine work is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Kernels and small things.
    Compute,
    /// Copies to the device and between devices.
    CopyIn,
    /// Copies to the host.
    CopyOut,
}

/// One stream.
pub struct Stream {
    /// Its context.
    pub context: &'static Pinned<Context>,
    /// Flags as created.
    pub flags: u32,
    /// Priority as created.
    pub priority: i32,
    /// Unique in the process.
    pub id: u64,
    /// Whether this is the legacy default stream.
    pub is_legacy: bool,
    channels: [&'static Channel; 3],
    state: Mutex<State>,
}

impl Kind for Stream {
    const MAGIC: u64 = u64::from_le_bytes(*b"vgSTREAM");
}

struct State {
    tail: Option<Point>,
    /// Epoch of the legacy stream that this stream already waits for.
    legacy_seen: u64,
}

/// What blocking streams must know of the legacy stream.
#[derive(Default)]
pub struct LegacyMark {
    /// Grows with each piece of the legacy stream's work.
    epoch: AtomicU64,
    tail: Mutex<Option<Point>>,
}

impl Stream {
    /// A stream of `context` on its next channels.
    pub fn new(
        context: &'static Pinned<Context>,
        flags: u32,
        priority: i32,
        is_legacy: bool,
    ) -> &'static Pinned<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let stream = Pinned::leak(Self {
            context,
            flags,
            priority,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            is_legacy,
            channels: context.next_channels(),
            state: Mutex::new(State {
                tail: None,
                legacy_seen: 0,
            }),
        });
        if !is_legacy {
            context.streams().push(stream);
        }
        stream
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the legacy stream waits for this one and the other way round.
    pub fn is_blocking(&self) -> bool {
        !self.is_legacy && self.flags & NON_BLOCKING == 0
    }

    fn channel(&self, engine: Engine) -> &'static Channel {
        self.channels[engine as usize]
    }

    /// Appends work: waits for everything the stream's order demands, then what `push` publishes.
    fn append(
        &self,
        engine: Engine,
        push: impl FnOnce(&'static Channel, &[Entry]) -> CudaResult<Point>,
    ) -> CudaResult<Point> {
        let channel = self.channel(engine);
        let mut state = self.state();
        let mut waits = Waits::new(channel);
        if let Some(tail) = state.tail {
            waits.after(tail)?;
        }
        let mark = &self.context.legacy_mark;
        if self.is_legacy {
            for stream in self.context.streams().iter().filter(|s| s.is_blocking()) {
                let tail = stream.state().tail;
                if let Some(tail) = tail {
                    waits.after(tail)?;
                }
            }
        } else if self.is_blocking() {
            let epoch = mark.epoch.load(Ordering::Acquire);
            if epoch != state.legacy_seen {
                let tail = *mark.tail.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(tail) = tail {
                    waits.after(tail)?;
                }
                state.legacy_seen = epoch;
            }
        }
        let point = push(channel, waits.entries())?;
        state.tail = Some(point);
        if self.is_legacy {
            *mark.tail.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
            mark.epoch.fetch_add(1, Ordering::Release);
        }
        Ok(point)
    }

    /// Appends entries.
    pub fn submit(&self, engine: Engine, entries: &[Entry]) -> CudaResult<Point> {
        self.append(engine, |channel, waits| channel.push(waits, entries))
    }

    /// Appends an entry that reads `staged`, which lives until it has run.
    pub fn submit_staged(
        &self,
        engine: Engine,
        entry: &Entry,
        staged: Box<[u8]>,
    ) -> CudaResult<Point> {
        self.append(engine, |channel, waits| {
            channel.push_staged(waits, entry, staged)
        })
    }

    /// Makes the stream's next work wait for `point`.
    pub fn submit_wait(&self, point: Point) -> CudaResult {
        if point.is_done() {
            return Ok(());
        }
        // On the point's own channel the order is there already, but this stream's copies are not
        // on that channel: something of this stream must stand behind the point.
        let fence = point.fence(self.channel(Engine::Compute))?;
        let entry = fence.unwrap_or_else(|| entry(Op::Nop, &[]));
        self.submit(Engine::Compute, &[entry]).map(|_| ())
    }

    /// Appends a host function.
    pub fn submit_host(&self, function: HostFunction) -> CudaResult<Point> {
        self.append(Engine::Compute, |channel, waits| {
            channel.push_host(waits, function)
        })
    }

    /// What has been given to the stream so far; the legacy stream stands for all blocking ones.
    pub fn tails(&self) -> Vec<Point> {
        let mut tails: Vec<Point> = self.state().tail.into_iter().collect();
        if self.is_legacy {
            let streams = self.context.streams();
            tails.extend(
                streams
                    .iter()
                    .filter(|s| s.is_blocking())
                    .filter_map(|s| s.state().tail),
            );
        }
        tails
    }

    /// Whether everything given so far is finished.
    pub fn query(&self) -> CudaResult {
        self.channel(Engine::Compute).check()?;
        if self.tails().iter().all(Point::is_done) {
            Ok(())
        } else {
            Err(CUresult::NOT_READY)
        }
    }

    /// Sleeps until everything given so far is finished.
    pub fn synchronize(&self) -> CudaResult {
        self.channel(Engine::Compute).check()?;
        self.tails().iter().try_for_each(Point::wait)
    }
}

/// The acquires in front of a piece of work.
struct Waits {
    target: &'static Channel,
    first: Option<Entry>,
    more: Vec<Entry>,
}

impl Waits {
    fn new(target: &'static Channel) -> Self {
        Self {
            target,
            first: None,
            more: Vec::new(),
        }
    }

    fn after(&mut self, point: Point) -> CudaResult {
        match (point.fence(self.target)?, self.first) {
            (None, _) => {}
            (fence, None) => self.first = fence,
            (Some(fence), Some(first)) => {
                if self.more.is_empty() {
                    self.more.push(first);
                }
                self.more.push(fence);
            }
        }
        Ok(())
    }

    fn entries(&self) -> &[Entry] {
        if self.more.is_empty() {
            self.first.as_slice()
        } else {
            &self.more
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<ThreadStreams> = const { RefCell::new(ThreadStreams(Vec::new())) };
}

/// The calling thread's default streams, one per context it used.
struct ThreadStreams(Vec<&'static Pinned<Stream>>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        for stream in &self.0 {
            stream.context.forget(stream);
        }
    }
}

fn per_thread(context: &'static Pinned<Context>) -> CudaResult<&'static Pinned<Stream>> {
    PER_THREAD
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            if let Some(own) = streams.0.iter().find(|s| std::ptr::eq(s.context, context)) {
                return *own;
            }
            let own = Stream::new(context, 0, 0, false);
            streams.0.push(own);
            own
        })
        .map_err(|_| CUresult::DEINITIALIZED)
}

/// The stream an application names.
///
/// # Safety
/// `handle` is a stream handle as [`Pinned::resolve`] wants it.
pub unsafe fn resolve(
    handle: CUstream,
    default: DefaultStream,
) -> CudaResult<&'static Pinned<Stream>> {
    match (handle.addr(), default) {
        (0, DefaultStream::Legacy) | (CU_STREAM_LEGACY, _) => Ok(context::current()?.legacy()),
        (0, DefaultStream::PerThread) | (CU_STREAM_PER_THREAD, _) => {
            per_thread(context::current()?)
        }
        _ => {
            driver::check()?;
            // SAFETY: as this function's own contract says.
            let stream = unsafe { Pinned::<Stream>::resolve(handle)? };
            stream.context.check()?;
            Ok(stream)
        }
    }
}

/// `cuStreamCreateWithPriority`.
pub fn create_with_priority(out: *mut CUstream, flags: u32, priority: i32) -> CudaResult {
    let context = context::current()?;
    if out.is_null() || flags & !NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (greatest, least) = (context::PRIORITIES.0, context::PRIORITIES.1);
    let stream = Stream::new(context, flags, priority.clamp(greatest, least), false);
    // SAFETY: `out` is the caller's place for a stream.
    unsafe { store(out, stream.handle()) }
}

/// `cuStreamCreate`.
pub fn create(out: *mut CUstream, flags: u32) -> CudaResult {
    create_with_priority(out, flags, 0)
}

/// The stream a caller names.
pub fn named(handle: CUstream, default: DefaultStream) -> CudaResult<&'static Pinned<Stream>> {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { resolve(handle, default) }
}

/// `cuStreamDestroy`: returns at once; what was given to the stream still runs.
pub fn destroy(handle: CUstream) -> CudaResult {
    if handle.addr() <= CU_STREAM_PER_THREAD {
        return Err(CUresult::INVALID_HANDLE);
    }
    let stream = named(handle, DefaultStream::Legacy)?;
    let _held = locks::waiting_call(stream.context.gpu, || stream.synchronize())?;
    capturing::destroy_stream(stream);
    stream.context.forget(stream);
    Ok(())
}

/// `cuStreamSynchronize`.
pub fn synchronize(default: DefaultStream, handle: CUstream) -> CudaResult {
    let stream = named(handle, default)?;
    capturing::ask_stream(stream)?;
    let _held = locks::sync(stream.context.gpu);
    stream.synchronize()
}

/// `cuStreamQuery`.
pub fn query(default: DefaultStream, handle: CUstream) -> CudaResult {
    let stream = named(handle, default)?;
    capturing::ask_stream(stream)?;
    stream.query()
}

/// `cuStreamGetPriority`.
pub fn priority(default: DefaultStream, handle: CUstream, out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named(handle, default)?.priority) }
}

/// `cuStreamGetFlags`.
pub fn flags(default: DefaultStream, handle: CUstream, out: *mut u32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named(handle, default)?.flags) }
}

/// `cuStreamGetId`.
pub fn id(default: DefaultStream, handle: CUstream, out: *mut u64) -> CudaResult {
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, named(handle, default)?.id) }
}

/// `cuStreamGetCtx`: fails for a stream of a green context.
pub fn get_context(default: DefaultStream, handle: CUstream, out: *mut *mut c_void) -> CudaResult {
    let context = named(handle, default)?.context;
    if !context.green.load(Ordering::Acquire).is_null() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuStreamGetCtx_v2`: the context, or the green context, of a stream.
pub fn get_context_v2(
    default: DefaultStream,
    handle: CUstream,
    out: *mut *mut c_void,
    green: *mut *mut c_void,
) -> CudaResult {
    let context = named(handle, default)?.context;
    let of = context.green.load(Ordering::Acquire);
    let plain = if of.is_null() {
        context.handle()
    } else {
        std::ptr::null_mut()
    };
    // SAFETY: `green` is null or the caller's place for a context, and so is `out`.
    unsafe {
        crate::result::store_optional(green, of);
        store(out, plain)
    }
}

/// `cuStreamGetDevice`.
pub fn device(default: DefaultStream, handle: CUstream, out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, named(handle, default)?.context.ordinal) }
}
