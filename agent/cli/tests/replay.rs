//! `tidegate replay` as a user meets it: what it answers, what it writes, and what it says when it
//! is asked for something that is not there.

#[path = "replay/dir.rs"]
mod dir;

use std::path::Path;
use std::process::Command;

use dir::Dir;
use serde_json::Value;
use tidegate_replay::spec::{Compute, Memory};
use tidegate_replay::timeline::check;

const USUAL: [&str; 7] = [
    "NoControl+Prism",
    "KernelPreempt+UVM",
    "GPreempt+UVM",
    "Channel+UVM",
    "Channel+Prism",
    "Channel+StaticMem",
    "Tidegate ",
];

#[test]
fn a_trace_is_answered_with_a_table_words_and_every_file_asked_for() {
    let dir = Dir::new();
    let mut args = vec![
        "--trace",
        "busy.csv",
        "--online",
        "llama-3.1-8b",
        "--offline",
        "qwen2.5-7b",
    ];
    args.extend([
        "--gpu",
        "h200",
        "--offline-lengths",
        "docs.csv",
        "--kv-gib",
        "8",
        "--seeds",
        "2",
    ]);
    args.extend([
        "--thin",
        "2",
        "--stretch",
        "1.5",
        "--json",
        "all.json",
        "--csv",
        "all.csv",
    ]);
    args.extend(["--html", "all.html", "--timeline", "all.trace.json"]);
    let table = dir.answer(&args);
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    for part in USUAL.iter().chain(&[
        "busy.csv: one request in 2, times stretched by 1.5",
        "online alone",
        "With Tidegate you would harvest",
        "It would cost online's users",
    ]) {
        assert!(table.contains(part), "{part:?} is not in\n{table}");
    }
    let json: Value = serde_json::from_str(&dir.read("all.json")).expect("JSON");
    let results = json["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2 * 8, "two seeds, eight policies");
    for result in results {
        assert_eq!(result["cut"], "one request in 2, times stretched by 1.5");
        assert_eq!(result["disable_save_us"], 300.0);
        assert_eq!(result["faults"], 0, "{result}");
    }
    let offline = |compute: &str| {
        let found = results.iter().find(|result| result["compute"] == compute);
        found.expect("it was asked for")["offline_tokens_per_s"]
            .as_f64()
            .expect("a number")
    };
    assert!(offline("Tidegate") > 0.0 && offline("NoControl") > 0.0);
    assert_eq!(dir.read("all.csv").lines().count(), 1 + 2 * 8);
    assert!(dir.read("all.html").contains("Who has the GPU"));
    let drawn = check(dir.read("all.trace.json").as_bytes()).expect("a viewer reads it");
    assert!(drawn > 100, "{drawn} events");
}

/// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
#[test]
fn a_table_of_scenarios_is_the_same_to_the_byte_however_many_threads() {
    let dir = Dir::new();
    let run = |threads, out| {
        let args = ["--scenarios", "table.csv", "--seeds", "2"];
        let told = dir.printed(&args, out, threads);
        assert!(
            told.contains("S1 (every request)") && told.contains("S2 (one request in 2)"),
            "{told}"
        );
        dir.read(&format!("{out}/results.csv"))
    };
    let one = run("1", "one");
    assert_eq!(one, run("4", "four"));
    let head = "scenario,seed,compute,memory,ttft_increase_pct,tpot_increase_pct,\
                preemptions_per_request_max,preempt_latency_p99_us,offline_tokens_per_s,\
                offline_vs_channel_prism,offline_vs_oracle,reclaims,lost_tokens,faults,";
    assert!(one.starts_with(head), "{one}");
    let rows: Vec<Vec<&str>> = one
        .lines()
        .skip(1)
        .map(|row| row.split(',').collect())
        .collect();
    assert_eq!(rows.len(), 2 * 2 * 8);
    assert_eq!(rows[0][..4], ["S1", "1", "NoControl", "Prism"]);
    assert_eq!(rows[31][..4], ["S2", "2", "Oracle", "Oracle"]);
    let prism = rows
        .iter()
        .find(|row| row[2..4] == ["Channel", "Prism"])
        .expect("a row");
    assert_eq!(prism[9], "1.0000", "Channel+Prism over itself");
    let only = dir.answer(&[
        "--scenarios",
        "table.csv",
        "--traces",
        ".",
        "--out",
        "only",
        "--only",
        "s2",
        "--policy",
        "Tidegate",
    ]);
    assert!(only.contains("S2") && !only.contains("S1"), "{only}");
    assert_eq!(
        dir.read("only/results.csv").lines().count(),
        1 + 3,
        "three seeds unless told"
    );
    let swept = dir.answer(&[
        "--scenarios",
        "table.csv",
        "--traces",
        ".",
        "--out",
        "swept",
        "--seeds",
        "1",
        "--policy",
        "Tidegate",
        "--switch-ms",
        "0.05,1",
    ]);
    let heads = ["Disable and save 50 us", "Disable and save 1000 us"];
    let places = heads.map(|head| swept.find(head).expect("a table for each cost"));
    assert!(places[0] < places[1], "{swept}");
    let swept_rows = dir.read("swept/results.csv");
    let with = |cost: &str| swept_rows.matches(&format!(",{cost},{cost},")).count();
    assert_eq!((with("50.000"), with("1000.000")), (2, 2), "{swept_rows}");
    assert!(
        swept.contains("twice the longest decode gap"),
        "true against learnt: {swept}"
    );
}

#[test]
fn options_change_what_they_name() {
    let dir = Dir::new();
    let base = [
        "--trace",
        "busy.csv",
        "--policy",
        "Channel",
        "--memory",
        "Prism,StaticMem",
        "--csv",
        "f.csv",
    ];
    let rows = |more: &[&str]| -> Vec<Vec<String>> {
        let _ = dir.answer(&[&base[..], more].concat());
        let text = dir.read("f.csv");
        let cells = |row: &str| row.split(',').map(str::to_owned).collect();
        text.lines().map(cells).collect()
    };
    let plain = rows(&[]);
    assert_eq!(plain.len(), 3, "one policy, two memories, one seed");
    let at = |name: &str| {
        plain[0]
            .iter()
            .position(|column| column == name)
            .expect("a column")
    };
    for (more, column, value) in [
        (&["--switch-ms", "0.05"][..], "disable_save_us", "50.000"),
        (&["--lead-ms", "1.9"], "lead_us", "1900.000"),
        (&["--timeslice-us", "40"], "timeslice_switch_us", "40.000"),
        (&["--fault-us", "20.5"], "fault_group_us", "20.500"),
        (&["--from", "10", "--length", "20"], "online_requests", "60"),
        (&["--seeds", "3"], "seed", "1"),
        (
            &["--synthetic", "caller", "--length", "30"],
            "cut",
            "\"seconds 0 to 30\"",
        ),
    ] {
        let base = if more[0] == "--synthetic" {
            &base[2..]
        } else {
            &base[..]
        };
        let _ = dir.answer(&[base, more].concat());
        let text = dir.read("f.csv");
        let row: Vec<&str> = text.lines().nth(1).expect("a row").split(',').collect();
        assert_eq!(row[at(column)], value.trim_matches('"'), "{more:?}");
    }
    assert_ne!(rows(&["--gaps", "sync"])[1], plain[1]);
    assert_ne!(rows(&["--gpu", "a100"])[1], plain[1]);
    assert_ne!(
        rows(&["--online", "custom:layers=16,hidden=2048,heads=16"])[1],
        plain[1]
    );
    assert_ne!(rows(&["--offline-chunk", "8192"])[1], plain[1]);
    assert_eq!(rows(&[]), plain, "the same seed gives the same figures");
}

/// Tables of Llama on an H200, ten times as slow as its fit.
fn slow_tables(dir: &Dir) {
    let at = dir.0.join("slow");
    std::fs::create_dir_all(at).expect("the directory is ours");
    dir.write(
        "slow/iteration_prefill.csv",
        "gpu,model,new_tokens,prior_context,attention_ms,total_ms\n\
         h200,llama-3.1-8b,16,0,4,52\nh200,llama-3.1-8b,2048,0,28,450\n",
    );
    dir.write(
        "slow/iteration_decode.csv",
        "gpu,model,batch,context_per_seq,attention_ms,total_ms\n\
         h200,llama-3.1-8b,1,128,3,50\nh200,llama-3.1-8b,64,2048,45,96\n",
    );
}

#[test]
fn tables_that_are_given_are_used_and_named_in_every_result() {
    let dir = Dir::new();
    slow_tables(&dir);
    let pair = ["--trace", "busy.csv", "--policy", "Tidegate"];
    let written = [
        "--json",
        "f.json",
        "--html",
        "f.html",
        "--timeline",
        "f.trace",
    ];
    let run = |more: &[&str]| {
        let told = dir.answer(&[&pair[..], &written, more].concat());
        let figures: Value = serde_json::from_str(&dir.read("f.json")).expect("JSON");
        (told, figures["results"][0].clone())
    };
    let (told, fitted) = run(&[]);
    assert!(!told.contains("slow"), "{told}");
    assert_eq!(
        (&fitted["online_times"], &fitted["offline_times"]),
        (&"fit".into(), &"fit".into())
    );
    let (told, loaded) = run(&["--calibration", "slow"]);
    let words = "iteration times of llama-3.1-8b from slow";
    assert!(told.contains(words), "{told}");
    assert!(dir.read("f.html").contains(words) && dir.read("f.trace").contains(words));
    assert_eq!(
        (&loaded["online_times"], &loaded["offline_times"]),
        (&"tables".into(), &"fit".into())
    );
    let tpot = |figures: &Value| figures["tpot_p50_ms"].as_f64().expect("a number");
    assert!(tpot(&loaded) > 5.0 * tpot(&fitted), "{loaded}");

    let table = [
        "--scenarios",
        "table.csv",
        "--traces",
        ".",
        "--out",
        "out",
        "--only",
        "S1",
    ];
    let calibrated = [
        &table[..],
        &["--policy", "Tidegate", "--calibration", "slow"],
    ]
    .concat();
    let told = dir.answer(&calibrated);
    assert!(
        told.contains(words) && dir.read("out/results.csv").contains(",tables,fit,"),
        "{told}"
    );
    // Nothing of them would be used.
    let whole = [&table[..6], &["--calibration", "slow"]].concat();
    let output = dir.replay(&whole);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("S2") && told.contains("qwen2.5-7b on a100, llama-3.1-8b on a100"),
        "{told}"
    );
    dir.write("slow/iteration_decode.csv", "gpu,model,batch\n");
    let output = dir.replay(&[&pair[..], &["--calibration", "slow"]].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("slow/iteration_decode.csv:1: field context_per_seq is missing"),
        "{told}"
    );
}

