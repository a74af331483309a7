use super::*;
use tidegate_agent::watch::history::{GpuSlice, JobSlice, MemorySlice, OpenSlice, PairSlice, Span};

const S: u64 = 1_000_000_000;

fn slices() -> Vec<Slice> {
    let of = |subject| Slice {
        span: Span {
            end_unix_ms: 100_000,
            length_ns: 60 * S,
        },
        subject,
    };
    let mut gpu = GpuSlice {
        busy: 24 * S,
        running: 30 * S,
        preemptions: 12,
        pool: 1_024 << 20,
        available_mean: 512 << 20,
        available_min: 128 << 20,
        ..GpuSlice::default()
    };
    gpu.gaps[5] = 9;
    gpu.gaps[16] = 1;
    let job = JobSlice {
        name: "a,\"b\"".to_owned(),
        uid: Some(4_294_967_000),
        gpus: 1,
        attached: 60 * S,
        running: 30 * S,
        launches: 3_000,
        units: 12,
        lost: 0,
        paused: 0,
        held: 0,
        undisturbed: false,
    };
    let pair = PairSlice {
        a: 0,
        b: 1,
        both: 1,
        either: 4,
    };
    vec![
        of(Subject::Gpu(gpu)),
        of(Subject::Pair(pair)),
        of(Subject::Job(job)),
        of(Subject::Open(OpenSlice {
            sets: vec![(0b101, 7)],
            ..OpenSlice::default()
        })),
        of(Subject::Memory(MemorySlice {
            pool: 80,
            open: [0, 0, 9, 0, 0, 0, 0, 0],
            mean: [0, 0, 25, 0, 0, 0, 0, 0],
            ..MemorySlice::default()
        })),
    ]
}

#[test]
fn the_table_says_what_was_harvested_and_what_it_saved() {
    let given = BTreeMap::from([("a,\"b\"".to_owned(), 100.0)]);
    let text = text(&summarise(&slices(), &given), By::Job, None);
    for part in [
        "60 s of the last 60 s",
        "40.0 %",
        "50.0 %",
        "83.3 %",
        "<= 50 ms",
        "> 5 min",
        "100 (given)",
        "0.50 GPUs saved in all",
        "online left 512 of 1024 on average",
        "0-1 0.25",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn by_user_the_sums_of_jobs_are_shown() {
    let given = BTreeMap::from([("a,\"b\"".to_owned(), 100.0)]);
    let summary = summarise(&slices(), &given);
    let text = text(&summary, By::User, None);
    for part in ["4294967000", "3000", "0.50 GPUs saved in all"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("THROUGHPUT"), "{text}");
    let json = as_json(&summary);
    assert_eq!(json["users"][0]["launches"], 3_000);
}

#[test]
fn csv_has_a_line_per_slice_and_as_many_fields_as_its_head() {
    for of in [Of::Gpus, Of::Pairs, Of::Jobs, Of::Open, Of::Memory] {
        let lines = 2;
        let text = csv(&slices(), of);
        assert_eq!(text.lines().count(), lines, "{text}");
        if of != Of::Jobs {
            let fields: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
            assert_eq!(fields[0], fields[1], "{text}");
        }
    }
    assert!(csv(&slices(), Of::Open).ends_with(",0+2,7\n"));
    assert!(csv(&slices(), Of::Memory).ends_with(",0,80,0,9,25\n"));
    assert!(csv(&slices(), Of::Jobs).contains("\"a,\"\"b\"\"\",1,"));
}
