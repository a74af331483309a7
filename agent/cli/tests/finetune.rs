//! `tidegate replay --finetune` as a user meets it.

#[path = "replay/dir.rs"]
mod dir;

use dir::Dir;

/// A trainer beside one trace, at two promises.
const ASKED: [&str; 6] = [
    "--trace",
    "busy.csv",
    "--finetune",
    "qwen2.5-7b:r=8,length=1024",
    "--tpot",
    "15ms,60ms",
];

/// P-TRAINER-7: replay answers what could be trained beside online.
#[test]
fn what_could_be_trained_is_answered_for_each_promise() {
    let dir = Dir::new();
    let ask = [&ASKED[..], &["--csv", "cells.csv"]].concat();
    let table = dir.answer(&ask);
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    for part in [
        "online alone",
        "15 ms",
        "60 ms",
        "rank 8, 1024 tokens a sample",
        " of 28 layers stay where online's cache is full, 128 MiB are free",
    ] {
        assert!(table.contains(part), "{part:?} is not in\n{table}");
    }
    let cells = dir.read("cells.csv");
    let column = |name: &str| {
        let head = cells.lines().next().expect("a head");
        let at = head.split(',').position(|column| column == name);
        at.unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    let (set, policy, trained) = (
        column("slo_set"),
        column("policy"),
        column("trained_tokens_per_s"),
    );
    let of = |name: &str| -> Vec<(String, f64)> {
        let rows = cells
            .lines()
            .skip(1)
            .map(|line| line.split(',').collect::<Vec<_>>());
        rows.filter(|row| row[policy] == name)
            .map(|row| (row[set].to_owned(), row[trained].parse().expect("a number")))
            .collect()
    };
    // Who may take longer trains more, and who waits for gaps trains the same.
    let ours = of("Tidegate");
    let [(_, tight), (_, loose)] = &ours[..] else {
        panic!("a row for each promise: {ours:?}");
    };
    assert!(tight < loose, "{ours:?}");
    let gate = of("Gate");
    assert!(gate[0].1 == gate[1].1 && gate[0].1 < *tight, "{gate:?}");
    assert_eq!(dir.answer(&ask), table, "equal seeds, equal bytes");
    let out = ["--out", "out", "--traces", ".", "--seeds", "1", "--table"];
    let compared = dir.answer(
        &[
            &["--scenarios", "table.csv", "--finetune", "llama-3.1-8b"],
            &out[..],
        ]
        .concat(),
    );
    assert!(compared.contains("written: out/table.csv"), "{compared}");
    let head = "class,gpu,slo_set,scenario,seed,policy,keeps,trained_tokens_per_s,ttft_p99_ms,\
                tpot_p99_ms,tpot_mean_increase_pct,vs_best_keeping,vs_oracle\n";
    assert!(dir.read("out/table.csv").starts_with(head));
}

/// P-TRAINER-7: the same answer as files: a page that fetches nothing, figures, and who had the GPU when.
#[test]
fn the_answer_is_written_as_a_page_figures_and_a_timeline() {
    let dir = Dir::new();
    let ask = [&ASKED[..], &["--seeds", "2"]].concat();
    let files = [
        "--html",
        "page.html",
        "--json",
        "cells.json",
        "--csv",
        "cells.csv",
        "--timeline",
        "when.json",
    ];
    dir.answer(&[&ask[..], &files[..]].concat());
    let page = dir.read("page.html");
    for fetched in [
        "<script", "http:", "https:", "src=", "url(", "@import", "<link",
    ] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    for part in [
        "What would I train beside online",
        "tpot-15ms",
        "tpot-60ms",
        "rank 8, 1024 tokens a sample",
        "FineInfer",
    ] {
        assert!(page.contains(part), "{part:?}");
    }
    let cells: serde_json::Value = serde_json::from_str(&dir.read("cells.json")).expect("JSON");
    let cells = cells["cells"].as_array().expect("a list");
    let lines = dir.read("cells.csv").lines().count() - 1;
    assert_eq!(cells.len(), lines, "a line for each cell");
    for cell in cells {
        let way = |name: &str| cell["ways"][name].as_f64().expect("a part");
        let all: f64 = ["gap", "serial", "fused", "spatial"].map(way).iter().sum();
        let trains = cell["trained_tokens_per_s"].as_f64() > Some(0.0);
        if trains && cell["policy"] != "Bound" {
            assert!((all - 1.0).abs() < 1e-6, "{cell}");
        }
        // Two processes share neither a pass nor multiprocessors, and who waits for gaps leases nothing.
        assert_eq!((way("fused"), way("spatial")), (0.0, 0.0), "{cell}");
        let leases =
            ["Tidegate", "Oracle", "Bound"].contains(&cell["policy"].as_str().unwrap_or(""));
        assert_eq!(leases, way("serial") > 0.0, "{cell}");
    }
    let trained = |cell: &&serde_json::Value| {
        cell["policy"] == "Tidegate" && cell["trained_tokens_per_s"].as_f64() > Some(0.0)
    };
    assert_eq!(
        cells.iter().filter(trained).count(),
        4,
        "two promises, two seeds"
    );
    let when = dir.read("when.json");
    let drawn = tidegate_replay::timeline::check(when.as_bytes()).expect("a trace");
    assert!(drawn > 100, "{drawn}");
    for part in ["\"running\"", "\"decode\"", "\"policy\":\"Tidegate\""] {
        assert!(when.contains(part), "{part}");
    }
    let gate = ["--policy", "Gate", "--timeline", "gate.json"];
    dir.answer(&[&ask[..], &gate[..]].concat());
    assert!(dir.read("gate.json").contains("\"running\""));
    // In one process there are two ways more.
    let one = ["--platform", "one-process", "--policy", "Tidegate,HARLI"];
    let told = dir.answer(&[&ASKED[..], &one, &["--json", "one.json"]].concat());
    assert!(
        told.contains("of the training      gap  serial   fused spatial"),
        "{told}"
    );
    let cells: serde_json::Value = serde_json::from_str(&dir.read("one.json")).expect("JSON");
    for cell in cells["cells"].as_array().expect("a list") {
        let way = |name: &str| cell["ways"][name].as_f64() > Some(0.0);
        assert!(way("spatial"), "{cell}");
        assert_eq!(way("fused"), cell["policy"] == "Tidegate", "{cell}");
    }
}

/// P-TRAINER-7: what cannot be is refused in one line that says what to do.
#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let dir = Dir::new();
    let refused = |finetune: &str, more: &[&str]| {
        let ask = ["--trace", "busy.csv", "--finetune", finetune];
        let output = dir.replay(&[&ask[..], more].concat());
        assert_eq!(output.status.code(), Some(2), "{finetune} {more:?}");
        let told = String::from_utf8(output.stderr).expect("text");
        let lines = told.trim().lines().count();
        assert!(lines <= 4, "{told}");
        told
    };
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("nomodel", &[], &["nomodel", "llama-3.1-8b"]),
        ("qwen2.5-7b:r=0", &[], &["rank 0", "from 1 to 3584"]),
        (
            "qwen2.5-7b:r=3585",
            &[],
            &["rank 3585", "hidden size of qwen2.5-7b"],
        ),
        (
            "qwen2.5-7b:length=131073",
            &[],
            &["131073 tokens", "from 2 to 131072, the context"],
        ),
        (
            "qwen2.5-7b:r=8,rank=8",
            &[],
            &["is no finetuning job", "llama-3.1-8b:r=16,length=2048"],
        ),
        // It says what online needs alone.
        (
            "qwen2.5-7b",
            &["--tpot", "1ms"],
            &[
                "online alone takes",
                "ms a further token",
                "1 ms asked for",
                "--thin",
            ],
        ),
        (
            "qwen2.5-7b",
            &["--platform", "two-process", "--policy", "FlexLLM"],
            &[
                "FlexLLM cannot run on two-process",
                "one process and one copy of the model",
            ],
        ),
        (
            "qwen2.5-7b",
            &["--platform", "two-process", "--policy", "HARLI"],
            &["HARLI cannot run on two-process", "multiprocessors"],
        ),
        (
            "qwen2.5-7b",
            &["--platform", "one-process", "--policy", "Gate"],
            &[
                "Gate cannot run on one-process",
                "online is in the same one",
            ],
        ),
    ];
    for (finetune, more, parts) in cases {
        let told = refused(finetune, more);
        for part in parts {
            assert!(told.contains(part), "{part:?} is not in\n{told}");
        }
    }
    let told = refused("qwen2.5-7b", &["--platform", "both"]);
    assert!(told.contains("both"), "{told}");
}

