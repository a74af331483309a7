use super::*;
use crate::hardware::GPUS;
use crate::hardware::{H200, LLAMA_3_1_8B};

const PREFILL_CSV: &str = "gpu,model,new_tokens,prior_context,note,attention_ms,total_ms
H200,Llama-3.1-8b,100,0,,1,5
h200,llama-3.1-8b,100,1000,,3,7
h200,llama-3.1-8b,200,0,any,2,10
";
const DECODE_CSV: &str = "gpu,model,batch,context_per_seq,attention_ms,total_ms
h200,llama-3.1-8b,4,100,1,9
h200,llama-3.1-8b,1,300,2,8
h200,llama-3.1-8b,1,100,1,7
";
const COSTS_CSV: &str = "kind,item,value,unit
vmm,cuMemCreate 2 MiB,200,us
vmm,cuMemMap 2 MiB,2,us
vmm,cuMemSetAccess 2 MiB,30,us
vmm,cuMemUnmap 2 MiB,20,us
vmm,cuMemCreate 64 MiB,many,us
gap,cuMemCreate 2 MiB,<1,ms
";

/// A directory with these files, of this name.
fn dir(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let name = format!("tidegate-calibration-{name}-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    for (file, text) in files {
        std::fs::write(dir.join(file), text).expect("ours");
    }
    dir
}

fn loaded(name: &str, files: &[(&str, &str)]) -> Result<Calibration, String> {
    let dir = dir(name, files);
    let found = Calibration::load(&dir);
    std::fs::remove_dir_all(&dir).expect("ours");
    found.map_err(|error| error.to_string())
}

fn cost_of(calibration: &Calibration, name: &str) -> Cost {
    let mut model = Model::named(&H200, name).expect("a fit");
    calibration.measured(H200.name, &mut model);
    model.cost
}

#[test]
fn an_iteration_is_put_together_from_the_tables() {
    let tables = loaded(
        "points",
        &[(PREFILL.0, PREFILL_CSV), (DECODE.0, DECODE_CSV)],
    );
    let tables = tables.expect("whole tables");
    assert_eq!(tables.costs(Costs::default()), Costs::default());
    let cost = cost_of(&tables, "llama-3.1-8b");
    assert_eq!(cost.source(), "tables");
    for (new, cached, attention_ms) in [
        (100, 0, 1.0),
        (100, 500, 2.0),
        (150, 0, 1.5),
        (50, 0, 1.0),
        // With the work: of 2,000 cached tokens that of 1,000 times 4,100 / 2,100, of twice the new
        // tokens four times.
        (100, 2_000, 3.0 * 4_100.0 / 2_100.0),
        (400, 0, 8.0),
    ] {
        let found = cost.attention_ms(new, cached);
        assert!(
            (found - attention_ms).abs() < 1e-9,
            "{new} {cached}: {found}"
        );
    }
    for (batch, context, ms) in [
        (1, 100, 7.0),
        (1, 200, 7.5),
        (1, 600, 6.0 + 4.0),
        (4, 400, 9.0),
        (2, 200, 6.0 + 2.0 / 3.0 + 1.0),
        // Half of the work more, and the rest goes on.
        (6, 600, 8.0 + 4.0 / 3.0 + 1.5),
    ] {
        let found = cost.decode_ms(batch, context);
        assert!((found - ms).abs() < 1e-9, "{batch} {context}: {found}");
    }
    // The rest of 151 tokens, attention of the prompt and of one decode.
    let mixed = cost.prefill_ms(150, 1.5, 1, 100);
    assert!(
        (mixed - (4.0 + 4.0 * 0.51 + 1.5 + 1.0)).abs() < 1e-9,
        "{mixed}"
    );
    assert_eq!(cost_of(&tables, "qwen2.5-7b").source(), "fit");
}

