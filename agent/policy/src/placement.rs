//! What an offline job would get on a node: a share of its throughput with the GPUs to itself.
//!
//! ```text
//!   ratio = memory x (open - switches - moves - again) x share x correction        at most 1
//!
//!   open        share of the time in which every gate of the job's GPUs was open       (slice::OpenSets)
//!   switches    openings x the time of a disable and an enable
//!   moves       bytes that fell x the time of giving them back while the job is stopped
//!   again       net x lost / (net + lost): net is what is left of open until here, and lost the units lost a second x
//!               the time of computing one again; what is lost again before that was done is not done twice
//!   memory      mean over open time of the profile's curve at what the GPU had then    (slice::Available)
//!   share       of the job among those on the same GPUs
//!   correction  measured over predicted of this profile here                           (crate::tend)
//! ```
//!
//! This is Valve's model (arXiv 2604.07874, section 6), whose factors are idle time, memory and GPUs together. The last
//! one is exact here: the time of a set of GPUs is counted, where Valve uses a threshold for each pair's overlap.
//!
//! Memory that falls counts as work done again, because *missing* memory is already in the curve. Of what a job holds,
//! as much is lost as of the pool falls, times a factor of the job's profile: a request that loses a part computes all
//! of it again.
//!
//! A history is divided into *windows* of an hour, and each is predicted by itself. The prediction is the value that
//! nine of ten windows reach, or the least value if there are fewer than ten. The same is done with windows of the
//! length by which a job is judged, and the lower value counts: an hour that gives enough on average may begin with ten
//! minutes that do not. If a job may get several sets of GPUs, the set that gives least counts: a scheduler that places
//! by the number need not know which set it will be.
//!
//! Rounding goes down. Time that belongs to no known set counts as closed. Within a level of memory the curve is a
//! straight line between its ends, and a curve that flattens never falls below it. For several GPUs, openings, falls
//! and memory are those of the worst one: exact if one online engine spans them, as with tensor parallelism, and too
//! optimistic if each has its own. The correction accounts for the rest.

mod fit;
mod profile;
mod slice;

pub use fit::{Did, Fitted, Unfit, fit};
pub use profile::{Draft, MOST_GIB, NAME, POINTS, Profile, Wrong, is_name};
pub use slice::{Available, GpuSlice, LEVELS, Level, MAX_SETS, OpenSets, Slice};

use crate::ids::{GpuId, GpuSet};
use crate::time::nanos;
use core::fmt;
use core::time::Duration;
use profile::GIB;

/// How many sets of GPUs are tried one by one. A node with more sets answers for all of its GPUs at once, which is no
/// better than any set. Half of eight GPUs are 70 sets, half of sixteen 12,870.
pub const MOST_CHOICES: u64 = 16_384;

/// The period of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Length of a window: an hour of a day sees the slow changes of a load, and evens out single bursts.
    pub window: Duration,
    /// Length of the windows by which jobs are judged: [`crate::tend::Tending::window`]. If it is not shorter than a
    /// window, it changes nothing.
    pub judged: Duration,
    /// With less history there is no prediction.
    pub least: Duration,
    /// How many of a hundred windows reach the predicted value.
    pub percent: u8,
}

impl Default for Horizon {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(3_600),
            judged: Duration::from_secs(600),
            least: Duration::from_secs(3_600),
            percent: 90,
        }
    }
}

/// How long operations on a job take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// To disable its channels and to enable them again, once each. Valve (section 4.1) reports less than 1 ms each;
    /// 0.3 ms is what replay assumes, until a node has measured its own.
    pub switch: Duration,
    /// To give back a GiB of memory, while the job is stopped: 512 handles of 2 MiB at 256 us, of which 193 us make the
    /// handle and 63 us exchange it for the quarantine page (kvcached, `benchmarks/bench_vmm`, A100).
    pub give_back_gib: Duration,
    /// The most that is given back in a second in which the job runs, GiB: `Sharing::batch` each
    /// `Sharing::restore_interval`.
    pub give_back_gib_per_s: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            switch: Duration::from_micros(600),
            give_back_gib: Duration::from_micros(256 * 512),
            give_back_gib_per_s: 0.25,
        }
    }
}

