//! Where a node's time goes: how long online used each GPU, and what offline got of the rest.
//!
//! The shell reports the state after every decision. Nothing changes between two of these reports, so the time between
//! them belongs to the earlier one. The results are totals since the agent's start; readers (metrics, the history on
//! disk, `tidegate report`) take differences.
//!
//! * *Running*: an offline job's work may be on a GPU, because its channels are enabled or its launches pass. The agent
//!   does not know whether the job had work; it counts the job's launches as well.
//! * *Gap*: an idle time of online on a GPU between two busy periods.
//! * *Overlap* of two GPUs: the time during which online was busy on both.
//!
//! Invariants: for each GPU, `busy <= observed` and `open <= observed`. The overlap of two GPUs is at most the busy
//! time of either. After a job was first seen, nothing is allocated.

use crate::kinds::gpu_id;
use crate::latency::Buckets;
use tidegate_policy::ids::{Bytes, GpuId, GpuSet, JobId};
use tidegate_policy::placement::{Available, OpenSets};
use tidegate_policy::view::{JobUse, Standing};

/// Bounds of the histogram of gaps, ns.
pub const GAP_BOUNDS_NS: [u64; 16] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    300_000_000_000,
];

/// Totals of one GPU since the start, ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuTime {
    /// An online process counted as busy.
    pub busy: u64,
    /// The gate was open.
    pub open: u64,
    /// An offline job's work may have been on it.
    pub running: u64,
    /// Times the gate opened.
    pub openings: u64,
    /// Memory that online left, where it is shared.
    pub available: Option<Available>,
    /// How much that is at this moment.
    room: Bytes,
    /// Busy edges.
    pub edges: u64,
    /// Gaps that ended.
    pub gaps: Buckets,
    /// Since when online is idle; None: it is busy, or never was.
    idle_since: Option<u64>,
}

/// Totals of one job since it came, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobTime {
    /// It had a process.
    pub attached: u64,
    /// Its work may have been on its GPUs.
    pub running: u64,
    /// The operator had paused it, or drained the node, while it had a process.
    pub paused: u64,
    /// GPUs it uses, or used last.
    pub gpus: GpuSet,
    /// Memory that it held of the pools, bytes x ns.
    held: u128,
    is_attached: bool,
    runs: bool,
    is_paused: bool,
    holds: Bytes,
}