/// Arguments, the exit code, and parts of what is told.
const WRONG: &[(&str, i32, &[&str])] = &[
    ("", 2, &["--trace <FILE>"]),
    (
        "--trace busy.csv --gpu h20",
        2,
        &["no GPU \"h20\"", "did you mean h200?"],
    ),
    (
        "--trace busy.csv --online lama-3.1-8b",
        2,
        &["no model", "did you mean llama-3.1-8b?"],
    ),
    (
        "--trace busy.csv --offline custom:layers=1",
        2,
        &["no model", "custom:layers=L"],
    ),
    (
        "--trace busy.csv --policy Chanel",
        2,
        &["no compute policy", "did you mean Channel?"],
    ),
    (
        "--trace busy.csv --policy Channel+Prsm",
        2,
        &["no memory policy", "did you mean Prism?"],
    ),
    (
        "--trace busy.csv --memory uwm",
        2,
        &["no memory policy", "did you mean UVM?"],
    ),
    (
        "--trace busy.csv --gaps vlm",
        2,
        &["no decode-gap preset", "did you mean vllm?"],
    ),
    (
        "--synthetic cod",
        2,
        &["no synthetic trace", "did you mean code?"],
    ),
    ("--synthetic code --length 0", 2, &["no request is left"]),
    ("--trace busy.csv --thin 0", 2, &["--thin"]),
    ("--trace busy.csv --stretch -1", 2, &["--stretch"]),
    ("--trace busy.csv --seeds 0", 2, &["--seeds"]),
    ("--trace busy.csv --threads 0", 2, &["--threads"]),
    (
        "--trace busy.csv --switch-ms fast",
        2,
        &["milliseconds from 0 to 1000"],
    ),
    (
        "--trace busy.csv --switch-ms 0.1,0.2",
        2,
        &["add --scenarios, or give one"],
    ),
    (
        "--trace busy.csv --fault-us -1",
        2,
        &["microseconds from 0 to 1000000"],
    ),
    ("--trace busy.csv --kv-gib 0", 2, &["above 0"]),
    (
        "--trace busy.csv --offline-chunk 0",
        2,
        &["--offline-chunk"],
    ),
    (
        "--trace busy.csv --online custom:layers=200,hidden=20000,heads=100",
        2,
        &["do not fit", "--kv-gib"],
    ),
    ("--trace busy.csv --traces .", 2, &["--scenarios"]),
    (
        "--trace busy.csv --scenarios table.csv --traces . --out out",
        2,
        &["cannot be used with"],
    ),
    ("--scenarios table.csv", 2, &["--traces", "--out"]),
    (
        "--scenarios table.csv --traces . --out out --only S3",
        2,
        &["no scenario \"S3\"", "did you mean S1?"],
    ),
    (
        "--scenarios table.csv --traces . --out out --html x.html",
        2,
        &["cannot be used with"],
    ),
    (
        "--trace none.csv",
        1,
        &["cannot read none.csv", "check the path"],
    ),
    (
        "--trace busy.csv --from 9000",
        1,
        &["busy.csv", "no requests that this cut keeps"],
    ),
    (
        "--trace busy.csv --offline-lengths busy2.csv",
        1,
        &["cannot read busy2.csv"],
    ),
    (
        "--trace busy.csv --kv-gib 0.001",
        1,
        &["busy.csv", "bytes of KV cache"],
    ),
    (
        "--trace busy.csv --json no/such/dir.json",
        1,
        &["cannot write no/such/dir.json"],
    ),
    ("--trace busy.csv --html .", 1, &["cannot write ."]),
    ("--trace busy.csv --decisions a.rec", 2, &["--decisions"]),
    (
        "--trace busy.csv --finetune lama-3.1-8b",
        2,
        &["no model", "did you mean llama-3.1-8b?"],
    ),
    (
        "--trace busy.csv --finetune mixtral-8x7b",
        2,
        &["mixtral-8x7b", "take a model without experts"],
    ),
    (
        "--trace busy.csv --finetune llama-3.1-8b:r=0",
        2,
        &["rank 0", "from 1 to 4096"],
    ),
    (
        "--trace busy.csv --finetune llama-3.1-8b --tpot 1ms",
        2,
        &["online alone takes", "--thin"],
    ),
    (
        "--trace busy.csv --finetune llama-3.1-8b --tpot soon",
        2,
        &["a time in milliseconds"],
    ),
    (
        "--trace busy.csv --finetune llama-3.1-8b --policy FlexLLM",
        2,
        &["FlexLLM cannot run on two-process", "needs one process"],
    ),
    (
        "--trace busy.csv --kv-gib 999",
        2,
        &["--kv-gib 999", "h200", "141 GiB"],
    ),
    (
        "--decisions none.rec",
        1,
        &["cannot read none.rec", "check the path"],
    ),
];

/// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let dir = Dir::new();
    for (args, code, parts) in WRONG {
        let args: Vec<&str> = args.split_whitespace().collect();
        let output = dir.replay(&args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {told}");
        for part in *parts {
            assert!(
                told.contains(part),
                "{part:?} is not in {told:?} ({args:?})"
            );
        }
        assert!(!told.contains("panicked"), "{told}");
        assert!(output.stdout.is_empty(), "{args:?} printed a result");
    }
}

/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn a_recording_is_decided_again_and_the_first_line_that_differs_is_named() {
    let dir = Dir::new();
    let recording = include_str!("../../record/tests/recordings/format-2.txt");
    dir.write("node.rec", recording);
    let output = dir.replay(&["--decisions", "node.rec"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        told,
        "24 events, 40 effects: decided again, all as recorded\n"
    );
    let changed = recording.replacen("granted: Yes", "granted: No", 1);
    let line = 1 + recording
        .lines()
        .position(|line| line.contains("granted: Yes"))
        .expect("one demand is met");
    dir.write("changed.rec", &changed);
    let output = dir.replay(&["--decisions", "changed.rec"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in ["changed.rec", &format!("line {line}"), "granted: Yes"] {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
}

/// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
#[test]
fn a_broken_file_is_named_with_line_and_field() {
    let dir = Dir::new();
    let head = "arrival_s,input_tokens,output_tokens\n";
    for (name, text, parts) in [
        ("empty.csv", "", "empty.csv: no requests"),
        ("only-head.csv", head, "only-head.csv: no requests"),
        (
            "zero.csv",
            &format!("{head}0,0,1\n"),
            "zero.csv:2: field input_tokens: \"0\"",
        ),
        (
            "back.csv",
            &format!("{head}2,1,1\n1,1,1\n"),
            "back.csv:3: field arrival_s: 1 is before",
        ),
        (
            "word.csv",
            &format!("{head}1,1,many\n"),
            "word.csv:2: field output_tokens: \"many\"",
        ),
        (
            "short.csv",
            &format!("{head}1,1\n"),
            "short.csv:2: field output_tokens is missing",
        ),
        ("other.csv", "a,b\n1,2\n", "other.csv:1: not a trace"),
        (
            "long.csv",
            &format!("{head}{}", "9".repeat(2 << 20)),
            "long.csv:2: too large: more than 1 MiB",
        ),
    ] {
        dir.write(name, text);
        let output = dir.replay(&["--trace", name]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(parts), "{parts:?} is not in {told:?}");
        assert_eq!(told.lines().count(), 1, "one line: {told}");
    }
    let table = dir.read("table.csv").replace("a100", "a1000");
    dir.write("table.csv", &table);
    let output = dir.replay(&["--scenarios", "table.csv", "--traces", ".", "--out", "out"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("table.csv:3: field gpu: there is no GPU \"a1000\"; did you mean a100?"),
        "{told}"
    );
    assert!(
        !Path::new(&dir.0).join("out").exists(),
        "nothing is made for a table that is wrong"
    );
}

#[test]
fn help_names_every_policy_and_fits_a_terminal() {
    let output = Dir::new().replay(&["--help"]);
    let help = String::from_utf8(output.stdout).expect("text");
    for (name, _) in Compute::NAMES {
        let name = if name.starts_with("TemporalShare") {
            "TemporalShare(N)"
        } else if name.starts_with("OneEngine") {
            "OneEngine(N)"
        } else {
            name
        };
        assert!(help.contains(name), "{name}");
    }
    for (name, _) in Memory::NAMES {
        assert!(help.contains(name), "{name}");
    }
    // The agent's directory is an option of every command.
    for line in help
        .lines()
        .filter(|line| !line.contains("TIDEGATE_RUN_DIR"))
    {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
}

/// P-REPLAY-1: replay refuses what it cannot read, and equal seeds give equal bytes.
#[test]
fn a_recording_says_what_it_lacks() {
    let dir = Dir::new();
    for (args, code, part) in [
        (
            &["--output", "live.json"][..],
            3,
            "no agent listens on nobody/status.sock",
        ),
        (
            &["--output", "no/live.json"],
            1,
            "cannot write no/live.json",
        ),
        (
            &["--output", "live.json", "--seconds", "0"],
            2,
            "from 0.1 to 3600",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["--run-dir", "nobody", "trace"])
            .args(args)
            .current_dir(&dir.0)
            .output()
            .expect("the program starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
    assert!(!dir.0.join("live.json").exists());
}
