//! From totals that only grow to slices of time.

use super::{
    GAPS, GpuSlice, JobSlice, MemorySlice, OpenSlice, PairSlice, Slice, Span, Subject, record,
};
use std::collections::BTreeMap;
use tidegate_proto::v1;

/// A job counts as undisturbed when at most one part in this many of a slice was not its own.
const DISTURBED: u64 = 50;

/// The slice under way.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    begin: Option<v1::GetStatusResponse>,
    newest: Option<v1::GetStatusResponse>,
    /// By GPU: the least, the sum and the number of samples of the memory online leaves.
    available: Vec<(u64, u128, u64)>,
}

fn observed(status: &v1::GetStatusResponse) -> u64 {
    let usage = status.gpus.first().and_then(|gpu| gpu.usage.as_ref());
    usage.map_or(0, |usage| usage.observed_ns)
}

/// What online neither uses nor keeps.
const fn available(memory: &v1::GpuMemory) -> u64 {
    memory
        .pool_bytes
        .saturating_sub(memory.online_bytes)
        .saturating_sub(memory.headroom_bytes)
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Cut {
    /// The newest totals.
    #[must_use]
    pub fn newest(&self) -> Option<v1::GetStatusResponse> {
        self.newest.clone()
    }

    /// Takes the totals at `unix_ms`; the slices since the last cut when that was `every` ns ago, or when
    /// these are the `last` totals there will be.
    pub fn see(
        &mut self,
        status: v1::GetStatusResponse,
        unix_ms: u64,
        every: u64,
        last: bool,
    ) -> Option<Vec<Slice>> {
        self.available.resize(status.gpus.len(), (u64::MAX, 0, 0));
        for (seen, gpu) in self.available.iter_mut().zip(&status.gpus) {
            if let Some(memory) = &gpu.memory {
                let bytes = available(memory);
                *seen = (seen.0.min(bytes), seen.1 + u128::from(bytes), seen.2 + 1);
            }
        }
        let Some(begin) = &self.begin else {
            self.begin = Some(status.clone());
            self.newest = Some(status);
            return None;
        };
        let length = observed(&status).saturating_sub(observed(begin));
        if length == 0 || (length < every && !last) {
            self.newest = Some(status);
            return None;
        }
        let span = Span {
            end_unix_ms: unix_ms,
            length_ns: length,
        };
        let slices = self.slices(begin, &status, span);
        self.available.clear();
        self.begin = Some(status.clone());
        self.newest = Some(status);
        Some(slices)
    }

    fn slices(
        &self,
        begin: &v1::GetStatusResponse,
        end: &v1::GetStatusResponse,
        span: Span,
    ) -> Vec<Slice> {
        let gpus: Vec<_> = begin.gpus.iter().zip(&end.gpus).collect();
        let of = |subject| Slice { span, subject };
        let mut slices = Vec::new();
        for (at, &(old, new)) in gpus.iter().enumerate() {
            let gpu = gpu_slice(at, old, new, self.available.get(at));
            slices.push(of(Subject::Gpu(gpu)));
        }
        for (a, &(old, new)) in gpus.iter().enumerate() {
            for (b, &(old_b, new_b)) in gpus.iter().enumerate().skip(a + 1) {
                let overlap = |gpu: &v1::GpuStatus| {
                    let usage = gpu.usage.as_ref();
                    usage.and_then(|usage| usage.overlap_ns.get(b).copied())
                };
                let both = overlap(new).unwrap_or(0) - overlap(old).unwrap_or(0);
                let busy = |old: &v1::GpuStatus, new: &v1::GpuStatus| {
                    let busy =
                        |gpu: &v1::GpuStatus| gpu.usage.as_ref().map_or(0, |u| u.online_busy_ns);
                    busy(new) - busy(old)
                };
                let pair = PairSlice {
                    a: index(a),
                    b: index(b),
                    both,
                    either: busy(old, new) + busy(old_b, new_b) - both,
                };
                slices.push(of(Subject::Pair(pair)));
            }
        }
        for mut job in by_name(&begin.jobs, &end.jobs) {
            let whole = |time: u64| time + time / DISTURBED >= span.length_ns;
            job.undisturbed = whole(job.attached) && whole(job.running);
            slices.push(of(Subject::Job(job)));
        }
        slices.extend(open_slices(begin, end).map(|open| of(Subject::Open(open))));
        for (at, &(old, new)) in gpus.iter().enumerate() {
            let memory = memory_slice(at, old, new);
            slices.extend(memory.map(|memory| of(Subject::Memory(memory))));
        }
        slices
    }
}

fn index(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

/// How long each set of gates was open, longest first, so that a reader of the first record knows the most.
fn open_slices(
    begin: &v1::GetStatusResponse,
    end: &v1::GetStatusResponse,
) -> impl Iterator<Item = OpenSlice> {
    let before: BTreeMap<u64, u64> = begin
        .open_sets
        .iter()
        .map(|set| (set.gpus, set.time_ns))
        .collect();
    let since = |set: &v1::OpenSet| {
        let old = before.get(&set.gpus).copied().unwrap_or(0);
        (set.gpus, set.time_ns.saturating_sub(old))
    };
    let mut sets: Vec<_> = end.open_sets.iter().map(since).collect();
    sets.retain(|(_, time)| *time != 0);
    sets.sort_by_key(|&(gpus, time)| (u64::MAX - time, gpus));
    let uncounted = end
        .open_uncounted_ns
        .saturating_sub(begin.open_uncounted_ns);
    // One without any says that no gate was open.
    let parts = sets.len().div_ceil(record::SETS).max(1);
    (0..parts).map(move |part| OpenSlice {
        part: index(part),
        uncounted: if part == 0 { uncounted } else { 0 },
        sets: sets
            .iter()
            .skip(part * record::SETS)
            .take(record::SETS)
            .copied()
            .collect(),
    })
}

/// None: the memory was not shared throughout.
fn memory_slice(at: usize, old: &v1::GpuStatus, new: &v1::GpuStatus) -> Option<MemorySlice> {
    let of = |status: &'_ v1::GpuStatus| status.usage.as_ref()?.open_memory.clone();
    let (a, b) = (of(old)?, of(new)?);
    let mut slice = MemorySlice {
        gpu: index(at),
        pool: new.memory.as_ref()?.pool_bytes,
        fallen: b.fallen_bytes.saturating_sub(a.fallen_bytes),
        ..MemorySlice::default()
    };
    for place in 0..slice.open.len() {
        let time = |of: &v1::OpenMemory| of.time_ns.get(place).copied().unwrap_or(0);
        let sum = |of: &v1::OpenMemory| of.byte_seconds.get(place).copied().unwrap_or(0.0);
        slice.open[place] = time(&b).saturating_sub(time(&a));
        if slice.open[place] != 0 {
            #[expect(clippy::cast_precision_loss, reason = "a mean")]
            let mean = (sum(&b) - sum(&a)) * 1e9 / slice.open[place] as f64;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates, and bytes are whole"
            )]
            let mean = mean as u64;
            slice.mean[place] = mean.min(slice.pool);
        }
    }
    Some(slice)
}

