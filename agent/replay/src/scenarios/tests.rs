use super::*;
use crate::hardware::LLAMA_3_1_8B;

const HEAD: &str = "id,gpu,online_trace,thin_keep_1_in,online_model,offline_model,\
    offline_lengths,offline_chunk_tokens,kv_pool_gib,class,why";

/// A directory with one trace, `conv`, and one list of lengths, `docs`.
fn traces() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tidegate-traces-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("ours");
    write(
        "conv.csv",
        "arrival_s,input_tokens,output_tokens\n0,5,6\n1,7,8\n",
    );
    write("docs.csv", "input_tokens,output_tokens\n50,60\n");
    dir
}

fn table(rows: &str) -> Result<Vec<Scenario>, String> {
    let text = format!("{HEAD}\n{rows}");
    let lines = Lines::of(Path::new("table.csv"), text.as_bytes());
    lines
        .and_then(|lines| parse(lines, &traces()))
        .map_err(|error| error.to_string())
}

#[test]
fn a_scenario_is_what_its_line_says() {
    let found = table("P1,H200,conv,1,llama-3.1-8b,qwen2.5-7b,docs.csv,2048,1.5,kv,\"a, b\"\n");
    let scenario = found.expect("a table").remove(0);
    assert_eq!(
        (scenario.id.as_str(), scenario.class.as_str()),
        ("P1", "kv")
    );
    assert_eq!(scenario.kv_pool_bytes, 3 << 29);
    let spec = scenario.spec().expect("both files are there");
    assert_eq!(
        (spec.online.trace.len(), spec.offline.lengths.len()),
        (2, 1)
    );
    assert_eq!(spec.offline.limits.prefill_tokens, 2_048);
    assert_eq!(spec.offline.model.name, "qwen2.5-7b");
}

#[test]
fn what_is_wrong_is_told_with_file_line_field_and_remedy() {
    let good = "P1,h200,conv,1,llama-3.1-8b,qwen2.5-7b,docs,2048,1.5,kv,why\n";
    let with = |field: usize, value: &str| {
        let mut cells: Vec<&str> = good.trim().split(',').collect();
        cells[field] = value;
        format!("{good}{}\n", cells.join(",").replacen("P1", "P2", 1))
    };
    for (given, parts) in [
        (
            with(1, "h20"),
            ["table.csv:3: field gpu", "\"h20\"", "did you mean h200?"],
        ),
        (
            with(2, "cnov"),
            [
                "table.csv:3: field online_trace",
                "\"cnov\"",
                "did you mean conv?",
            ],
        ),
        (
            with(2, ""),
            [
                "table.csv:3: field online_trace",
                "\"\"",
                "known: conv, docs",
            ],
        ),
        (
            with(3, "0"),
            ["table.csv:3: field thin_keep_1_in", "\"0\"", "1 or more"],
        ),
        (
            with(4, "llama-8b"),
            [
                "table.csv:3: field online_model",
                "\"llama-8b\"",
                "llama-3.1-8b?",
            ],
        ),
        (
            with(5, "custom:heads"),
            [
                "table.csv:3: field offline_model",
                "custom:heads",
                "custom:layers=L",
            ],
        ),
        (
            with(6, "none"),
            [
                "table.csv:3: field offline_lengths",
                "\"none\"",
                "known: conv, docs",
            ],
        ),
        (
            with(7, "2k"),
            [
                "table.csv:3: field offline_chunk_tokens",
                "\"2k\"",
                "1 or more",
            ],
        ),
        (
            with(8, "-1"),
            ["table.csv:3: field kv_pool_gib", "\"-1\"", "above 0"],
        ),
        (
            with(8, "NaN"),
            ["table.csv:3: field kv_pool_gib", "\"NaN\"", "above 0"],
        ),
        (
            format!("{good}{good}"),
            ["table.csv:3: field id", "\"P1\"", "rename"],
        ),
        (
            good.replace("P1", ""),
            ["table.csv:2: field id", "\"\"", "a name"],
        ),
        (
            good.replace(",why", ""),
            ["table.csv:2", "10 fields", "header of 11"],
        ),
        (
            good.replace(",2048,1.5,kv,why", ""),
            ["table.csv:2", "offline_chunk_tokens", "missing"],
        ),
        (String::new(), ["table.csv", "no scenarios", "at least one"]),
    ] {
        let told = table(&given).expect_err("refused");
        for part in parts {
            assert!(
                told.contains(part),
                "{part:?} is not in {told:?} (given {given:?})"
            );
        }
    }
}

