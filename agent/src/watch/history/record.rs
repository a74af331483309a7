//! One slice as bytes: little-endian, always [`SIZE`] of them.
//!
//! ```text
//!   0  magic    8  number   16  kind, a   24  end, ms since 1970   40  subject
//!   4  CRC-32 of all that follows         32  length, ns
//! ```
//!
//! Rules: a field is only added where zeros stand, and zero means what older writers meant; a kind is only
//! added, and skipped by readers that do not know it; another layout is another magic.

use super::{GAPS, GpuSlice, JobSlice, MemorySlice, OpenSlice, PairSlice, Slice, Span, Subject};

/// Bytes of a record.
pub const SIZE: usize = 208;
/// Bytes of a job's name.
pub const NAME: usize = 96;
/// Sets of open gates in one record.
pub const SETS: usize = 10;
const MAGIC: u32 = u32::from_le_bytes(*b"TGH1");
/// No file gets to hold so many; the next number is always one more.
const NUMBERS: u64 = 1 << 63;
/// What the checksum covers begins here.
const COVERED: usize = 8;

/// Puts fields one behind the other.
struct Writer<'a> {
    bytes: &'a mut [u8; SIZE],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn words(&mut self, words: &[u64]) {
        for word in words {
            self.put(&word.to_le_bytes());
        }
    }

    fn halves(&mut self, halves: &[u32]) {
        for half in halves {
            self.put(&half.to_le_bytes());
        }
    }
}

/// Takes them out again.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn quarter(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
}

