//! `tidegate replay --predict` and `--fleet` as a user meets them: equal calls give equal bytes, the tables have the
//! columns that others read, and a file that is wrong is refused at its line and field.

#[path = "replay/dir.rs"]
mod dir;

use std::fmt::Write as _;

use dir::Dir;

/// Three minutes of requests, in bursts.
fn trace() -> String {
    let mut text = "arrival_s,input_tokens,output_tokens\n".to_owned();
    for i in 0..240 {
        let at = f64::from(i / 8) * 6.0 + f64::from(i % 8) * 0.05;
        let _ = writeln!(text, "{at:.3},{},{}", 300 + 170 * (i % 11), 20 + i % 60);
    }
    text
}

const FLEET: &str = "what,name,count,gpu,trace,thin,model,kv_gib,gpus,together,lengths,chunk\n\
    node,one,3,h200,bursts,1,llama-3.1-8b,8,1,,,\n\
    node,two,2,a100,bursts,2,qwen2.5-7b,4,2,0.5,,\n\
    job,short,,,,,qwen2.5-7b,,1,,docs,2048\n\
    job,wide,,,,,llama-3.1-8b,,2,,docs,512\n";

/// P-PLACE-5: equal calls give equal bytes however many threads there are, with the columns that others read.
#[test]
fn predictions_are_the_same_to_the_byte() {
    let dir = Dir::new();
    let args = ["--scenarios", "table.csv", "--predict"];
    let told = dir.printed(&args, "one", "1");
    dir.printed(&args, "two", "4");
    assert!(told.contains("Tidegate's model"), "{told}");
    let table = dir.read("one/predict.csv");
    assert_eq!(table, dir.read("two/predict.csv"));
    let mut lines = table.lines();
    assert_eq!(
        lines.next(),
        Some("scenario,offline,predicted,measured,error_pct,stage")
    );
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 2 * 2 * 5, "{table}");
    for row in rows {
        let number = |at: usize| row[at].parse::<f64>().expect("a number");
        let (predicted, measured) = (number(2), number(3));
        assert!(
            (0.0..=1.0).contains(&predicted) && measured > 0.0,
            "{row:?}"
        );
        let off = 100.0 * (predicted / measured - 1.0);
        assert!((number(4) - off).abs() < 0.05, "{row:?}: {off}");
    }
}

/// P-PLACE-6: the same of a fleet; every rule has its row for every seed and load.
#[test]
fn a_fleet_is_the_same_to_the_byte() {
    let dir = Dir::new();
    dir.write("bursts.csv", &trace());
    dir.write("fleet.csv", FLEET);
    let args = ["--fleet", "fleet.csv", "--seeds", "2"];
    dir.printed(&args, "one", "1");
    dir.printed(&args, "two", "4");
    let table = dir.read("one/fleet.csv");
    assert_eq!(table, dir.read("two/fleet.csv"));
    let mut lines = table.lines();
    let header = "rule,seed,load,gpus_saved,violating_time_pct,evictions,jobs_met_pct";
    assert_eq!(lines.next(), Some(header));
    for rule in [
        "Random", "FirstFit", "MostIdle", "IdleOnly", "ThePaper", "Model", "Oracle",
    ] {
        let own = table
            .lines()
            .filter(|line| line.starts_with(&format!("{rule},")));
        let own: Vec<Vec<&str>> = own.map(|line| line.split(',').collect()).collect();
        assert_eq!(own.len(), 4, "{rule}: {table}");
        let saved = own
            .iter()
            .all(|row| row[3].parse::<f64>().expect("a number") > 0.0);
        assert!(saved, "{rule} places nobody: {table}");
    }
}