#[test]
fn costs_of_handles_are_those_of_the_calls() {
    let files = [
        (PREFILL.0, PREFILL_CSV),
        (DECODE.0, DECODE_CSV),
        (COSTS, COSTS_CSV),
    ];
    let costs = loaded("costs", &files)
        .expect("whole tables")
        .costs(Costs::default());
    let us = |us| Duration::from_micros(us);
    let handle = [
        costs.create_handle,
        costs.map_handle,
        costs.quarantine_handle,
    ];
    assert_eq!(handle, [us(200), us(32), us(52)]);
    assert_eq!(costs.release_handle, Costs::default().release_handle);
}

#[test]
fn what_is_wrong_in_a_calibration_is_told_with_file_line_field_and_remedy() {
    let prefill = |text: &str| {
        vec![
            (PREFILL.0, text.to_owned()),
            (DECODE.0, DECODE_CSV.to_owned()),
        ]
    };
    let row = |from: &str, to: &str| prefill(&PREFILL_CSV.replace(from, to));
    let costs = |from: &str, to: &str| {
        let mut files = prefill(PREFILL_CSV);
        files.push((COSTS, COSTS_CSV.replace(from, to)));
        files
    };
    let other_model = DECODE_CSV.replace("llama-3.1-8b", "qwen2.5-7b");
    let more = format!(
        "{DECODE_CSV}{}",
        &other_model[other_model.find('\n').unwrap_or(0)..]
    );
    for (files, parts) in [
        (
            row("h200,llama-3.1-8b,200", "h20,llama-3.1-8b,200"),
            [":4: field gpu", "h200?"],
        ),
        (
            row("llama-3.1-8b,200", "llama-8b,200"),
            [":4: field model", "llama-3.1-8b?"],
        ),
        (
            row("200,0,any,2,10", "200,0,any,2,x"),
            [":4: field total_ms: \"x\"", CORRECT],
        ),
        (
            row("200,0,any,2,10", "200,0,any,2,2"),
            [":4: field total_ms", "attention_ms"],
        ),
        (
            row("200,0,any,2,10", "200,0,any,-1,10"),
            [":4: field attention_ms", "from 0"],
        ),
        (
            row("200,0,any,2,10", "0,0,any,2,10"),
            [":4: field new_tokens", "from 1"],
        ),
        (
            row("200,0,any,2,10", "100,0,any,2,10"),
            [":4: field new_tokens", "once"],
        ),
        (
            row("200,0,any,2,10", "200,NaN,any,2,10"),
            [":4: field prior_context", "NaN"],
        ),
        (
            row("200,0,any,2,10", "200,0,any,2"),
            [":4: field total_ms is missing", CORRECT],
        ),
        (
            row("total_ms", "total"),
            [":1: field total_ms is missing", "column"],
        ),
        (prefill(""), [PREFILL.0, "no iteration times"]),
        (
            prefill(&PREFILL_CSV[..PREFILL_CSV.find("H200").unwrap_or(0)]),
            [PREFILL.0, "no iter"],
        ),
        (
            vec![(PREFILL.0, PREFILL_CSV.to_owned())],
            ["cannot read", DECODE.0],
        ),
        (
            vec![(PREFILL.0, PREFILL_CSV.to_owned()), (DECODE.0, other_model)],
            [
                "iteration_decode.csv: no rows for llama-3.1-8b on h200",
                PREFILL.0,
            ],
        ),
        (
            vec![(PREFILL.0, PREFILL_CSV.to_owned()), (DECODE.0, more)],
            [
                "iteration_prefill.csv: no rows for qwen2.5-7b on h200",
                DECODE.0,
            ],
        ),
        (
            costs("Map 2 MiB,2,us", "Map 2 MiB,2,ms"),
            ["costs.csv:3: field unit", "\"ms\""],
        ),
        (
            costs("Map 2 MiB,2,us", "Map 2 MiB,-2,us"),
            ["costs.csv:3: field value", "\"-2\""],
        ),
        (
            costs("cuMemMap", "cuMemUnmap"),
            ["costs.csv:5: field item", "once"],
        ),
        (
            costs("cuMemMap", "cuMemMop"),
            ["costs.csv: no rows for vmm, cuMemMap", "add"],
        ),
    ] {
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, &**text)).collect();
        let told = loaded("bad", &files).expect_err("refused");
        for part in parts {
            assert!(told.contains(part), "{part:?} is not in {told:?}");
        }
    }
}

