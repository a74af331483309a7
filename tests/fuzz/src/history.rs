//! The file behind `tidegate report`: what a disk, a crash or a copy made of it.
//!
//! An input is records, each of the kind and with the fields that it says; the checksum, which no
//! fuzzer finds, is filled in for those whose first byte is odd.

use crate::files::directory;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use tidegate_agent::watch::history::record::{SIZE, decode, encode};
use tidegate_agent::watch::history::summary::{Summary, summarise};
use tidegate_agent::watch::history::{PairSlice, Ring, Slice, Span, Subject, read};

static FILE: LazyLock<PathBuf> = LazyLock::new(|| directory("history").join("history.ring"));

/// What a record begins with, and where its checksum's cover does (`history::record`).
const MAGIC: &[u8; 4] = b"TGH1";
const COVERED: usize = 8;

pub fn run(input: &[u8]) {
    let mut file = Vec::new();
    for piece in input.chunks(SIZE).take(16) {
        let mut record = piece.to_vec();
        if piece.len() == SIZE && piece[0] % 2 == 1 {
            let sum = crc32fast::hash(&record[COVERED..]);
            record[..4].copy_from_slice(MAGIC);
            record[4..COVERED].copy_from_slice(&sum.to_le_bytes());
        }
        file.extend(record);
    }
    std::fs::write(&*FILE, &file).expect("a file in memory");
    let slices = read(&FILE).unwrap_or_else(|error| {
        // A file without a record is no history.
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        assert!(
            file.chunks_exact(SIZE)
                .all(|record| decode(record).is_none())
        );
        Vec::new()
    });
    assert!(slices.len() <= file.len() / SIZE);
    for slice in &slices {
        let again = decode(&encode(slice, 3)).expect("what was read is written and read");
        assert_eq!(format!("{again:?}"), format!("{:?}", (3, slice)));
    }
    sensible(&summarise(&slices, &BTreeMap::new()), &slices);

    let places = (file.len() / SIZE).max(2) as u64;
    let mut ring = Ring::open(&FILE, places * SIZE as u64).expect("taken over");
    let newest = Slice {
        span: Span {
            end_unix_ms: 4_242,
            length_ns: 1,
        },
        subject: Subject::Pair(PairSlice::default()),
    };
    ring.append(&newest).expect("room");
    drop(ring);
    let length = std::fs::metadata(&*FILE).expect("a file").len();
    assert_eq!(length, places * SIZE as u64, "the file grew");
    let after = read(&FILE).unwrap_or_default();
    // Numbers grow for ever; nobody has seen one near their end.
    let numbers = file.chunks_exact(SIZE).filter_map(decode);
    if numbers
        .map(|(number, _)| number)
        .all(|number| number < 1 << 62)
    {
        assert_eq!(
            after.last(),
            Some(&newest),
            "what was written last is not last"
        );
    }
}

/// Shares are shares, and nothing is counted that is in no slice.
fn sensible(summary: &Summary, slices: &[Slice]) {
    let share = |value: f64| (0.0..=1.0).contains(&value);
    for gpu in &summary.gpus {
        assert!(share(gpu.busy), "{gpu:?}");
        assert!(share(gpu.harvested), "{gpu:?}");
        assert!(share(gpu.open), "{gpu:?}");
        assert!(gpu.busy_cv >= 0.0 && gpu.gaps.cv >= 0.0, "{gpu:?}");
        assert!(gpu.gaps.quantile(0.5) <= gpu.gaps.quantile(0.99).or(Some(u64::MAX)));
    }
    assert!(
        summary
            .pairs
            .iter()
            .all(|pair| pair.alignment.is_none_or(share)),
        "{:?}",
        summary.pairs
    );
    assert!(
        summary.gpus.len() + summary.pairs.len() + summary.jobs.len() <= slices.len(),
        "{summary:?}"
    );
}