/// P-TRAINER-7: a promise that online breaks alone is marked, and no row is compared in it.
#[test]
fn a_promise_that_online_breaks_alone_is_marked() {
    let dir = Dir::new();
    let rows: String = (0..60).map(|i| format!("{}.0,30000,20\n", i / 6)).collect();
    dir.write(
        "long.csv",
        &format!("arrival_s,input_tokens,output_tokens\n{rows}"),
    );
    let table = dir.read("table.csv");
    let head = table.lines().next().expect("a head");
    dir.write(
        "one.csv",
        &format!("{head}\nS1,h200,long,1,llama-3.1-8b,qwen2.5-7b,docs,2048,30\n"),
    );
    let told = dir.answer(&[
        "--scenarios",
        "one.csv",
        "--finetune",
        "llama-3.1-8b",
        "--table",
        "--traces",
        ".",
        "--seeds",
        "1",
        "--out",
        "out",
    ]);
    let cells = dir.read("out/table.csv");
    let marked: Vec<&str> = cells
        .lines()
        .filter(|line| line.contains(",llmstation,") && !line.contains(",Bound,"))
        .collect();
    assert!(marked.len() > 10, "{cells}");
    for line in marked {
        let columns: Vec<&str> = line.split(',').collect();
        assert_eq!(columns[6], "alone-breaks-it", "{line}");
        assert_eq!(columns[11], "", "compared with nobody: {line}");
    }
    // Nor is it counted in what is printed.
    let counted = told.lines().filter(|line| line.contains(" llmstation "));
    for line in counted {
        let count = line.split_whitespace().nth(2);
        assert_eq!(count, Some("0"), "{line}");
    }
}