/// What is known of a node, for one profile.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its GPUs that offline may have.
    pub gpus: GpuSet,
    /// Its history, in any order.
    pub slices: &'a [Slice],
    /// The period of the prediction.
    pub horizon: Horizon,
    /// How long operations take.
    pub costs: Costs,
    /// The job's share of the offline time of its GPUs, by weight among the jobs there; 1 if it is alone.
    pub share: f64,
    /// Measured over predicted for this profile here; 1 if nothing was measured.
    pub correction: f64,
    /// Units per second that a job of this profile lost here, if one ran; used instead of the estimate from what falls.
    pub lost_per_s: Option<f64>,
}

impl<'a> Node<'a> {
    /// A node with this history, about which nothing else is known.
    #[must_use]
    pub fn new(gpus: GpuSet, slices: &'a [Slice]) -> Self {
        Self {
            gpus,
            slices,
            horizon: Horizon::default(),
            costs: Costs::default(),
            share: 1.0,
            correction: 1.0,
            lost_per_s: None,
        }
    }
}

/// The parts of a prediction: shares of time, and factors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Every gate was open.
    pub open: f64,
    /// Of that, lost to switches.
    pub switches: f64,
    /// Lost while memory is given back.
    pub moves: f64,
    /// Spent on computing lost units again.
    pub again: f64,
    /// The factor that the memory allows.
    pub memory: f64,
    /// Share among jobs.
    pub share: f64,
    /// Measured over predicted.
    pub correction: f64,
}

impl Parts {
    /// The product.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let open = self.open - self.switches - self.moves - self.again;
        bounded(self.memory * open.max(0.0) * self.share * self.correction)
    }
}

/// Zero if it is not a number.
const fn bounded(ratio: f64) -> f64 {
    if ratio > 0.0 { ratio.min(1.0) } else { 0.0 }
}

/// Why there is no prediction for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// It has fewer GPUs for offline than the job needs.
    Gpus {
        /// Its GPUs for offline.
        has: u32,
        /// The GPUs that the job needs.
        needs: u8,
    },
    /// Too little history.
    History {
        /// The history that there is.
        has: Duration,
        /// The history that is needed.
        needs: Duration,
    },
    /// No sample has the memory of a GPU: it is not shared there.
    MemoryNotShared(GpuId),
    /// The job needs more memory than offline ever had.
    Memory {
        /// The most it had, on the GPU with the least, GiB.
        has: f64,
        /// The memory that the job needs, GiB.
        needs: f64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gpus { has, needs } => {
                write!(
                    out,
                    "the job needs {needs} GPUs and offline may have {has} here"
                )
            }
            Self::History { has, needs } => {
                let (has, needs) = (has.as_secs() / 60, needs.as_secs().div_ceil(60));
                write!(
                    out,
                    "the history is of {has} min; nothing is said before {needs} min"
                )
            }
            Self::MemoryNotShared(gpu) => write!(
                out,
                "memory of GPU {} is not shared: set [memory] pool and use the engines' plugins",
                gpu.0
            ),
            Self::Memory { has, needs } => write!(
                out,
                "the job needs {needs:.1} GiB on each GPU, and offline had {has:.1} GiB at most"
            ),
        }
    }
}

/// A prediction for a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The share of its rate with the GPUs to itself, from 0 to 1, in [`Horizon::percent`] windows of a hundred; 0 with
    /// a refusal.
    pub ratio: f64,
    /// The same for the mean of all windows; for several sets, the least.
    pub mean: f64,
    /// The parts of [`Prediction::ratio`], in the window that it comes from.
    pub parts: Parts,
    /// The GPUs of the prediction: of all sets that the job may get, the one that gives least.
    pub gpus: GpuSet,
    /// The number of windows. With fewer than ten the least one counts.
    pub windows: u32,
    /// The share of the time with open gates of unknown GPUs, which counts as closed.
    pub unknown: f64,
    /// Why there is no prediction; empty: there is one.
    pub refusals: Vec<Refusal>,
}

impl Prediction {
    fn refused(refusals: Vec<Refusal>) -> Self {
        Self {
            ratio: 0.0,
            mean: 0.0,
            parts: Parts::default(),
            gpus: GpuSet::EMPTY,
            windows: 0,
            unknown: 0.0,
            refusals,
        }
    }

    /// What is published: whole per cent, rounded down; `None` with a refusal.
    #[must_use]
    pub fn percent(&self) -> Option<u8> {
        // A hair more, so that 0.29 times 100 is 29.
        let percent = (self.ratio * 100.0 + 1e-9).floor();
        self.refusals.is_empty().then_some(percent as u8)
    }
}

