//! From records of the history to what placement asks of them.

use tidegate_agent::watch::history;
use tidegate_agent::watch::history::{JobSlice, Subject};
use tidegate_policy::ids::{Bytes, GpuId, GpuSet};
use tidegate_policy::placement::{Available, GpuSlice, Level, OpenSets, Slice};

/// A history older than so many of its slices says nothing of the node as it is.
const FRESH: u64 = 3;

/// What a history says.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What placement knows of, oldest first.
    pub slices: Vec<Slice>,
    /// Jobs in each of these.
    pub jobs: Vec<Vec<JobSlice>>,
    /// The node's GPUs.
    pub gpus: GpuSet,
    /// Share of the time in which the gate was open, over all GPUs.
    pub idle: f64,
    /// When the newest slice ended, ms since 1970, and how long it was, ms. None: there is none.
    pub newest: Option<(u64, u64)>,
}

/// Groups records, oldest first, by the slice that they are of.
fn groups(records: &[history::Slice]) -> Vec<&[history::Slice]> {
    let mut groups = Vec::new();
    let (mut begin, mut gpus) = (0, GpuSet::EMPTY);
    for (at, record) in records.iter().enumerate() {
        let gpu = match &record.subject {
            Subject::Gpu(gpu) => {
                u8::try_from(gpu.gpu).map_or(GpuSet::EMPTY, |gpu| GpuSet::of(GpuId(gpu)))
            }
            _ => GpuSet::EMPTY,
        };
        // A GPU that was there already is of the next slice, also where a clock says the same twice.
        let again = !gpus.intersection(gpu).is_empty();
        if records[begin].span != record.span || again {
            groups.push(&records[begin..at]);
            (begin, gpus) = (at, GpuSet::EMPTY);
        }
        gpus = gpus.union(gpu);
    }
    if begin < records.len() {
        groups.push(&records[begin..]);
    }
    groups
}

impl Facts {
    /// Of `records`, oldest first. They are told apart by their order, never by a clock.
    #[must_use]
    pub fn of(records: &[history::Slice]) -> Self {
        let mut facts = Self::default();
        let (mut open, mut all) = (0u128, 0u128);
        for (number, group) in (0u64..).zip(groups(records)) {
            let Some(slice) = slice(number, group) else {
                continue;
            };
            let span = group[0].span;
            facts.newest = Some((span.end_unix_ms, span.length_ns / 1_000_000));
            for record in group {
                if let Subject::Gpu(gpu) = &record.subject {
                    open += u128::from(gpu.open.min(span.length_ns));
                    all += u128::from(span.length_ns);
                }
            }
            facts.gpus = slice.gpus.iter().map(|gpu| gpu.gpu).collect();
            facts.jobs.push(by_name(group));
            facts.slices.push(slice);
        }
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let (open, all) = (open as f64, all as f64);
        facts.idle = if all > 0.0 { open / all } else { 0.0 };
        facts
    }

    /// Why these facts are none of the present; None: they are. A clock that was set is right again with the next slice.
    #[must_use]
    pub fn stale(&self, now_unix_ms: u64) -> Option<String> {
        let Some((end, length)) = self.newest else {
            return Some(
                "the history has no slice with open gates: is the agent of this version running?"
                    .to_owned(),
            );
        };
        let apart = now_unix_ms.abs_diff(end);
        // A second more: the agent looks once a second.
        (apart > FRESH * length + 1_000).then(|| {
            let way = if now_unix_ms > end { "old" } else { "ahead of the clock" };
            format!(
                "the newest slice of the history is {} s {way}; more than {FRESH} slices say nothing of now",
                apart / 1_000
            )
        })
    }
}

/// The jobs of a slice, those of several users by one name as one: who asks names no user.
fn by_name(group: &[history::Slice]) -> Vec<JobSlice> {
    let mut jobs = Vec::<JobSlice>::new();
    for record in group {
        let Subject::Job(job) = &record.subject else {
            continue;
        };
        match jobs.iter_mut().find(|own| own.name == job.name) {
            None => jobs.push(job.clone()),
            Some(own) => {
                own.gpus |= job.gpus;
                own.attached = own.attached.saturating_add(job.attached);
                own.running = own.running.saturating_add(job.running);
                own.launches = own.launches.saturating_add(job.launches);
                own.units = own.units.saturating_add(job.units);
                own.lost = own.lost.saturating_add(job.lost);
                own.paused = own.paused.saturating_add(job.paused);
                own.held = own.held.saturating_add(job.held);
                own.undisturbed &= job.undisturbed;
            }
        }
    }
    jobs
}

