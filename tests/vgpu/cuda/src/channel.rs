//! A channel: the ring of one hardware queue, and points in it.
//!
//! Entries run in order, so "the work up to here" is a number: a [`Point`] is a channel and the
//! count of entries that must be finished. Work of another channel waits for a point through the
//! channel's own semaphore: a release behind the point, an acquire in front of the work. Releases
//! are pushed before the acquires that need them, so rings cannot wait for each other in a circle.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidegate_abi::cuda::CUresult;
use tidegate_vgpu::ring::{ARGS, ENTRIES, Entry, Op, Ring};

use crate::driver;
use crate::futex;
use crate::gpu::{Gpu, Space};
use crate::locks;
use crate::result::CudaResult;

/// Rounds of waiting before a thread sleeps: about a microsecond.
const SPINS: u32 = 64;
/// How long a waiter sleeps before it makes sure that the device is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Where some work ends: finished when `channel` has finished `seq` entries.
#[derive(Clone, Copy)]
pub struct Point {
    /// The channel.
    pub channel: &'static Channel,
    /// Entries finished then.
    pub seq: u64,
}

impl Point {
    /// Whether the work is finished.
    pub fn is_done(&self) -> bool {
        self.channel.done() >= self.seq
    }

    /// Sleeps until the work is finished.
    pub fn wait(&self) -> CudaResult {
        self.channel.wait(self.seq)
    }

    /// The entry that makes `target` wait for this point, if one is needed.
    pub fn fence(&self, target: &'static Channel) -> CudaResult<Option<Entry>> {
        if std::ptr::eq(self.channel, target) || self.is_done() {
            return Ok(None);
        }
        let value = self.channel.release_after(self.seq)?;
        Ok(Some(acquire(self.channel.semaphore, value)))
    }
}

/// A host function of the application, bound to its argument.
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// One channel of a context.
pub struct Channel {
    gpu: &'static Gpu,
    space: &'static Space,
    number: u64,
    ring: &'static Ring,
    entries: *mut Entry,
    semaphore: u32,
    lost: Arc<AtomicI32>,
    producer: Mutex<Producer>,
    host: OnceLock<Arc<HostQueue>>,
}

// SAFETY: `entries` is written only under `producer`, the rest is shared atomics or immutable.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

struct Producer {
    put: u64,
    semaphore_value: u64,
    /// Entries that the last release covers.
    released: u64,
    /// Copies of pageable memory that must live until the count of finished entries is reached.
    staged: VecDeque<(u64, Box<[u8]>)>,
    host_functions: u64,
}

#[derive(Default)]
struct HostQueue {
    waiting: Mutex<VecDeque<(u64, HostFunction)>>,
    changed: Condvar,
}

/// What a channel is made from, besides its context.
pub struct Mapped {
    /// Number of the channel in this process, for launch numbers.
    pub number: u64,
    /// Its mapped ring.
    pub ring: *mut u8,
    /// A semaphore of its own and the value it starts above.
    pub semaphore: (u32, u64),
}

impl Channel {
    /// Wraps a mapped ring. `lost` is shared by the channels of a context.
    ///
    /// # Safety
    /// `mapped.ring` maps a whole ring that no other producer writes, and stays mapped.
    pub unsafe fn new(
        gpu: &'static Gpu,
        space: &'static Space,
        mapped: &Mapped,
        lost: Arc<AtomicI32>,
    ) -> Self {
        // SAFETY: the caller gives a whole mapped ring, page-aligned, of atomics.
        let ring = unsafe { &*mapped.ring.cast::<Ring>() };
        Self {
            gpu,
            space,
            number: mapped.number,
            ring,
            // SAFETY: the entries follow the ring's page inside the same mapping.
            entries: unsafe { mapped.ring.add(size_of::<Ring>()) }.cast(),
            semaphore: mapped.semaphore.0,
            lost,
            producer: Mutex::new(Producer {
                put: ring.put.load(Ordering::Relaxed),
                semaphore_value: mapped.semaphore.1,
                released: 0,
                staged: VecDeque::new(),
                host_functions: 0,
            }),
            host: OnceLock::new(),
        }
    }

    /// Entries finished.
    pub fn done(&self) -> u64 {
        self.ring.done.load(Ordering::Acquire)
    }

    /// The error that ended this channel or its context, if any. It never goes away.
    #[inline]
    pub fn check(&self) -> CudaResult {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost == 0 && self.ring.error.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        Err(self.error())
    }

    #[cold]
    fn error(&self) -> CUresult {
        let lost = match self.ring.error.load(Ordering::Acquire) {
            0 => CUresult::UNKNOWN,
            31 => CUresult::ILLEGAL_ADDRESS,
            109 => CUresult::LAUNCH_TIMEOUT,
            _ => CUresult::LAUNCH_FAILED,
        };
        let first = self
            .lost
            .compare_exchange(0, lost.0, Ordering::Relaxed, Ordering::Relaxed);
        CUresult(first.err().unwrap_or(lost.0))
    }

    fn producer(&self) -> MutexGuard<'_, Producer> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes `waits` and then `entries`; the point behind them.
    pub fn push(&'static self, waits: &[Entry], entries: &[Entry]) -> CudaResult<Point> {
        self.check()?;
        let mut producer = self.producer();
        let seq = self.publish(&mut producer, waits.iter().chain(entries))?;
        drop(producer);
        self.space.ring_doorbell();
        Ok(Point { channel: self, seq })
    }

