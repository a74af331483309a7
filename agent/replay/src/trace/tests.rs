use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;
use crate::input::InputError;
use std::path::Path;

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
    2023-11-16 18:15:46.6805900,374,44\n\
    2023-11-16 18:15:50.9951690,396,109\n\
    2023-11-16 18:15:51.2224670,879,55\n";

const FORMATS: [&str; 4] = [
    AZURE,
    "arrival_s,input_tokens,output_tokens\n0.5,10,20\n1,30,40\n1.25,5,6\n",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
     5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
    "{\"timestamp\": 0, \"input_length\": 67, \"output_length\": 500, \"hash_ids\": [0, 1]}\n\
     {\"timestamp\": 3000, \"input_length\": 73, \"output_length\": 4}\n",
];

fn text(text: &str) -> Result<Trace, InputError> {
    parse(Path::new("given.csv"), text.as_bytes())
}

fn told(result: Result<Trace, InputError>) -> String {
    result.expect_err("refused").to_string()
}

fn rows(trace: &Trace) -> Vec<(u64, u32, u32)> {
    let row = |request: &Request| {
        (
            request.arrival.0 / 1_000,
            request.input_tokens,
            request.output_tokens,
        )
    };
    trace.requests().iter().map(row).collect()
}

#[test]
fn azure_traces_start_at_their_first_request() {
    let trace = text(AZURE).expect("Azure 2023");
    // f64 seconds since 1970 keep a quarter of a microsecond.
    let want = [(0, 374, 44), (4_314_579, 396, 109), (4_541_877, 879, 55)];
    for (got, want) in rows(&trace).into_iter().zip(want) {
        assert!(got.0.abs_diff(want.0) <= 1, "{got:?} {want:?}");
        assert_eq!((got.1, got.2), (want.1, want.2));
    }
}

#[test]
fn azure_times_of_either_year_are_read() {
    let trace = text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
         2024-02-28 23:59:59.500000+00:00,1,1\r\n2024-03-01 00:00:00.500000+00:00,1,1\r\n",
    )
    .expect("Azure 2024");
    assert_eq!(
        trace.end(),
        Time::from(Duration::from_secs(86_401)),
        "2024 has a 29 February"
    );
}

#[test]
fn mooncake_lines_are_read() {
    let trace = text(
        "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n\
         {\"timestamp\": 3000, \"input_length\": 7322, \"output_length\": 490, \"hash_ids\": []}\n",
    )
    .expect("Mooncake");
    assert_eq!(rows(&trace), [(0, 6758, 500), (3_000_000, 7322, 490)]);
}

#[test]
fn burstgpt_is_read_with_and_without_its_later_columns() {
    let first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,230,1317,API log\n";
    let third = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        5,a,1.5,ChatGPT,472,18,490,Conversation log\n45.5,,2,ChatGPT,1087,230,1317,API log\n";
    for given in [first, third] {
        let trace = text(given).expect("BurstGPT");
        assert_eq!(
            rows(&trace),
            [(5_000_000, 472, 18), (45_500_000, 1087, 230)]
        );
    }
}

#[test]
fn our_columns_are_found_by_name() {
    let trace =
        text("client,output_tokens,arrival_s,input_tokens\n7,6,0.5,11\n\"7, 8\",5,2.5,10\n")
            .expect("our CSV");
    assert_eq!(rows(&trace), [(500_000, 11, 6), (2_500_000, 10, 5)]);
}

#[test]
fn a_cut_is_what_its_words_say() {
    let given: String = (0..1000).map(|i| format!("{i},1,1\n")).collect();
    let given = format!("arrival_s,input_tokens,output_tokens\n{given}");
    let dir = std::env::temp_dir().join(format!("tidegate-cut-{}", std::process::id()));
    std::fs::write(&dir, given).expect("a temporary file");
    let cut = Cut {
        keep_1_in: 4,
        stretch: 2.0,
        from: Duration::from_secs(100),
        length: Some(Duration::from_secs(50)),
    };
    let trace = read_cut(&dir, &cut);
    let nothing = read_cut(
        &dir,
        &Cut {
            from: Duration::from_secs(5_000),
            ..cut
        },
    );
    std::fs::remove_file(&dir).expect("it is ours");
    let want: Vec<u64> = (100..150)
        .filter(|i| splitmix64(*i).is_multiple_of(4))
        .map(|i| 2 * (i - 100))
        .collect();
    let got: Vec<u64> = rows(&trace.expect("read"))
        .iter()
        .map(|row| row.0 / 1_000_000)
        .collect();
    assert_eq!(got, want);
    assert_eq!(
        cut.to_string(),
        "seconds 100 to 150, one request in 4, times stretched by 2"
    );
    assert_eq!(Cut::default().to_string(), "every request");
    assert!(told(nothing).contains("no requests that this cut keeps"));
}

