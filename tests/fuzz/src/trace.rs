//! Traces for replay: Azure's, BurstGPT's, Mooncake's and ours, gzipped or not.

use crate::files::names_line;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;
use std::path::Path;
use tidegate_replay::input::InputError;
use tidegate_replay::trace::{Trace, parse};

/// A name that no trace has in it.
const FILE: &str = "given";

pub fn run(input: &[u8]) {
    let read = parse(Path::new(FILE), input);
    check(&read, input);
    if input.starts_with(&[0x1f, 0x8b]) {
        return;
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(input).expect("memory");
    let packed = packed.finish().expect("memory");
    match (&read, &parse(Path::new(FILE), packed.as_slice())) {
        (Ok(plain), Ok(unpacked)) => assert_eq!(plain, unpacked),
        (Err(plain), Err(unpacked)) => assert_eq!(plain.to_string(), unpacked.to_string()),
        (plain, unpacked) => panic!("plain {plain:?}, gzipped {unpacked:?}"),
    }
}

fn check(read: &Result<Trace, InputError>, input: &[u8]) {
    match read {
        Ok(trace) => {
            assert!(!trace.is_empty());
            let requests = trace.requests();
            assert!(requests.is_sorted_by_key(|request| request.arrival));
            assert!(
                requests
                    .iter()
                    .all(|request| request.input_tokens > 0 && request.output_tokens > 0)
            );
            assert_eq!(trace.len(), trace.thin(1).len());
        }
        Err(InputError::Read { .. } | InputError::Empty { .. }) => {}
        Err(error) => {
            let lines = input.split(|&byte| byte == b'\n').count();
            // Of a gzipped file the lines are not known here.
            let lines = if input.starts_with(&[0x1f, 0x8b]) {
                usize::MAX - 1
            } else {
                lines
            };
            let text = error.to_string();
            assert!(names_line(&text, FILE, lines), "no line is named: {text}");
            assert!(text.len() < 2_000, "{} bytes of an error", text.len());
        }
    }
}