/// What a job of `profile` on `k` GPUs of `node` would get, whichever they are.
#[must_use]
pub fn predict(profile: &Profile, k: u8, node: &Node<'_>) -> Prediction {
    if node.gpus.len() < u32::from(k.max(1)) {
        return Prediction::refused(vec![Refusal::Gpus {
            has: node.gpus.len(),
            needs: k,
        }]);
    }
    let told = match Told::of(profile, node.gpus, node) {
        Ok(told) => told,
        Err(refusals) => return Prediction::refused(refusals),
    };
    if choices(node.gpus.len(), u32::from(k)) > MOST_CHOICES {
        return told.on(node.gpus);
    }
    let all = Choices::of(node.gpus, k).map(|gpus| told.on(gpus));
    let worst = all.reduce(|a, b| {
        let mean = a.mean.min(b.mean);
        let worst = if b.ratio < a.ratio { b } else { a };
        Prediction { mean, ..worst }
    });
    worst.unwrap_or_else(|| told.on(node.gpus))
}

/// What a job of `profile` on exactly `gpus` of `node` would get.
#[must_use]
pub fn predict_on(profile: &Profile, gpus: GpuSet, node: &Node<'_>) -> Prediction {
    let has = gpus.intersection(node.gpus);
    if has != gpus || gpus.is_empty() {
        return Prediction::refused(vec![Refusal::Gpus {
            has: has.len(),
            needs: u8::try_from(gpus.len()).unwrap_or(u8::MAX),
        }]);
    }
    match Told::of(profile, gpus, node) {
        Ok(told) => told.on(gpus),
        Err(refusals) => Prediction::refused(refusals),
    }
}

/// The `k` GPUs of `free` that give a job of `profile` most; of equal ones the first. `None`: too few are free, or
/// nothing is said of them.
#[must_use]
pub fn best(profile: &Profile, k: u8, free: GpuSet, node: &Node<'_>) -> Option<Prediction> {
    let free = free.intersection(node.gpus);
    if free.len() < u32::from(k.max(1)) {
        return None;
    }
    let told = Told::of(profile, free, node).ok()?;
    let tried = Choices::of(free, k).take(usize::try_from(MOST_CHOICES).unwrap_or(usize::MAX));
    let mut best: Option<Prediction> = None;
    for gpus in tried {
        let prediction = told.on(gpus);
        if best
            .as_ref()
            .is_none_or(|best| prediction.ratio > best.ratio)
        {
            best = Some(prediction);
        }
    }
    best
}

/// Sets of `k` of `n`.
fn choices(n: u32, k: u32) -> u64 {
    let mut count = 1u64;
    for i in 0..u64::from(k.min(n - k)) {
        count = count.saturating_mul(u64::from(n) - i) / (i + 1);
    }
    count
}

/// All sets of `k` of some GPUs, each once, in order.
struct Choices {
    of: Vec<GpuId>,
    /// Places in `of`, rising; empty: no more.
    at: Vec<usize>,
}

impl Choices {
    fn of(gpus: GpuSet, k: u8) -> Self {
        Self {
            of: gpus.iter().collect(),
            at: (0..usize::from(k.max(1))).collect(),
        }
    }
}

impl Iterator for Choices {
    type Item = GpuSet;

    fn next(&mut self) -> Option<GpuSet> {
        let (n, k) = (self.of.len(), self.at.len());
        if k == 0 {
            return None;
        }
        let set = self.at.iter().filter_map(|&at| self.of.get(at).copied());
        let set = set.collect();
        // The last place that can go on does, and those behind it follow it.
        match (0..k).rev().find(|&i| self.at[i] + k < n + i) {
            Some(i) => {
                let first = self.at[i] + 1;
                for (step, at) in self.at[i..].iter_mut().enumerate() {
                    *at = first + step;
                }
            }
            None => self.at.clear(),
        }
        Some(set)
    }
}

/// A history, with the profile's memory in it.
struct Told<'a> {
    node: &'a Node<'a>,
    profile: &'a Profile,
    /// By number.
    seen: Vec<Seen<'a>>,
}

/// A slice, and what of the rate each of its GPUs has memory for.
struct Seen<'a> {
    slice: &'a Slice,
    memory: Vec<(GpuId, f64)>,
}

