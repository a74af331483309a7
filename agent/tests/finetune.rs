//! `tidegate replay --finetune` as a user meets it.

#[path = "replay/dir.rs"]
mod dir;

use dir::Dir;

/// P-TRAINER-7: replay answers what could be trained beside online.
#[test]
fn what_could_be_trained_is_answered_for_each_promise() {
    let dir = Dir::new();
    let ask = [
        "--trace",
        "busy.csv",
        "--finetune",
        "qwen2.5-7b:r=8,length=1024",
        "--tpot",
        "15ms,60ms",
        "--csv",
        "cells.csv",
    ];
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