/// None: an older agent wrote it, who did not say which gates were open together.
fn slice(number: u64, group: &[history::Slice]) -> Option<Slice> {
    let length_ns = group[0].span.length_ns;
    let (mut open, mut known) = (OpenSets::new(), false);
    let mut gpus = Vec::new();
    for record in group {
        match &record.subject {
            Subject::Open(part) => {
                known = true;
                open.add_unknown(part.uncounted);
                for &(set, ns) in &part.sets {
                    open.add(GpuSet::from_bits(set), ns);
                }
            }
            Subject::Gpu(gpu) => gpus.push(GpuSlice {
                gpu: GpuId(u8::try_from(gpu.gpu).ok()?),
                openings: gpu.openings,
                available: None,
            }),
            _ => {}
        }
    }
    for record in group {
        if let Subject::Memory(memory) = &record.subject
            && let Some(own) = gpus
                .iter_mut()
                .find(|own| u16::from(own.gpu.0) == memory.gpu)
        {
            let levels = memory.open.iter().zip(memory.mean);
            let mut available = Available::of(Bytes(memory.pool));
            available.fallen = Bytes(memory.fallen);
            for (level, (&ns, mean)) in available.levels.iter_mut().zip(levels) {
                *level = Level::of(ns, Bytes(mean));
            }
            own.available = Some(available);
        }
    }
    known.then_some(Slice {
        number,
        length_ns,
        open,
        gpus,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_agent::watch::history::{GpuSlice as GpuRecord, MemorySlice, OpenSlice, Span};

    fn records(end: u64, sets: &[(u64, u64)]) -> Vec<history::Slice> {
        let span = Span {
            end_unix_ms: end,
            length_ns: 1_000_000_000,
        };
        let of = |subject| history::Slice { span, subject };
        let mut all = vec![
            of(Subject::Gpu(GpuRecord {
                gpu: 0,
                open: 500_000_000,
                openings: 3,
                ..GpuRecord::default()
            })),
            of(Subject::Gpu(GpuRecord {
                gpu: 1,
                ..GpuRecord::default()
            })),
        ];
        // In two parts, as many sets are.
        for (part, set) in (0..).zip(sets) {
            let uncounted = if part == 0 { 5 } else { 0 };
            all.push(of(Subject::Open(OpenSlice {
                part,
                uncounted,
                sets: vec![*set],
            })));
        }
        all.push(of(Subject::Memory(MemorySlice {
            gpu: 0,
            pool: 80,
            fallen: 9,
            open: [7; 8],
            mean: [5; 8],
        })));
        all
    }

    /// P-CLUSTER-4: what placement is told is what the history says, in its order, whatever a clock did.
    #[test]
    fn records_of_one_slice_are_put_together_also_where_a_clock_says_the_same_twice() {
        let mut all = records(9_000, &[(0b01, 100), (0b11, 40)]);
        all.extend(records(9_000, &[(0b10, 30)]));
        // The clock was set back.
        all.extend(records(4_000, &[(0b11, 20)]));
        let facts = Facts::of(&all);
        let together = |gpus: u64| -> Vec<u64> {
            let set = GpuSet::from_bits(gpus);
            facts
                .slices
                .iter()
                .map(|slice| slice.open.together(set))
                .collect()
        };
        assert_eq!(together(0b11), [40, 0, 20]);
        assert_eq!(together(0b01), [140, 0, 20]);
        assert_eq!(
            facts
                .slices
                .iter()
                .map(|slice| slice.number)
                .collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!(facts.slices[0].open.unknown(), 5);
        assert_eq!(facts.gpus, GpuSet::from_bits(0b11));
        assert!((facts.idle - 0.25).abs() < 1e-9);
        let gpu = facts.slices[0].gpu(GpuId(0)).expect("there");
        let available = gpu.available.expect("shared");
        assert_eq!(
            (gpu.openings, available.pool, available.fallen),
            (3, Bytes(80), Bytes(9))
        );
        assert_eq!(
            facts.slices[0].gpu(GpuId(1)).expect("there").available,
            None
        );
    }

    /// P-CLUSTER-4: a history that is not of now says so.
    #[test]
    fn a_history_that_is_not_of_now_says_so() {
        let facts = Facts::of(&records(10_000, &[(1, 1)]));
        assert_eq!(facts.stale(13_500), None);
        assert!(facts.stale(15_000).expect("old").contains("5 s old"));
        assert!(
            facts
                .stale(4_000)
                .expect("set back")
                .contains("ahead of the clock")
        );
        // Of an agent that did not yet say which gates were open.
        let mut older = records(10_000, &[(1, 1)]);
        older.retain(|record| !matches!(record.subject, Subject::Open(_)));
        assert!(Facts::of(&older).stale(10_000).is_some());
    }
}
