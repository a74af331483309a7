//! Contexts and their streams: the order of work.
//!
//! A context is born with its hardware queues: one graphics group of `CUDA_DEVICE_MAX_CONNECTIONS`
//! channels, each with an object that computes and one that copies, and [`COPY_GROUPS`] copy groups of
//! [`COPY_CHANNELS`]. Which of the two objects a graphics channel gets first, `TIDEGATE_VGPU_OBJECTS`
//! says: `compute` (default) or `copy`. A fault of any channel is the context's for ever ("sticky").
//!
//! A stream's work goes to one compute channel (streams share channels round robin) and, for
//! copies, to a copy channel; a change of channel inside a stream is a fence. The legacy default
//! stream waits for what every blocking stream of its context had been given, and every blocking
//! stream's next work waits for what the legacy stream had been given; so contexts and streams know
//! each other, and stand in one file. Lock order: legacy stream, list of streams, stream, mark of the
//! legacy stream, channel.

use std::env;
use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tidegate_abi::class::{ENGINE_TYPE_COPY0, ENGINE_TYPE_GR0};
use tidegate_abi::cuda::{CUdevice, CUresult};
use tidegate_abi::rm::NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG;
use tidegate_vgpu::ring::{Entry, Op};

use super::queues::{COPY_CHANNELS, COPY_GROUPS, Group, WORKING};
use super::sms::Sms;
use crate::channel::{Channel, HostFunction, Point, entry};
use crate::driver;
use crate::gpu::Gpu;
use crate::handle::{Kind, Pinned};
use crate::locks;
use crate::result::CudaResult;

/// Greatest and least stream priority.
pub const PRIORITIES: (i32, i32) = (-5, 0);
/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

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

impl Context {
    /// Makes a context on the GPU of `ordinal`, whose kernels run on `sms`.
    pub fn new(ordinal: CUdevice, flags: u32, sms: Sms) -> CudaResult<&'static Pinned<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let gpu = driver::device(ordinal)?;
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

    /// Whether it was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
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

    /// Waits for what was given to the context, and gives its queues back.
    pub fn close(&'static self) {
        // A context that faulted has nothing left to wait for.
        let _ = self.synchronize();
        self.destroyed.store(true, Ordering::Relaxed);
        for group in &self.groups {
            group.free(self.gpu);
        }
    }
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