#[test]
fn gzip_is_known_by_content() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(AZURE.as_bytes()).expect("in memory");
    let packed = packed.finish().expect("in memory");
    let unpacked = parse(Path::new("no-ending"), packed.as_slice()).expect("gzip");
    assert_eq!(unpacked, text(AZURE).expect("plain"));
    let cut = parse(Path::new("cut.gz"), &packed[..packed.len() / 2]);
    assert!(told(cut).contains("cut.gz"));
}

/// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
#[test]
fn errors_name_file_line_field_and_remedy() {
    let head = "arrival_s,input_tokens,output_tokens\n0,1,1\n";
    for (given, parts) in [
        (
            format!("{head}1,many,1\n"),
            ["given.csv:3", "input_tokens", "\"many\"", "remove the line"],
        ),
        (
            format!("{head}-1,1,1\n"),
            ["given.csv:3", "arrival_s", "\"-1\"", "0 or more"],
        ),
        (
            format!("{head}1,1\n"),
            ["given.csv:3", "output_tokens", "missing", "remove the line"],
        ),
        (
            format!("{head}\n\n1,1,1.5\n"),
            ["given.csv:5", "output_tokens", "\"1.5\"", "whole number"],
        ),
        (
            format!("{head}1,1,0\n"),
            ["given.csv:3", "output_tokens", "\"0\"", "from 1 to"],
        ),
        (
            format!("{head}5,1,1\n4.5,1,1\n"),
            ["given.csv:4", "arrival_s", "4.5", "sort the file"],
        ),
        (
            format!("{head}1,1,234,5\n"),
            ["given.csv:3", "4 fields", "header of 3", "quote"],
        ),
        (
            format!("{head}1,\"1,1\n"),
            ["given.csv:3", "quote", "not closed", "close it"],
        ),
        (
            format!("{head}400000000,1,1\n"),
            ["given.csv:3", "arrival_s", "\"400000000\"", "ten years"],
        ),
        (
            "arrival_s,input_tokens,output_tokens,arrival_s\n".to_owned(),
            ["given.csv:1", "arrival_s", "once", "rename"],
        ),
        (
            "Timestamp,Model,Request tokens,Response tokens\n1,GPT-4,7,0\n".to_owned(),
            ["given.csv:2", "Response tokens", "\"0\"", "without fails"],
        ),
        (
            "input_tokens,output_tokens\n1,1\n".to_owned(),
            ["given.csv:1", "arrival_s", "missing", "add the column"],
        ),
        (
            AZURE.replace(":50.", ":99."),
            [
                "given.csv:3",
                "TIMESTAMP",
                "18:15:99",
                "2023-11-16 18:15:46.6805900",
            ],
        ),
        (
            "TIMESTAMP,ContextTokens\n".to_owned(),
            [
                "given.csv:1",
                "GeneratedTokens",
                "missing",
                "add the column",
            ],
        ),
        (
            "{\"timestamp\": 1, \"input_length\": 2}\n".to_owned(),
            ["given.csv:1", "output_length", "missing", "remove the line"],
        ),
        (
            "{\"timestamp\": 1, \"input_length\": -2, \"output_length\": 1}\n".to_owned(),
            ["given.csv:1", "input_length", "\"-2\"", "whole number"],
        ),
        (
            "{\"timestamp\": 1\n".to_owned(),
            ["given.csv:1", "JSON object", "timestamp", "remove"],
        ),
        (
            "a,b\n1,2\n".to_owned(),
            ["given.csv:1", "\"a,b\"", "Request tokens", "Mooncake"],
        ),
        (
            String::new(),
            ["given.csv", "no requests", "give a file", "at least one"],
        ),
        (
            "arrival_s,input_tokens,output_tokens\n".to_owned(),
            ["given.csv", "no requests", "", ""],
        ),
    ] {
        let error = told(text(&given));
        for part in parts {
            assert!(
                error.contains(part),
                "{part:?} is not in {error:?} (given {given:?})"
            );
        }
    }
    let absent = told(read(Path::new("/nonexistent/trace.csv")));
    assert!(absent.contains("/nonexistent/trace.csv") && absent.contains("check the path"));
}

#[test]
fn thinning_keeps_the_requests_that_the_published_rule_names() {
    let every: Vec<Request> = (0..1000)
        .map(|i| Request {
            arrival: Time(i),
            input_tokens: 1,
            output_tokens: 1,
        })
        .collect();
    let trace = Trace::new(every);
    let kept: Vec<u64> = trace
        .thin(4)
        .requests()
        .iter()
        .map(|request| request.arrival.0)
        .collect();
    let want: Vec<u64> = (0..1000)
        .filter(|i| splitmix64(*i).is_multiple_of(4))
        .collect();
    assert_eq!(kept, want);
    assert_eq!(trace.thin(1), trace);
    assert_eq!(trace.thin(0), trace);
}