impl JobTime {
    /// Memory that it held of the pools, over time: bytes x s.
    #[must_use]
    pub fn held_byte_seconds(&self) -> u64 {
        u64::try_from(self.held / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

/// All totals of a node.
#[derive(Clone, Debug)]
pub struct Usage {
    started: u64,
    until: u64,
    standing: Standing,
    running: GpuSet,
    gpus: Vec<GpuTime>,
    jobs: Vec<JobTime>,
    /// Of GPUs `a < b`, in the order (0,1), (0,2), ... (1,2), ...
    overlaps: Vec<u64>,
    sets: OpenSets,
}

/// Where the pair `a < b` of `count` GPUs is in a list of all pairs.
const fn pair(count: usize, a: usize, b: usize) -> usize {
    a * (2 * count - a - 1) / 2 + (b - a - 1)
}

impl Usage {
    /// Nothing used of `count` GPUs yet.
    #[must_use]
    pub fn new(count: usize, now: u64) -> Self {
        let gpu = GpuTime {
            gaps: Buckets::new(&GAP_BOUNDS_NS),
            ..GpuTime::default()
        };
        Self {
            started: now,
            until: now,
            standing: Standing::default(),
            running: GpuSet::EMPTY,
            gpus: vec![gpu; count],
            jobs: Vec::new(),
            overlaps: vec![0; count * count.saturating_sub(1) / 2],
            sets: OpenSets::new(),
        }
    }

    /// From `now` on things stand like this; until now they stood as said before.
    pub fn stand(&mut self, standing: Standing, jobs: impl Iterator<Item = JobUse>, now: u64) {
        self.advance(now);
        for index in 0..self.gpus.len() {
            let id = gpu_id(index);
            let gpu = &mut self.gpus[index];
            let opens = standing.open.contains(id) && !self.standing.open.contains(id);
            gpu.openings += u64::from(opens);
            match (self.standing.busy.contains(id), standing.busy.contains(id)) {
                (false, true) => {
                    gpu.edges += 1;
                    if let Some(since) = gpu.idle_since.take() {
                        gpu.gaps.record(now - since);
                    }
                }
                (true, false) => gpu.idle_since = Some(now),
                _ => {}
            }
        }
        self.standing = standing;
        self.running = GpuSet::EMPTY;
        for job in &mut self.jobs {
            (job.is_attached, job.runs) = (false, false);
            (job.is_paused, job.holds) = (false, Bytes::ZERO);
        }
        for own in jobs {
            let Ok(index) = usize::try_from(own.job.0) else {
                continue;
            };
            if index >= self.jobs.len() {
                self.jobs.resize(index + 1, JobTime::default());
            }
            let job = &mut self.jobs[index];
            (job.is_attached, job.runs, job.gpus) = (true, own.runs, own.gpus);
            (job.is_paused, job.holds) = (own.paused, own.held);
            if own.runs {
                self.running = self.running.union(own.gpus);
            }
        }
    }

    /// Online leaves so much of a GPU's pool from `now` on.
    pub fn leave(&mut self, gpu: GpuId, pool: Bytes, room: Bytes, now: u64) {
        let Some(known) = self.gpus.get(gpu.index()) else {
            return;
        };
        if known.available.is_some_and(|own| own.pool == pool) && known.room == room {
            return;
        }
        self.advance(now);
        let own = &mut self.gpus[gpu.index()];
        match &mut own.available {
            Some(available) => {
                available.pool = pool;
                available.moved(own.room, room);
            }
            None => own.available = Some(Available::of(pool)),
        }
        own.room = room;
    }

    fn advance(&mut self, now: u64) {
        let time = now.saturating_sub(self.until);
        self.until = self.until.max(now);
        self.sets.add(self.standing.open, time);
        let count = self.gpus.len();
        for index in 0..count {
            let id = gpu_id(index);
            let gpu = &mut self.gpus[index];
            if self.standing.open.contains(id) {
                gpu.open += time;
                if let Some(available) = &mut gpu.available {
                    available.add(gpu.room, time);
                }
            }
            if self.running.contains(id) {
                gpu.running += time;
            }
            if self.standing.busy.contains(id) {
                gpu.busy += time;
                for other in index + 1..count {
                    if self.standing.busy.contains(gpu_id(other)) {
                        self.overlaps[pair(count, index, other)] += time;
                    }
                }
            }
        }
        for job in &mut self.jobs {
            job.attached += if job.is_attached { time } else { 0 };
            job.running += if job.runs { time } else { 0 };
            job.paused += if job.is_paused { time } else { 0 };
            let held = u128::from(job.holds.0) * u128::from(time);
            job.held = job.held.saturating_add(held);
        }
    }

    /// The same, up to `now`.
    #[must_use]
    pub fn at(&self, now: u64) -> Self {
        let mut copy = self.clone();
        copy.advance(now);
        copy
    }

    /// Time since the start, ns.
    #[must_use]
    pub const fn observed(&self) -> u64 {
        self.until - self.started
    }

    /// Totals by GPU.
    #[must_use]
    pub fn gpus(&self) -> &[GpuTime] {
        &self.gpus
    }

    /// Time of each exact set of open gates.
    #[must_use]
    pub const fn open_sets(&self) -> &OpenSets {
        &self.sets
    }

    /// Totals of a job, if it was ever seen.
    #[must_use]
    pub fn job(&self, job: JobId) -> JobTime {
        let index = usize::try_from(job.0).unwrap_or(usize::MAX);
        self.jobs.get(index).copied().unwrap_or_default()
    }

    /// A job begins, with a number that another may have had.
    pub(crate) fn begin(&mut self, job: JobId) {
        let index = usize::try_from(job.0).unwrap_or(usize::MAX);
        if let Some(known) = self.jobs.get_mut(index) {
            *known = JobTime::default();
        }
    }

    /// Time in which online was busy on both GPUs, ns.
    #[must_use]
    pub fn overlap(&self, a: GpuId, b: GpuId) -> u64 {
        let (a, b) = (a.index().min(b.index()), a.index().max(b.index()));
        if a == b {
            return self.gpus.get(a).map_or(0, |gpu| gpu.busy);
        }
        let place = pair(self.gpus.len(), a, b);
        self.overlaps.get(place).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(bits: u8) -> GpuSet {
        (0..3u8)
            .filter(|bit| bits & (1 << bit) != 0)
            .map(GpuId)
            .collect()
    }

    const fn using(job: u32, gpus: u8, runs: bool) -> JobUse {
        JobUse {
            job: JobId(job),
            gpus: GpuSet::from_bits(gpus as u64),
            runs,
            paused: false,
            held: Bytes::ZERO,
        }
    }

    proptest! {
        #[test]
        fn time_is_added_to_what_stood_and_to_nothing_else(
            steps in prop::collection::vec((0u64..1_000, 0u8..8, 0u8..8, 0u8..8), 1..60),
        ) {
            let mut usage = Usage::new(3, 100);
            let (mut now, mut before) = (100, (0u8, 0u8, 0u8));
            let mut busy = [0; 3];
            let (mut open, mut running, mut both, mut edges) = (0, 0, 0, 0);
            let (mut together, mut openings) = (0, 0);
            for (time, is_busy, is_open, runs) in steps {
                now += time;
                for (gpu, total) in busy.iter_mut().enumerate() {
                    *total += if before.0 & (1 << gpu) != 0 { time } else { 0 };
                }
                open += if before.1 & 1 != 0 { time } else { 0 };
                running += if before.2 & 1 != 0 { time } else { 0 };
                both += if before.0 & 6 == 6 { time } else { 0 };
                together += if before.1 & 6 == 6 { time } else { 0 };
                openings += u64::from(before.1 & 1 == 0 && is_open & 1 != 0);
                edges += u64::from(before.0 & 1 == 0 && is_busy & 1 != 0);
                let standing = Standing { busy: set(is_busy), open: set(is_open) };
                usage.stand(standing, [using(1, runs, true)].into_iter(), now);
                before = (is_busy, is_open, runs);
            }
            prop_assert_eq!(usage.observed(), now - 100);
            for (gpu, total) in usage.gpus().iter().zip(busy) {
                prop_assert_eq!(gpu.busy, total);
            }
            prop_assert_eq!(usage.gpus()[0].open, open);
            prop_assert_eq!(usage.gpus()[0].running, running);
            prop_assert_eq!(usage.gpus()[0].edges, edges);
            prop_assert_eq!(usage.gpus()[0].openings, openings);
            prop_assert_eq!(usage.open_sets().together(set(6)), together);
            prop_assert_eq!(usage.overlap(GpuId(2), GpuId(1)), both);
            prop_assert!(usage.gpus()[0].gaps.count() <= edges);
        }
    }

    proptest! {
        /// P-CLUSTER-1: memory counts while the gate is open, what falls always.
        #[test]
        fn memory_is_that_of_open_time_and_falls_are_all_counted(
            steps in prop::collection::vec((0u64..=800, any::<bool>(), 0u64..1_000), 1..60),
        ) {
            let mut usage = Usage::new(1, 0);
            let (mut now, mut fallen, mut last, mut time) = (0, 0, None, [0u64; 8]);
            for (room, opens, ns) in steps {
                usage.leave(GpuId(0), Bytes(800), Bytes(room), now);
                let standing = Standing { busy: GpuSet::EMPTY, open: set(u8::from(opens)) };
                usage.stand(standing, std::iter::empty(), now);
                fallen += last.map_or(0, |last: u64| last.saturating_sub(room));
                time[usize::try_from(room / 100).expect("small").min(7)] += if opens { ns } else { 0 };
                (last, now) = (Some(room), now + ns);
            }
            let usage = usage.at(now);
            let seen = usage.gpus()[0].available.expect("shared");
            prop_assert_eq!(seen.fallen, Bytes(fallen));
            prop_assert_eq!(seen.levels.map(|level| level.ns), time);
            prop_assert_eq!(usage.gpus()[0].open, time.iter().sum::<u64>());
        }
    }

    #[test]
    fn memory_that_is_not_shared_is_not_counted() {
        let mut usage = Usage::new(1, 0);
        let standing = Standing {
            busy: GpuSet::EMPTY,
            open: set(1),
        };
        usage.stand(standing, std::iter::empty(), 0);
        assert_eq!(usage.at(10).gpus()[0].available, None);
    }

    #[test]
    fn a_gap_is_from_the_idle_edge_to_the_next_busy_edge() {
        let mut usage = Usage::new(1, 0);
        let busy = |on: bool| Standing {
            busy: set(u8::from(on)),
            open: GpuSet::EMPTY,
        };
        let none = || std::iter::empty();
        usage.stand(busy(true), none(), 10);
        usage.stand(busy(false), none(), 20);
        usage.stand(busy(false), none(), 1_000_020);
        usage.stand(busy(true), none(), 3_000_020);
        let gaps = &usage.gpus()[0].gaps;
        assert_eq!(usage.gpus()[0].gaps.count(), 1);
        assert_eq!(gaps.counts()[2], 1, "3 ms are above 2 and not above 5");
        assert_eq!(gaps.sum_ns(), 3_000_000);
    }

    /// P-CLUSTER-1: how long a job was paused, and what memory it held for how long.
    #[test]
    fn a_job_that_left_adds_no_time() {
        let mut usage = Usage::new(1, 0);
        usage.stand(
            Standing::default(),
            [JobUse {
                held: Bytes(3_000_000_000),
                ..using(0, 1, true)
            }]
            .into_iter(),
            0,
        );
        usage.stand(
            Standing::default(),
            [JobUse {
                paused: true,
                ..using(0, 1, false)
            }]
            .into_iter(),
            10,
        );
        usage.stand(Standing::default(), std::iter::empty(), 30);
        let job = usage.at(100).job(JobId(0));
        assert_eq!((job.running, job.attached), (10, 30));
        assert_eq!((job.paused, job.held_byte_seconds()), (20, 30));
    }
}
