//! `tidegate replay --draw` as a user meets it: equal seeds draw the same, what was drawn can be run
//! again from its table, and what cannot be drawn from is named.

#[path = "replay/dir.rs"]
mod dir;

use dir::Dir;

fn draw<'a>(out: &'a str, seed: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["--draw", "3", "--seed", seed, "--traces", ".", "--out", out];
    args.extend(more);
    args
}

/// P-REPLAY-1: equal seeds give equal bytes, and the table of what was drawn gives the same results.
#[test]
fn equal_seeds_draw_the_same_and_their_table_runs_again() {
    let dir = Dir::new();
    let told = dir.answer(&draw("one", "5", &["--threads", "1"]));
    for part in ["3 scenarios drawn with seed 5", "first half", "Tidegate"] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    assert!(
        told.lines().all(|line| line.chars().count() <= 80),
        "{told}"
    );
    dir.answer(&draw("two", "5", &["--threads", "4"]));
    dir.answer(&draw("other", "6", &[]));
    let read = |out: &str, file: &str| dir.read(&format!("{out}/{file}"));
    for file in ["scenarios.csv", "results.csv"] {
        assert_eq!(read("one", file), read("two", file), "{file}");
        assert_ne!(read("one", file), read("other", file), "{file}");
    }
    dir.answer(&[
        "--scenarios",
        "one/scenarios.csv",
        "--traces",
        ".",
        "--out",
        "again",
        "--seeds",
        "1",
        "--policy",
        "Tidegate",
    ]);
    assert_eq!(read("one", "results.csv"), read("again", "results.csv"));
    // More of a seed begins with the same.
    dir.answer(&[
        "--draw", "1", "--seed", "5", "--traces", ".", "--out", "less",
    ]);
    assert!(read("one", "scenarios.csv").starts_with(&read("less", "scenarios.csv")));
}

#[test]
fn what_cannot_be_drawn_from_is_named() {
    let dir = Dir::new();
    let refused = |args: &[&str], parts: &[&str]| {
        let output = dir.replay(args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?}");
        for part in parts {
            assert!(told.contains(part), "{part:?} is not in {told:?}");
        }
    };
    refused(&draw("out", "x", &[]), &["--seed"]);
    refused(
        &draw("out", "1", &["--half", "third"]),
        &["third", "first, second"],
    );
    refused(
        &draw("out", "1", &["--half", "second"]),
        &["draw 1 of seed 1", "no scenario"],
    );
    refused(
        &["--draw", "0", "--traces", ".", "--out", "out"],
        &["--draw", "1..="],
    );
    refused(&["--draw", "2"], &["--traces", "--out"]);
    refused(
        &[
            "--draw",
            "2",
            "--scenarios",
            "table.csv",
            "--traces",
            ".",
            "--out",
            "out",
        ],
        &["--draw", "--scenarios"],
    );
    refused(
        &["--draw", "2", "--traces", "nowhere", "--out", "out"],
        &["cannot read nowhere"],
    );
    dir.write(
        "torn.csv",
        "arrival_s,input_tokens,output_tokens\n0,5,6\n1,x,8\n",
    );
    refused(
        &draw("out", "1", &[]),
        &["torn.csv:3: field input_tokens", "\"x\""],
    );
    std::fs::create_dir_all(dir.0.join("empty")).expect("ours");
    refused(
        &["--draw", "2", "--traces", "empty", "--out", "out"],
        &["empty: no trace", "add one"],
    );
}