fn gpu_slice(
    at: usize,
    old: &v1::GpuStatus,
    new: &v1::GpuStatus,
    available: Option<&(u64, u128, u64)>,
) -> GpuSlice {
    let none = v1::GpuUsage::default();
    let (a, b) = (
        old.usage.as_ref().unwrap_or(&none),
        new.usage.as_ref().unwrap_or(&none),
    );
    let empty = v1::Histogram::default();
    let (gaps_a, gaps_b) = (
        a.gaps.as_ref().unwrap_or(&empty),
        b.gaps.as_ref().unwrap_or(&empty),
    );
    let mut slice = GpuSlice {
        gpu: index(at),
        busy: b.online_busy_ns - a.online_busy_ns,
        open: b.gate_open_ns - a.gate_open_ns,
        running: b.offline_running_ns - a.offline_running_ns,
        edges: small(b.edges - a.edges),
        openings: small(b.openings - a.openings),
        preemptions: small(new.preemptions - old.preemptions),
        wakes: small(new.wakes - old.wakes),
        pressure: small(new.pressure_events - old.pressure_events),
        gap_sum: gaps_b.sum_ns - gaps_a.sum_ns,
        gap_squares: (gaps_b.sum_squares_s2 - gaps_a.sum_squares_s2).max(0.0),
        ..GpuSlice::default()
    };
    for place in 0..GAPS {
        let count = |gaps: &v1::Histogram| gaps.counts.get(place).copied().unwrap_or(0);
        slice.gaps[place] = small(count(gaps_b) - count(gaps_a));
    }
    if let (Some(memory), Some(&(least, sum, samples))) = (&new.memory, available)
        && samples != 0
    {
        slice.pool = memory.pool_bytes;
        slice.available_min = least;
        slice.available_mean = u64::try_from(sum / u128::from(samples)).unwrap_or(u64::MAX);
    }
    slice
}

