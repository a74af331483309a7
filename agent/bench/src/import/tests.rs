//! Files as the tools' sources say they are, written here by hand: no example of theirs is copied.

use super::*;
use serde_json::json;

fn parsed(text: &str) -> Imported {
    parse(Path::new("x.json"), text, &Bounds::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    let refused = parse(Path::new("x.json"), text, &Bounds::default());
    refused.expect_err("a refusal").to_string()
}

/// P-BENCH-5: guidellm's requests, its time per token without the first one.
#[test]
fn guidellm_is_read() {
    let request = |start: f64, ttft: f64| {
        json!({
            "request_start_time": start, "time_to_first_token_ms": ttft, "inter_token_latency_ms": 10.0,
            "time_per_output_token_ms": 99.0, "output_tokens": 5, "info": { "error": null },
        })
    };
    let failed = json!({ "request_start_time": 1_000.5, "time_to_first_token_ms": null, "info": { "error": "500" } });
    let report = |benchmarks: Vec<Value>| {
        json!({ "metadata": { "guidellm_version": "0.8.1" }, "config": {}, "benchmarks": benchmarks }).to_string()
    };
    let benchmark = json!({
        "duration": 30.0,
        "metrics": { "request_totals": { "total": 7 } },
        "requests": {
            "successful": [request(1_001.0, 30.0), request(1_000.0, 20.0)], "errored": [failed], "incomplete": [],
        },
    });
    let Imported { block, notes } = parsed(&report(vec![benchmark.clone()]));
    assert_eq!(block.source, "guidellm 0.8.1 (x.json)");
    assert_eq!((block.served, block.failed, block.seconds), (2, 1, 30.0));
    assert_eq!(block.ttft.expect("requests").spread.mean, 25.0);
    assert_eq!(block.tpot.expect("requests").spread.mean, 10.0);
    let places: Vec<(usize, f64)> = block
        .requests
        .iter()
        .map(|one| (one.index, one.at_s))
        .collect();
    assert_eq!(places, [(0, 0.0), (2, 1.0)]);
    assert_eq!(notes, ["x.json: it holds 3 of 7 requests"]);
    let sweep = refused(&report(vec![benchmark.clone(), benchmark]));
    assert!(
        sweep.contains("field benchmarks: 2 benchmarks; give a file of one rate"),
        "{sweep}"
    );
    let bad = json!({ "requests": { "successful": [{ "time_to_first_token_ms": "fast" }] } });
    let bad = refused(&report(vec![bad]));
    assert!(
        bad.contains("benchmarks[0].requests.successful[0].time_to_first_token_ms"),
        "{bad}"
    );
}

/// P-BENCH-5: aiperf's records, in the unit that stands beside each value, without its warm-up.
#[test]
fn aiperf_is_read() {
    let record = |number: u64, phase: &str, ttft: Value| {
        json!({
            "metadata": { "session_num": number, "request_start_ns": 5_000_000_000u64 + number * 1_000_000_000,
                "benchmark_phase": phase, "was_cancelled": false },
            "metrics": { "time_to_first_token": ttft, "inter_token_latency": { "value": 5.0, "unit": "ms" },
                "inter_chunk_latency": { "value": [4.0, 6.0], "unit": "ms" },
                "output_sequence_length": { "value": 3, "unit": "tokens" } },
            "error": null,
        })
        .to_string()
    };
    let ms = |value: f64| json!({ "value": value, "unit": "ms" });
    let failed = json!({
        "metadata": { "session_num": 3, "request_start_ns": 6_000_000_000u64, "benchmark_phase": "profiling" },
        "metrics": {}, "error": { "code": 499, "type": "Cancelled", "message": "late" },
    });
    let lines = [
        record(0, "warmup", ms(900.0)),
        record(2, "profiling", json!({ "value": 0.04, "unit": "sec" })),
        record(1, "profiling", ms(20.0)),
        failed.to_string(),
    ];
    let Imported { block, .. } = parsed(&lines.join("\n"));
    assert_eq!(
        (
            block.served,
            block.failed,
            block.uncounted,
            block.output_tokens
        ),
        (2, 1, 1, 6)
    );
    assert!((block.ttft.expect("requests").spread.mean - 30.0).abs() < 1e-9);
    assert_eq!(block.itl.expect("gaps").count, 4);
    assert_eq!(
        block.failures[0].what,
        "the tool reports a failure: Cancelled late"
    );
    let unit = refused(&record(
        1,
        "profiling",
        json!({ "value": 4, "unit": "tokens" }),
    ));
    assert!(
        unit.contains("x.json:1: field metrics.time_to_first_token.unit"),
        "{unit}"
    );
    let line = refused(&format!("{}\n{{\"metadata\": ", lines[1]));
    assert!(line.contains("x.json:2: not JSON"), "{line}");

    let sums = json!({
        "schema_version": "1.4", "aiperf_version": "0.13.0", "was_cancelled": true,
        "request_count": { "unit": "requests", "avg": 25.0 },
        "benchmark_duration": { "unit": "sec", "avg": 12.5 },
        "time_to_first_token": { "unit": "ms", "avg": 50.0, "p50": 45.0, "p99": 90.0, "max": 95.0, "std": 10.0, "count": 25 },
        "inter_token_latency": { "unit": "ms", "avg": 7.0, "p50": 7.0, "p99": 8.0, "max": 9.0, "std": 1.0, "count": 25 },
    });
    let Imported { block, .. } = parsed(&sums.to_string());
    let ttft = block.ttft.expect("sums");
    let (low, high) = ttft.ci95.expect("a deviation");
    // Student's t of 24 degrees of freedom is 2.064 (the table of `stats`): 2.064 * 10 / 5.
    assert!(
        (low - 45.872).abs() < 2e-3 && (high - 54.128).abs() < 2e-3,
        "{low} {high}"
    );
    assert_eq!((block.served, block.seconds), (25, 12.5));
    assert!(block.partial.is_some());
}

/// P-BENCH-5: vLLM's arrays, in seconds, with failed requests; and its sums.
#[test]
fn vllm_is_read() {
    let detailed = json!({
        "date": "20260101-000000", "backend": "vllm", "model_id": "m", "completed": 2, "failed": 1, "duration": 9.0,
        "input_lens": [4, 4, 4], "output_lens": [3, 0, 1], "ttfts": [0.02, 0.0, 0.04],
        "itls": [[0.01, 0.03], [], []], "start_times": [100.0, 101.0, 102.0], "errors": ["", "Bad Gateway", ""],
    });
    let Imported { block, notes } = parsed(&detailed.to_string());
    assert!(notes.is_empty());
    assert_eq!((block.served, block.failed, block.output_tokens), (2, 1, 4));
    assert!((block.ttft.expect("requests").spread.mean - 30.0).abs() < 1e-9);
    // Two gaps over two further tokens; the answer of one token has none.
    let tpot = block.tpot.expect("one");
    assert!((tpot.spread.mean - 20.0).abs() < 1e-9 && tpot.count == 1);
    let mut broken = detailed;
    broken["itls"] = json!([[]]);
    assert!(refused(&broken.to_string()).contains("field itls: 1 values beside 3 ttfts"));

    let sums = json!({
        "completed": 4, "failed": 0, "duration": 9.0, "model_id": "m", "mean_ttft_ms": 10.0, "median_ttft_ms": 9.0,
        "std_ttft_ms": 3.0, "p99_ttft_ms": 20.0, "mean_tpot_ms": 5.0, "median_tpot_ms": 5.0, "std_tpot_ms": 0.5,
        "p99_tpot_ms": 6.0, "mean_itl_ms": 5.0, "median_itl_ms": 5.0, "std_itl_ms": 0.5, "p99_itl_ms": 6.0,
    });
    let Imported { block, notes } = parsed(&sums.to_string());
    assert!(notes[0].contains("--save-detailed"), "{notes:?}");
    // Its deviation is of the population: 3 * sqrt(4/3); t of 3 degrees is 3.182: half is 3.182 * sqrt(3).
    let (low, high) = block
        .ttft
        .and_then(|figure| figure.ci95)
        .expect("a deviation");
    assert!(
        ((high - low) / 2.0 - 3.182 * 3f64.sqrt()).abs() < 1e-3,
        "{low} {high}"
    );
    let missing = refused(&json!({ "completed": 4, "duration": 9.0 }).to_string());
    assert!(
        missing.contains("field mean_ttft_ms: null is no number"),
        "{missing}"
    );
}

#[test]
fn other_files_are_named() {
    assert!(refused("{\"a\":1}").contains("not a result of guidellm"));
    assert!(refused("").contains("x.json:1: not JSON"));
    assert!(refused("[1,2]").contains("not a result"));
    assert!(
        Named::parse("gates=a.json")
            .expect_err("no mode")
            .contains("`gates` is no mode")
    );
    assert_eq!(
        Named::parse("gated=a.json").expect("a mode").mode,
        Mode::Gated
    );
    assert_eq!(
        Named::parse("dir/a=b.json").expect("a file").file,
        Path::new("dir/a=b.json")
    );
    let absent = Named::parse("/nowhere/a.json").expect("a file");
    let said = read(&absent, &Bounds::default())
        .expect_err("absent")
        .to_string();
    assert!(said.starts_with("cannot read /nowhere/a.json"), "{said}");
}