    /// As [`Self::push`], and keeps `staged` alive until the entries have run.
    pub fn push_staged(
        &'static self,
        waits: &[Entry],
        entry: &Entry,
        staged: Box<[u8]>,
    ) -> CudaResult<Point> {
        self.check()?;
        let mut producer = self.producer();
        let done = self.done();
        while producer.staged.front().is_some_and(|(seq, _)| *seq <= done) {
            producer.staged.pop_front();
        }
        let seq = self.publish(&mut producer, waits.iter().chain([entry]))?;
        producer.staged.push_back((seq, staged));
        drop(producer);
        self.space.ring_doorbell();
        Ok(Point { channel: self, seq })
    }

    /// Publishes a host function, which a thread of this channel runs when its turn comes.
    pub fn push_host(&'static self, waits: &[Entry], function: HostFunction) -> CudaResult<Point> {
        self.check()?;
        let queue = self.host.get_or_init(|| {
            let queue = Arc::new(HostQueue::default());
            let theirs = Arc::clone(&queue);
            driver::spawn("vgpu-host-func", move || self.run_host_functions(&theirs));
            queue
        });
        let mut producer = self.producer();
        producer.host_functions += 1;
        let entry = entry(Op::HostFunc, &[producer.host_functions]);
        let seq = self.publish(&mut producer, waits.iter().chain([&entry]))?;
        // Queued under the producer's lock, so that functions are queued in ring order.
        let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((seq, function));
        queue.changed.notify_one();
        drop((waiting, producer));
        self.space.ring_doorbell();
        Ok(Point { channel: self, seq })
    }

    fn run_host_functions(&'static self, queue: &HostQueue) {
        loop {
            let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let (turn, function) = loop {
                match waiting.pop_front() {
                    Some(next) => break next,
                    None => {
                        waiting = queue
                            .changed
                            .wait(waiting)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(waiting);
            if self.wait_begun(turn).is_ok() {
                function();
                self.ring.host_done.fetch_add(1, Ordering::Release);
                self.space.ring_doorbell();
            }
        }
    }

    /// A semaphore value that the device reaches once it has finished `seq` entries.
    fn release_after(&self, seq: u64) -> CudaResult<u64> {
        self.check()?;
        let mut producer = self.producer();
        if seq <= producer.released {
            return Ok(producer.semaphore_value);
        }
        producer.semaphore_value += 1;
        let entry = entry(
            Op::Release,
            &[u64::from(self.semaphore), producer.semaphore_value],
        );
        producer.released = self.publish(&mut producer, [&entry].into_iter())?;
        let value = producer.semaphore_value;
        drop(producer);
        self.space.ring_doorbell();
        Ok(value)
    }

    fn publish<'a>(
        &self,
        producer: &mut Producer,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> CudaResult<u64> {
        for entry in entries {
            if producer.put - self.done() >= ENTRIES as u64 {
                self.space.ring_doorbell();
                let _held = locks::call(self.gpu);
                self.wait(producer.put - ENTRIES as u64 + 1)?;
            }
            let mut entry = *entry;
            if entry.launch == 0 {
                entry.launch = self.number << 48 | producer.put;
            }
            let at = (producer.put % ENTRIES as u64) as usize;
            // SAFETY: `at` is inside the ring's entries; the entry before it in that place is
            // finished, and the producer's lock makes this thread the only writer.
            unsafe { self.entries.add(at).write(entry) };
            producer.put += 1;
            self.ring.put.store(producer.put, Ordering::Release);
        }
        Ok(producer.put)
    }

    /// Sleeps until `seq` entries are finished.
    pub fn wait(&self, seq: u64) -> CudaResult {
        self.wait_for(&self.ring.done, seq)
    }

    /// Sleeps until the execution of `seq` entries has begun.
    fn wait_begun(&self, seq: u64) -> CudaResult {
        self.wait_for(&self.ring.get, seq)
    }

    fn wait_for(&self, counter: &AtomicU64, seq: u64) -> CudaResult {
        let mut spins = 0;
        loop {
            let seen = counter.load(Ordering::Acquire);
            if seen >= seq {
                return self.check();
            }
            self.check()?;
            if spins < SPINS {
                spins += 1;
                spin_loop();
                continue;
            }
            futex::wait(futex::low_half(counter), seen as u32, LOOK_AGAIN);
            if counter.load(Ordering::Acquire) == seen && !self.gpu.rm.alive() {
                self.lost.store(CUresult::UNKNOWN.0, Ordering::Relaxed);
            }
        }
    }

    /// Everything published so far.
    pub fn end(&'static self) -> Point {
        let seq = self.producer().put;
        Point { channel: self, seq }
    }
}

/// An entry with these arguments.
pub fn entry(op: Op, arguments: &[u64]) -> Entry {
    let mut args = [0; ARGS];
    args[..arguments.len()].copy_from_slice(arguments);
    Entry {
        op: op as u32,
        args_used: arguments.len() as u32,
        kernel: 0,
        launch: 0,
        args,
        dims: [0; 6],
        sms: [0; 2],
    }
}

/// Waits until `semaphore` is at least `value`.
pub fn acquire(semaphore: u32, value: u64) -> Entry {
    entry(Op::Acquire, &[u64::from(semaphore), value])
}