/// `slice` as record number `number`.
#[must_use]
pub fn encode(slice: &Slice, number: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut out = Writer {
        bytes: &mut bytes,
        at: COVERED,
    };
    let (kind, a, b) = match &slice.subject {
        Subject::Gpu(gpu) => (1u16, gpu.gpu, 0),
        Subject::Pair(pair) => (2, pair.a, pair.b),
        Subject::Job(job) => (3, u16::from(job.undisturbed), 0),
        Subject::Open(open) => {
            let count = open.sets.len().min(SETS);
            (4, u16::try_from(count).unwrap_or(0), open.part)
        }
        Subject::Memory(memory) => (5, memory.gpu, 0),
    };
    out.words(&[number]);
    for quarter in [kind, a, b, 0] {
        out.put(&quarter.to_le_bytes());
    }
    out.words(&[slice.span.end_unix_ms, slice.span.length_ns]);
    match &slice.subject {
        Subject::Gpu(gpu) => {
            out.words(&[gpu.busy, gpu.open, gpu.running, gpu.gap_sum]);
            out.words(&[gpu.gap_squares.to_bits()]);
            out.words(&[gpu.pool, gpu.available_mean, gpu.available_min]);
            out.halves(&[gpu.edges, gpu.preemptions, gpu.wakes, gpu.pressure]);
            out.halves(&gpu.gaps);
            out.halves(&[gpu.openings]);
        }
        Subject::Pair(pair) => out.words(&[pair.both, pair.either]),
        Subject::Job(job) => {
            out.words(&[job.gpus, job.attached, job.running, job.launches]);
            let end = job.name.floor_char_boundary(NAME);
            let name_at = out.at;
            out.put(&job.name.as_bytes()[..end]);
            out.at = name_at + NAME;
            out.words(&[
                job.uid.map_or(0, |uid| u64::from(uid) + 1),
                job.units,
                job.lost,
                job.paused,
                job.held,
            ]);
        }
        Subject::Open(open) => {
            out.words(&[open.uncounted]);
            for (gpus, time) in open.sets.iter().take(SETS) {
                out.words(&[*gpus, *time]);
            }
        }
        Subject::Memory(memory) => {
            out.words(&[memory.pool, memory.fallen]);
            out.words(&memory.open);
            out.words(&memory.mean);
        }
    }
    let sum = crc32fast::hash(&bytes[COVERED..]);
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..COVERED].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The slice in `bytes` and its number; None: there is none, or only a part of one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(u64, Slice)> {
    let bytes = bytes.get(..SIZE)?;
    let mut from = Reader { bytes, at: 0 };
    let (magic, sum) = (from.half(), from.half());
    if magic != MAGIC || sum != crc32fast::hash(&bytes[COVERED..]) {
        return None;
    }
    let number = Some(from.word()).filter(|number| *number < NUMBERS)?;
    let (kind, a, b, _) = (
        from.quarter(),
        from.quarter(),
        from.quarter(),
        from.quarter(),
    );
    let span = Span {
        end_unix_ms: from.word(),
        length_ns: from.word(),
    };
    let subject = match kind {
        1 => Subject::Gpu(GpuSlice {
            gpu: a,
            busy: from.word(),
            open: from.word(),
            running: from.word(),
            gap_sum: from.word(),
            gap_squares: f64::from_bits(from.word()),
            pool: from.word(),
            available_mean: from.word(),
            available_min: from.word(),
            edges: from.half(),
            preemptions: from.half(),
            wakes: from.half(),
            pressure: from.half(),
            gaps: std::array::from_fn::<_, GAPS, _>(|_| from.half()),
            openings: from.half(),
        }),
        2 => Subject::Pair(PairSlice {
            a,
            b,
            both: from.word(),
            either: from.word(),
        }),
        3 => Subject::Job(JobSlice {
            undisturbed: a != 0,
            gpus: from.word(),
            attached: from.word(),
            running: from.word(),
            launches: from.word(),
            name: {
                let name: [u8; NAME] = from.take();
                let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
                // Written as text: anything else is not a record of this file.
                std::str::from_utf8(&name[..end]).ok()?.to_owned()
            },
            uid: from
                .word()
                .checked_sub(1)
                .and_then(|uid| u32::try_from(uid).ok()),
            units: from.word(),
            lost: from.word(),
            paused: from.word(),
            held: from.word(),
        }),
        4 if usize::from(a) <= SETS => Subject::Open(OpenSlice {
            part: b,
            uncounted: from.word(),
            sets: (0..a).map(|_| (from.word(), from.word())).collect(),
        }),
        5 => Subject::Memory(MemorySlice {
            gpu: a,
            pool: from.word(),
            fallen: from.word(),
            open: std::array::from_fn(|_| from.word()),
            mean: std::array::from_fn(|_| from.word()),
        }),
        _ => return None,
    };
    Some((number, Slice { span, subject }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn slices() -> impl Strategy<Value = Slice> {
        let gpu = (
            any::<[u64; 7]>(),
            any::<[u32; 5]>(),
            prop::collection::vec(any::<u32>(), GAPS),
            0u16..64,
            0.0..1e12f64,
        );
        let gpu = gpu.prop_map(|(words, halves, gaps, gpu, gap_squares)| {
            let [
                busy,
                open,
                running,
                gap_sum,
                pool,
                available_mean,
                available_min,
            ] = words;
            let [edges, preemptions, wakes, pressure, openings] = halves;
            Subject::Gpu(GpuSlice {
                gpu,
                busy,
                open,
                running,
                edges,
                openings,
                preemptions,
                wakes,
                pressure,
                gaps: gaps.try_into().expect("as many"),
                gap_sum,
                gap_squares,
                pool,
                available_mean,
                available_min,
            })
        });
        let pair = any::<(u16, u16, u64, u64)>();
        let pair =
            pair.prop_map(|(a, b, both, either)| Subject::Pair(PairSlice { a, b, both, either }));
        let uid = any::<Option<u32>>();
        let job = ("[a-z/é]{0,48}", any::<[u64; 8]>(), any::<bool>(), uid);
        let job = job.prop_map(|(name, words, undisturbed, uid)| {
            let [gpus, attached, running, launches, units, lost, paused, held] = words;
            Subject::Job(JobSlice {
                name,
                uid,
                gpus,
                attached,
                running,
                launches,
                units,
                lost,
                paused,
                held,
                undisturbed,
            })
        });
        let sets = prop::collection::vec(any::<(u64, u64)>(), 0..=SETS);
        let open = (any::<u16>(), any::<u64>(), sets).prop_map(|(part, uncounted, sets)| {
            Subject::Open(OpenSlice {
                part,
                uncounted,
                sets,
            })
        });
        let memory = any::<(u16, u64, u64, [u64; 8], [u64; 8])>();
        let memory = memory.prop_map(|(gpu, pool, fallen, open, mean)| {
            Subject::Memory(MemorySlice {
                gpu,
                pool,
                fallen,
                open,
                mean,
            })
        });
        let subject = prop_oneof![gpu, pair, job, open, memory];
        (any::<u64>(), any::<u64>(), subject).prop_map(|(end_unix_ms, length_ns, subject)| Slice {
            span: Span {
                end_unix_ms,
                length_ns,
            },
            subject,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_any_changed_byte_is_noticed(
            slice in slices(),
            number in 0..NUMBERS,
            (at, bits) in (0..SIZE, 1u8..),
        ) {
            let mut bytes = encode(&slice, number);
            prop_assert_eq!(decode(&bytes), Some((number, slice)));
            bytes[at] ^= bits;
            prop_assert_eq!(decode(&bytes), None);
        }

        #[test]
        fn bytes_of_anything_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..2 * SIZE)) {
            prop_assert_eq!(decode(&bytes), None);
        }
    }

    /// P-CLUSTER-2: what an agent without these kinds wrote is read as it was, and it skips them: their kinds are
    /// not among those it knows, and a field it lacks stands where it wrote zeros.
    #[test]
    fn a_record_of_an_older_agent_is_read_and_new_kinds_are_no_old_ones() {
        let gpu = GpuSlice {
            gpu: 3,
            busy: 7,
            gaps: [1; GAPS],
            ..GpuSlice::default()
        };
        let of = |subject| Slice {
            span: Span::default(),
            subject,
        };
        let bytes = encode(&of(Subject::Gpu(gpu)), 9);
        // Header 40, eight words, four counts, the gaps: all that an older agent wrote.
        let old = 40 + 8 * 8 + 4 * 4 + GAPS * 4;
        assert!(bytes[old..].iter().all(|byte| *byte == 0));
        let bytes = encode(&of(Subject::Job(JobSlice::default())), 9);
        let old = 40 + 4 * 8 + NAME;
        assert!(bytes[old..].iter().all(|byte| *byte == 0));
        for (subject, kind) in [
            (Subject::Open(OpenSlice::default()), 4),
            (Subject::Memory(MemorySlice::default()), 5),
        ] {
            assert_eq!(encode(&of(subject), 1)[16..18], [kind, 0]);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_its_letters() {
        let job = JobSlice {
            name: "é".repeat(NAME),
            ..JobSlice::default()
        };
        let slice = Slice {
            span: Span::default(),
            subject: Subject::Job(job),
        };
        let (_, read) = decode(&encode(&slice, 1)).expect("a record");
        assert!(matches!(read.subject, Subject::Job(job) if job.name == "é".repeat(NAME / 2)));
    }
}