/// The published tables are not part of the project; where a checkout has them, they say what the
/// fits that ship say, within the errors that stand beside the fits.
#[test]
fn the_published_tables_are_near_the_fits_where_there_are_any() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/calibration");
    if !data.join(PREFILL.0).exists() {
        eprintln!("SKIPPED: no {} in {}", PREFILL.0, data.display());
        return;
    }
    let tables = Calibration::load(&data).unwrap_or_else(|error| panic!("{error}"));
    let file = data.join("iteration_fit.csv");
    let mut lines = Lines::open(&file).expect("beside the tables");
    let (_, header) = lines.next_line().expect("text").expect("a header");
    let names = [
        "gpu",
        "model",
        "pre_mape",
        "pre_maxape",
        "dec_mape",
        "dec_maxape",
    ];
    let columns = Columns::find(&lines, &header, names, names.len()).expect("its columns");
    let mut pairs = 0;
    while let Some((_, row)) = lines.next_line().expect("text") {
        let [gpu, name, errors @ ..] = columns.cells(&lines, &row).expect("a row");
        let errors = errors.map(|error| error.parse::<f64>().expect("a number"));
        let gpu = GPUS
            .into_iter()
            .find(|known| known.name == gpu)
            .expect("known");
        let mut model = Model::named(&gpu, &name).expect("a fit");
        let fit = model.cost.clone();
        assert!(
            tables.measured(gpu.name, &mut model),
            "{name} on {}",
            gpu.name
        );
        let table = model.cost;
        let prefill =
            |cost: &Cost, new, cached| cost.prefill_ms(new, cost.attention_ms(new, cached), 0, 0);
        // Points of the tables for which the fits were made.
        let prefills = [256, 512, 1_024, 2_048, 4_096, 8_192]
            .map(|new| [0, 2_048, 8_192].map(|cached| (new, cached)));
        let prefills = prefills.into_iter().flatten();
        let prefills = prefills
            .map(|(new, cached)| prefill(&fit, new, cached) / prefill(&table, new, cached) - 1.0);
        let decodes = [1, 4, 16, 64].map(|batch| [512, 2_048, 8_192].map(|each| (batch, each)));
        let decodes = decodes.into_iter().flatten().map(|(batch, each)| {
            let context = u64::from(batch) * each;
            fit.decode_ms(batch, context) / table.decode_ms(batch, context) - 1.0
        });
        for (kind, found, [mean, most]) in [
            (
                "prefill",
                prefills.collect::<Vec<_>>(),
                [errors[0], errors[1]],
            ),
            ("decode", decodes.collect(), [errors[2], errors[3]]),
        ] {
            let average = found.iter().map(|e| e.abs()).sum::<f64>() / found.len() as f64;
            let largest = found.iter().map(|e| e.abs()).fold(0.0, f64::max);
            println!(
                "{name} on {} {kind}: fit off by {average:.4} on average, {largest:.4} at most; \
                 published {mean:.4}, {most:.4}",
                gpu.name
            );
            assert!(average < 2.0 * mean && largest < most + 1e-3);
        }
        pairs += 1;
    }
    assert_eq!(pairs, GPUS.len() * MODELS.len());
    assert_ne!(tables.costs(Costs::default()).create_handle, Duration::ZERO);
    assert_eq!(
        LLAMA_3_1_8B,
        Model::named(&H200, "llama-3.1-8b").expect("a fit").shape
    );
}