proptest! {
    #[test]
    fn windows_tile_a_trace(
        times in prop::collection::vec(0u64..1_000_000, 1..60),
        width in 1u64..400_000,
    ) {
        let request = |at: &u64| Request { arrival: Time(*at), input_tokens: 1, output_tokens: 1 };
        let trace = Trace::new(times.iter().map(request).collect());
        let length = Duration::from_nanos(width);
        let mut again = Vec::new();
        for start in (0..1_000_000).step_by(usize::try_from(width).expect("small")) {
            for request in trace.window(Time(start), length).requests() {
                prop_assert!(request.arrival < Time::ZERO + length);
                again.push(Request { arrival: Time(start + request.arrival.0), ..*request });
            }
        }
        prop_assert_eq!(Trace::new(again), trace);
    }

    /// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
    #[test]
    fn any_bytes_are_a_trace_or_an_error_that_names_the_file(raw in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = parse(Path::new("noise"), raw.as_slice()) {
            prop_assert!(error.to_string().contains("noise"));
        }
    }

    /// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
    #[test]
    fn no_row_of_a_damaged_trace_is_skipped(
        format in 0usize..4,
        packed: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<u8>()), 0..4),
    ) {
        let mut raw = FORMATS[format].as_bytes().to_vec();
        let harm = |raw: &mut Vec<u8>| {
            for (at, how, byte) in &damage {
                let at = at.index(raw.len().max(1)).min(raw.len().saturating_sub(1));
                match how {
                    0 => raw[at] = *byte,
                    1 => raw.insert(at, *byte),
                    2 => raw[at] = b"\n,\"0-9{"[usize::from(*byte % 7)],
                    _ => { raw.remove(at); }
                }
            }
        };
        if packed {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(&raw).expect("in memory");
            let mut packed = packer.finish().expect("in memory");
            harm(&mut packed);
            if let Err(error) = parse(Path::new("harmed"), packed.as_slice()) {
                prop_assert!(error.to_string().contains("harmed"), "{}", error);
            }
            return Ok(());
        }
        harm(&mut raw);
        let text = String::from_utf8_lossy(&raw).into_owned();
        let lines = text.split('\n').filter(|line| !line.trim().is_empty()).count();
        let header = usize::from(!FORMATS[format].starts_with('{'));
        match parse(Path::new("harmed"), raw.as_slice()) {
            Ok(trace) => {
                prop_assert_eq!(trace.len() + header, lines, "{}", text);
                prop_assert!(trace.requests().is_sorted_by_key(|request| request.arrival));
                prop_assert!(trace.requests().iter().all(|r| r.input_tokens > 0 && r.output_tokens > 0));
            }
            Err(error) => {
                let told = error.to_string();
                let place = (1..=lines + 8).any(|line| told.contains(&format!("harmed:{line}: ")));
                prop_assert!(place || told.starts_with("harmed: no requests"), "{}", told);
            }
        }
    }

    /// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
    #[test]
    fn any_cell_is_a_value_or_an_error_that_names_the_line(cell in "[ -~]{0,30}") {
        let given = format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{cell},1,1\n");
        if let Err(error) = text(&given) {
            prop_assert!(error.to_string().contains("given.csv:2"), "{}", error);
        }
    }

    #[test]
    fn stretching_scales_every_arrival(at in 0u64..1_000_000_000_000, factor in 0.01f64..100.0) {
        let request = Request { arrival: Time(at), input_tokens: 1, output_tokens: 1 };
        let stretched = Trace::new(vec![request]).stretch(factor).end().0 as f64;
        prop_assert!((stretched - at as f64 * factor).abs() <= 1.0 + at as f64 * factor * 1e-12);
    }
}

/// The public traces are not part of the project; where a checkout has them, they must read.
#[test]
fn real_traces_are_read_where_there_are_any() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    let Ok(listing) = std::fs::read_dir(&beside) else {
        eprintln!("SKIPPED: no traces at {}", beside.display());
        return;
    };
    let mut read_some = 0;
    for entry in listing {
        let path = entry.expect("listing").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("offline_") {
            let error = told(read(&path));
            assert!(error.contains("arrival_s is missing"), "{error}");
            let lengths = read_lengths(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(lengths.len() >= 200, "{name}");
        } else {
            let trace = read(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(
                trace.len() > 400 && trace.end() < Time::from(Duration::from_secs(1_801)),
                "{name}"
            );
            read_some += 1;
        }
    }
    assert!(read_some > 0, "no trace in {}", beside.display());
}