/// P-REPLAY-1: all that is wrong with a header is told at once, and once.
#[test]
fn a_header_that_lacks_or_misspells_columns_is_told_whole() {
    let told = |header: &str| {
        let lines = Lines::of(Path::new("table.csv"), header.as_bytes());
        let found = lines.and_then(|lines| parse(lines, &traces()));
        found.expect_err("refused").to_string()
    };
    assert_eq!(
        told("id,gpu,class\n"),
        "table.csv:1: fields online_trace, thin_keep_1_in, online_model, offline_model, \
         offline_lengths, offline_chunk_tokens, kv_pool_gib are missing: add the columns to the header"
    );
    // Optional, and so no error but for its name.
    assert_eq!(
        told(&format!("{HEAD},strech\n")),
        "table.csv:1: column \"strech\" is nearly stretch: rename it, to stretch or to something else"
    );
    let both = told(&HEAD.replace("gpu", "gpus"));
    assert!(
        both.contains("field gpu is missing") && both.contains("column \"gpus\" is nearly gpu"),
        "{both}"
    );
    // An error's causes are printed behind it: one that says them itself has none.
    let text = format!("{HEAD}\nP1,h20,conv,1,llama-3.1-8b,qwen2.5-7b,docs,2048,1.5,kv,why\n");
    let lines = Lines::of(Path::new("table.csv"), text.as_bytes());
    let unknown = lines
        .and_then(|lines| parse(lines, &traces()))
        .expect_err("refused");
    assert!(std::error::Error::source(&unknown).is_none(), "{unknown}");
}

/// The evaluation's table is not part of the project; where a checkout has it, it must read.
#[test]
fn the_real_table_is_read_where_there_is_one() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if !data.join("scenarios.csv").exists() {
        eprintln!("SKIPPED: no scenarios.csv in {}", data.display());
        return;
    }
    let scenarios = read(&data.join("scenarios.csv"), &data.join("traces"));
    let scenarios = scenarios.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scenarios.len(), 10);
    for scenario in scenarios {
        let spec = scenario.spec().unwrap_or_else(|error| panic!("{error}"));
        assert!(spec.online.trace.len() > 100, "{}", spec.scenario);
    }
}

#[test]
fn a_model_of_ones_own_is_described_by_its_shape() {
    let gpu = gpu("h200").expect("known");
    let own = super::gpu("custom:memory=48,bandwidth=864,flops=362.05,pcie=32");
    let own = own.expect("a GPU");
    let sheet = super::gpu("l40s").expect("known");
    let cost = |gpu: &Gpu| model(gpu, "llama-3.1-8b").expect("scaled").cost;
    assert_eq!(cost(&own), cost(&sheet), "the same figures");
    assert_eq!(own.scaled_from().map(|gpu| gpu.name), Some("a100"));
    for odd in [
        "custom:memory=48,bandwidth=864",
        "custom:memory=48,bandwidth=0,flops=1",
        "custom:memory=nan,bandwidth=864,flops=1",
        "custom:memory=48,bandwidth=864,flops=1,colour=1",
    ] {
        let told = super::gpu(odd).expect_err(odd).to_string();
        assert!(told.contains("custom:memory=GIB"), "{told}");
    }
    let mine = "custom:layers=32,hidden=4096,heads=32,kv-heads=8,inner=14336";
    assert_eq!(model(&gpu, mine).expect("a shape").shape, LLAMA_3_1_8B);
    let mixture = format!("{mine},vocabulary=32000,experts=8,chosen=2");
    let known = model(&gpu, "mixtral-8x7b").expect("a mixture").shape;
    assert_eq!(model(&gpu, &mixture).expect("a shape").shape, known);
    let wide = "custom:layers=48,hidden=2048,heads=32,kv-heads=4,inner=768,vocabulary=151936,head=128,experts=128,chosen=8";
    let known = model(&gpu, "qwen3-30b-a3b").expect("a mixture").shape;
    assert_eq!(model(&gpu, wide).expect("a shape").shape, known);
    for odd in [
        "custom:",
        "custom:layers=32,hidden=4096",
        "custom:layers=0,hidden=4096,heads=32",
        "custom:layers=32,hidden=4096,heads=32,kv-heads=64",
        "custom:layers=32,hidden=99999999999,heads=32",
        "custom:layers=32,hidden=4096,heads=32,colour=1",
        "custom:layers=32,hidden=4096,heads=32,experts=8,chosen=9",
        "custom:layers=32,hidden=4096,heads=32,experts=0",
    ] {
        assert!(model(&gpu, odd).is_err(), "{odd}");
    }
}