/// What jobs used between two times, those of one user and name as one: also of jobs that are over by then, which stay
/// in the totals. One that used nothing was over before.
fn by_name(begin: &[v1::JobStatus], end: &[v1::JobStatus]) -> Vec<JobSlice> {
    let key = |job: &v1::JobStatus| (job.number, job.uid, job.name.clone());
    let before: BTreeMap<_, _> = begin.iter().map(|job| (key(job), job)).collect();
    let mut named = BTreeMap::<(&str, Option<u32>), JobSlice>::new();
    for job in end {
        let old = before.get(&key(job));
        // A job that went and came again by the same name and number began anew.
        let anew = old.is_some_and(|old| job.attached_ns < old.attached_ns);
        let old = old.filter(|_| !anew);
        let since = |total: fn(&v1::JobStatus) -> u64| {
            total(job).saturating_sub(old.map_or(0, |old| total(old)))
        };
        let attached = since(|job| job.attached_ns);
        let launches = since(|job| job.launches);
        if attached == 0 && launches == 0 {
            continue;
        }
        let own = named
            .entry((&job.name, job.uid))
            .or_insert_with(|| JobSlice {
                name: job.name.clone(),
                uid: job.uid,
                ..JobSlice::default()
            });
        for &gpu in job.gpus.iter().filter(|&&gpu| gpu < 64) {
            own.gpus |= 1 << gpu;
        }
        own.attached += attached;
        own.running += since(|job| job.running_ns);
        own.launches += launches;
        own.units = own.units.saturating_add(since(|job| job.units));
        own.paused += since(|job| job.paused_ns);
        own.held = own.held.saturating_add(since(|job| job.held_byte_seconds));
        let lost = |job: &v1::JobStatus| job.memory.as_ref().map_or(0, |memory| memory.tokens_lost);
        own.lost = own.lost.saturating_add(since(lost));
    }
    named.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(
        observed: u64,
        busy: u64,
        job: Option<(u64, u64)>,
        online: u64,
    ) -> v1::GetStatusResponse {
        let gpu = v1::GpuStatus {
            preemptions: busy / 10,
            usage: Some(v1::GpuUsage {
                observed_ns: observed,
                online_busy_ns: busy,
                overlap_ns: vec![busy],
                ..v1::GpuUsage::default()
            }),
            memory: Some(v1::GpuMemory {
                pool_bytes: 100,
                online_bytes: online,
                ..v1::GpuMemory::default()
            }),
            ..v1::GpuStatus::default()
        };
        let job = job.map(|(running, launches)| v1::JobStatus {
            name: "batch".to_owned(),
            gpus: vec![0],
            attached_ns: running,
            running_ns: running,
            launches,
            ..v1::JobStatus::default()
        });
        v1::GetStatusResponse {
            gpus: vec![gpu],
            jobs: job.into_iter().collect(),
            ..v1::GetStatusResponse::default()
        }
    }

    #[test]
    fn slices_are_differences_and_memory_is_the_mean_and_the_least_of_its_samples() {
        let mut cut = Cut::default();
        assert_eq!(cut.see(status(100, 50, None, 10), 1, 100, false), None);
        assert_eq!(
            cut.see(status(150, 60, Some((10, 3)), 70), 2, 100, false),
            None
        );
        let slices = cut
            .see(status(200, 90, Some((60, 9)), 40), 3, 100, false)
            .expect("cut");
        let span = Span {
            end_unix_ms: 3,
            length_ns: 100,
        };
        assert!(slices.iter().all(|slice| slice.span == span));
        let Subject::Gpu(gpu) = &slices[0].subject else {
            panic!("a GPU first")
        };
        assert_eq!((gpu.busy, gpu.preemptions), (40, 4));
        assert_eq!(
            (gpu.available_min, gpu.available_mean),
            (30, (90 + 30 + 60) / 3)
        );
        let Subject::Job(job) = &slices[1].subject else {
            panic!("then its job")
        };
        assert_eq!((job.running, job.launches, job.undisturbed), (60, 9, false));
        // The next begins where this one ended, and a job by the same name that began anew counts whole.
        let slices = cut
            .see(status(300, 90, Some((50, 4)), 40), 4, 100, false)
            .expect("cut");
        let Subject::Job(job) = &slices[1].subject else {
            panic!("a job")
        };
        assert_eq!(job.launches, 4);
    }

    /// P-OPERATE-14: what a job used until it left is in the history, to the last launch.
    #[test]
    fn a_job_that_came_and_left_is_in_its_slice_whole_and_in_no_other() {
        let job = |number: u32, name: &str, attached_ns: u64, launches: u64| v1::JobStatus {
            name: name.to_owned(),
            number,
            gpus: vec![0],
            attached_ns,
            running_ns: attached_ns / 2,
            paused_ns: attached_ns * 2,
            held_byte_seconds: attached_ns * 3,
            launches,
            ..v1::JobStatus::default()
        };
        let at = |observed: u64, jobs: Vec<v1::JobStatus>| v1::GetStatusResponse {
            jobs,
            ..status(observed, 0, None, 0)
        };
        let mut cut = Cut::default();
        let mut used = |observed: u64, jobs: Vec<v1::JobStatus>| -> Vec<(String, u64, u64, u64)> {
            let slices = cut.see(at(observed, jobs), observed, 100, false);
            let of_jobs = slices.into_iter().flatten();
            of_jobs
                .filter_map(|slice| match slice.subject {
                    Subject::Job(job) => {
                        let more = (2 * job.attached, 3 * job.attached);
                        assert_eq!((job.paused, job.held), more);
                        Some((job.name, job.attached, job.running, job.launches))
                    }
                    _ => None,
                })
                .collect()
        };
        let all = |name: &str, attached, running, launches| {
            vec![(name.to_owned(), attached, running, launches)]
        };
        assert!(used(0, vec![]).is_empty());
        // It left in the middle of the slice, and was never seen while it was there.
        let over = || job(1, "short", 40, 400);
        assert_eq!(used(100, vec![over()]), all("short", 40, 20, 400));
        // It stays in the totals, and adds nothing any more.
        assert!(used(200, vec![over()]).is_empty());
        // Another by its number is not the same job, one by its name and number began anew.
        assert_eq!(
            used(300, vec![job(1, "next", 30, 7)]),
            all("next", 30, 15, 7)
        );
        assert_eq!(
            used(400, vec![job(1, "next", 20, 9)]),
            all("next", 20, 10, 9)
        );
        // Two jobs of one name are one row, and those of two users are two.
        let two = || vec![job(1, "next", 30, 10), job(2, "next", 10, 5)];
        assert_eq!(used(500, two()), all("next", 20, 10, 6));
        let mut three = two();
        three.push(v1::JobStatus {
            uid: Some(7),
            ..job(3, "next", 8, 2)
        });
        assert_eq!(used(600, three), all("next", 8, 4, 2));
    }

    /// P-CLUSTER-2: open gates and memory go into the history to the nanosecond, however many sets there are.
    #[test]
    fn slices_hold_every_set_of_open_gates_and_the_memory_beside_them() {
        let at = |observed: u64, rounds: u64, sets: u64| v1::GetStatusResponse {
            open_sets: (1..=sets)
                .map(|gpus| v1::OpenSet {
                    gpus,
                    time_ns: rounds * gpus,
                })
                .collect(),
            open_uncounted_ns: rounds * 3,
            gpus: vec![v1::GpuStatus {
                usage: Some(v1::GpuUsage {
                    observed_ns: observed,
                    openings: rounds,
                    open_memory: Some(v1::OpenMemory {
                        time_ns: vec![0, rounds * 1_000_000_000],
                        byte_seconds: vec![
                            0.0,
                            20.0 * f64::from(u32::try_from(rounds).expect("few")),
                        ],
                        fallen_bytes: rounds * 7,
                    }),
                    ..v1::GpuUsage::default()
                }),
                ..status(observed, 0, None, 0).gpus[0].clone()
            }],
            ..v1::GetStatusResponse::default()
        };
        let mut cut = Cut::default();
        assert_eq!(cut.see(at(0, 1, 12), 1, 100, false), None);
        let slices = cut.see(at(100, 3, 25), 2, 100, false).expect("cut");
        let mut found = BTreeMap::new();
        let (mut parts, mut uncounted) = (Vec::new(), 0);
        for slice in &slices {
            match &slice.subject {
                Subject::Open(open) => {
                    parts.push(open.part);
                    uncounted += open.uncounted;
                    found.extend(open.sets.iter().copied());
                }
                Subject::Memory(memory) => {
                    assert_eq!((memory.pool, memory.fallen), (100, 14));
                    assert_eq!((memory.open[1], memory.mean[1]), (2_000_000_000, 20));
                }
                Subject::Gpu(gpu) => assert_eq!(gpu.openings, 2),
                _ => {}
            }
        }
        assert_eq!((parts, uncounted), (vec![0, 1, 2], 6));
        let truth = (1..=25).map(|set| (set, if set <= 12 { 2 * set } else { 3 * set }));
        assert_eq!(found, truth.collect());
        // A slice in which no gate was open says so.
        let slices = cut.see(at(200, 3, 25), 3, 100, false).expect("cut");
        let open = |slice: &Slice| match &slice.subject {
            Subject::Open(open) => Some(open.clone()),
            _ => None,
        };
        let open: Vec<_> = slices.iter().filter_map(open).collect();
        assert_eq!(open, [OpenSlice::default()]);
    }

    #[test]
    fn the_last_slice_is_as_long_as_it_got_and_none_is_empty() {
        let mut cut = Cut::default();
        cut.see(status(100, 0, None, 0), 1, 100, false);
        assert_eq!(cut.see(status(100, 0, None, 0), 1, 100, true), None);
        let slices = cut
            .see(status(130, 10, None, 0), 2, 100, true)
            .expect("cut");
        assert_eq!(slices[0].span.length_ns, 30);
    }
}