/// P-PLACE-6: a fleet that cannot be read is refused at file, line and field.
#[test]
fn a_fleet_that_is_wrong_names_line_and_field() {
    let dir = Dir::new();
    dir.write("bursts.csv", &trace());
    for (old, new, parts) in [
        ("node,one,3", "knot,one,3", ["fleet.csv:2", "what"]),
        ("node,two,2", "node,one,2", ["fleet.csv:3", "name"]),
        ("node,one,3", "node,one,0", ["fleet.csv:2", "count"]),
        ("h200", "h2000", ["fleet.csv:2", "gpu"]),
        ("bursts,1", "brusts,1", ["fleet.csv:2", "trace"]),
        ("8b,8,1", "8b,-8,1", ["fleet.csv:2", "kv_gib"]),
        ("2,0.5", "2,1.5", ["fleet.csv:3", "together"]),
        ("4,2,0.5", "4,9,0.5", ["fleet.csv:3", "gpus"]),
        (
            "job,short,,,,,qwen2.5-7b",
            "job,short,,,,,qwen",
            ["fleet.csv:4", "model"],
        ),
        ("docs,512", "docs,0", ["fleet.csv:5", "chunk"]),
    ] {
        assert!(FLEET.contains(old), "{old}");
        dir.write("fleet.csv", &FLEET.replacen(old, new, 1));
        let output = dir.replay(&["--fleet", "fleet.csv", "--traces", ".", "--out", "out"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{new}: {told}");
        assert!(
            parts.iter().all(|part| told.contains(part)),
            "{new}: {told}"
        );
    }
    let dir = Dir::new();
    let output = dir.replay(&["--predict", "--out", "out"]);
    assert!(!output.status.success());
}

fn profiled(dir: &Dir, more: &[&str]) -> std::process::Output {
    let words = ["place", "profile", "from-replay"];
    std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words.iter().chain(more))
        .current_dir(&dir.0)
        .output()
        .expect("tidegate runs")
}

/// P-PLACE-7: what replay says of a kind of job is a profile that the node takes, and says of less memory what replay
/// says of a GPU with so much.
#[test]
fn a_replayed_profile_is_one_that_the_node_takes() {
    let dir = Dir::new();
    let rate = |more: &[&str]| {
        let output = profiled(&dir, &[&["docs", "--lengths", "docs.csv"], more].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}");
        dir.write("docs.toml", &text);
        tidegate_place::profiles::one(&dir.0.join("docs.toml")).expect("a profile")
    };
    let whole = rate(&[]);
    assert!(whole.least_gib() > 0.0 && whole.lost_per_pool() <= 0.0);
    for gib in ["1GiB", "4GiB", "16GiB"] {
        let less = rate(&["--full", gib]);
        let size: f64 = gib.trim_end_matches("GiB").parse().expect("a number");
        let said = whole.rate() * whole.memory_share(size);
        assert!(
            (less.rate() / said - 1.0).abs() < 0.01,
            "{gib}: {} tokens a second, not {said}",
            less.rate()
        );
        assert!(less.rate() <= whole.rate() * 1.001);
    }
    let slower = rate(&["--gpu", "a100"]);
    assert!(slower.rate() < whole.rate());
    let lost = rate(&["--lost", "30000"]);
    assert!(lost.lost_per_pool() >= 30_000.0 && lost.again_s() > 0.0);
}

/// P-PLACE-7: what cannot be replayed is refused in one line that names what is wrong.
#[test]
fn a_profile_that_cannot_be_replayed_is_refused() {
    let dir = Dir::new();
    dir.write("bad.csv", "input_tokens,output_tokens\n900,many\n");
    // As with replay: 2 is the command line's fault, 1 a file's.
    for (more, part, code) in [
        (&["Not A Name"][..], "name", 2),
        (&["docs", "--model", "gpt"], "gpt", 2),
        (&["docs", "--gpu", "h2000"], "h2000", 2),
        (&["docs", "--full", "24"], "24", 2),
        (&["docs", "--full", "1MiB"], "longest request takes", 2),
        (&["docs", "--lengths", "bad.csv"], "bad.csv:2", 1),
        (&["docs", "--lengths", "none.csv"], "none.csv", 1),
        (
            &[
                "docs",
                "--gpu",
                "a10",
                "--model",
                "custom:layers=80,hidden=8192,heads=64",
            ],
            "do not fit",
            2,
        ),
    ] {
        let output = profiled(&dir, more);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {told}");
        assert!(
            told.contains(part) && output.stdout.is_empty(),
            "{more:?}: {told}"
        );
    }
}