impl<'a> Told<'a> {
    /// What the history says of `gpus`, or why it says nothing.
    fn of(profile: &'a Profile, gpus: GpuSet, node: &'a Node<'a>) -> Result<Self, Vec<Refusal>> {
        let pool = |gpu: GpuId| {
            let pools = node.slices.iter().filter_map(|slice| pool_of(slice, gpu));
            pools.max()
        };
        let mut refusals: Vec<Refusal> = gpus
            .iter()
            .filter(|&gpu| pool(gpu).is_none())
            .map(Refusal::MemoryNotShared)
            .collect();
        // Before memory was shared there was no history of it.
        let knows = |slice: &&Slice| gpus.iter().all(|gpu| pool_of(slice, gpu).is_some());
        let mut slices: Vec<&Slice> = node.slices.iter().filter(knows).collect();
        slices.sort();
        let seen: u64 = slices
            .iter()
            .fold(0, |sum, slice| sum.saturating_add(slice.length_ns));
        let least = nanos(node.horizon.least).max(1);
        if refusals.is_empty() && seen < least {
            refusals.push(Refusal::History {
                has: Duration::from_nanos(seen),
                needs: node.horizon.least,
            });
        }
        // Less for a while only makes its longest request wait; less for good makes it wait for ever.
        let most = gpus.iter().map(|gpu| most(&slices, gpu) as f64 / GIB);
        let has = most.fold(f64::INFINITY, f64::min);
        if refusals.is_empty() && has < profile.least_gib() {
            refusals.push(Refusal::Memory {
                has,
                needs: profile.least_gib(),
            });
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let slices = slices.into_iter().map(|slice| Seen {
            slice,
            memory: gpus
                .iter()
                .map(|gpu| (gpu, memory(profile, slice, gpu)))
                .collect(),
        });
        Ok(Self {
            node,
            profile,
            seen: slices.collect(),
        })
    }

    /// What a job on `gpus` would get.
    fn on(&self, gpus: GpuSet) -> Prediction {
        let horizon = &self.node.horizon;
        let hours = self.parts_of(horizon.window, gpus);
        let mean = hours.iter().map(Parts::ratio).sum::<f64>() / hours.len().max(1) as f64;
        let mut parts_at = self.reached(&hours);
        if horizon.judged < horizon.window {
            let judged = self.reached(&self.parts_of(horizon.judged, gpus));
            if judged.ratio() < parts_at.ratio() {
                parts_at = judged;
            }
        }
        let all = windows(&self.seen, nanos(horizon.window));
        let all = all.into_iter().flatten();
        let (unknown, length) = all.fold((0.0, 0.0), |(unknown, length), seen| {
            let slice = seen.slice;
            (
                unknown + slice.open.unknown() as f64,
                length + slice.length_ns as f64,
            )
        });
        Prediction {
            ratio: parts_at.ratio(),
            mean,
            parts: parts_at,
            gpus,
            windows: u32::try_from(hours.len()).unwrap_or(u32::MAX),
            unknown: unknown / f64::max(length, 1.0),
            refusals: Vec::new(),
        }
    }

    /// Each window of this length, the least first.
    fn parts_of(&self, length: Duration, gpus: GpuSet) -> Vec<Parts> {
        let all = windows(&self.seen, nanos(length)).into_iter();
        let mut parts: Vec<Parts> = all.map(|window| self.parts(window, gpus)).collect();
        parts.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        parts
    }

    /// The one that as many reach as the horizon asks for.
    fn reached(&self, parts: &[Parts]) -> Parts {
        let beyond = usize::from(100 - self.node.horizon.percent.min(100));
        let at = (parts.len() * beyond / 100).min(parts.len().saturating_sub(1));
        parts.get(at).copied().unwrap_or_default()
    }

    /// One window.
    fn parts(&self, window: &[Seen<'_>], gpus: GpuSet) -> Parts {
        let (mut length, mut open, mut worth) = (0.0, 0.0, 0.0);
        let (mut openings, mut fallen, mut pools_fallen) = (0.0, 0.0, 0.0);
        for seen in window {
            let slice = seen.slice;
            let own = |gpu: &GpuSlice| gpus.contains(gpu.gpu);
            let own: Vec<&GpuSlice> = slice.gpus.iter().filter(|gpu| own(gpu)).collect();
            // What a broken record says beyond the slice was not.
            let together = slice.open.together(gpus).min(slice.length_ns) as f64;
            length += slice.length_ns as f64;
            open += together;
            worth += together * seen.memory_of(gpus);
            openings += f64::from(own.iter().map(|gpu| gpu.openings).max().unwrap_or(0));
            let falls = own.iter().filter_map(|gpu| gpu.available);
            fallen += falls.clone().map(|own| own.fallen.0).max().unwrap_or(0) as f64 / GIB;
            let pools = falls.map(|own| own.fallen.0 as f64 / own.pool.0.max(1) as f64);
            pools_fallen += pools.fold(0.0, f64::max);
        }
        let length = f64::max(length, 1.0);
        let ns = |span: Duration| span.as_nanos() as f64;
        let lost_per_s = self
            .node
            .lost_per_s
            .unwrap_or(self.profile.lost_per_pool() * pools_fallen / (length / 1e9));
        let costs = &self.node.costs;
        let given_back = fallen.min(costs.give_back_gib_per_s * open / 1e9);
        let switches = openings * ns(costs.switch) / length;
        let moves = given_back * ns(costs.give_back_gib) / length;
        let net = (open / length - switches - moves).max(0.0);
        let lost = lost_per_s.max(0.0) * self.profile.again_s();
        Parts {
            open: open / length,
            switches,
            moves,
            again: if lost > 0.0 {
                net * lost / (net + lost)
            } else {
                0.0
            },
            memory: if open > 0.0 { worth / open } else { 0.0 },
            share: bounded(self.node.share),
            correction: self.node.correction,
        }
    }
}

impl Seen<'_> {
    /// What the GPU of `gpus` that has least memory has memory for.
    fn memory_of(&self, gpus: GpuSet) -> f64 {
        let own = self.memory.iter().filter(|own| gpus.contains(own.0));
        own.map(|own| own.1).reduce(f64::min).unwrap_or(0.0)
    }
}

/// The pool of a GPU in a slice.
fn pool_of(slice: &Slice, gpu: GpuId) -> Option<u64> {
    let pool = slice.gpu(gpu)?.available?.pool.0;
    (pool > 0).then_some(pool)
}

/// The highest mean of any level of a GPU's memory.
fn most(slices: &[&Slice], gpu: GpuId) -> u64 {
    let known = slices.iter().filter_map(|slice| slice.gpu(gpu)?.available);
    let levels = known.flat_map(|own| own.levels);
    levels.map(|level| level.mean().0).max().unwrap_or(0)
}

/// Mean over open time of what the profile does with what the GPU had.
fn memory(profile: &Profile, slice: &Slice, gpu: GpuId) -> f64 {
    memory_by(|gib| profile.memory_share(gib), slice, gpu)
}

/// The same of any curve.
fn memory_by(share: impl Fn(f64) -> f64, slice: &Slice, gpu: GpuId) -> f64 {
    let Some(own) = slice.gpu(gpu).and_then(|own| own.available) else {
        return 0.0;
    };
    let eighth = own.pool.0 as f64 / GIB / LEVELS as f64;
    let (mut time, mut worth) = (0.0, 0.0);
    for (place, level) in own.levels.iter().enumerate().filter(|level| level.1.ns > 0) {
        let ends = [place as f64, place as f64 + 1.0].map(|end| end * eighth);
        let [low, high] = ends.map(&share);
        let into = (level.mean().0 as f64 / GIB - ends[0]) / eighth;
        time += level.ns as f64;
        worth += level.ns as f64 * (low + (high - low) * into.clamp(0.0, 1.0));
    }
    if time > 0.0 { worth / time } else { 0.0 }
}

/// What was seen, in order, from the newest back in windows of at least `length`; what is left over at the oldest end
/// belongs to no window, unless it is all there is.
fn windows<'a, 'b>(seen: &'b [Seen<'a>], length: u64) -> Vec<&'b [Seen<'a>]> {
    let (mut all, mut end, mut sum) = (Vec::new(), seen.len(), 0u64);
    for begin in (0..seen.len()).rev() {
        sum = sum.saturating_add(seen[begin].slice.length_ns);
        if sum >= length {
            all.push(&seen[begin..end]);
            (end, sum) = (begin, 0);
        }
    }
    if all.is_empty() && !seen.is_empty() {
        all.push(seen);
    }
    all
}
