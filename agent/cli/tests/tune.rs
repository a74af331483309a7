//! `tidegate tune` as a user meets it who asks for what makes no sense. What it trains is tested in `agent/tune`.

use std::path::Path;
use std::process::{Command, Output};

fn tune(dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .current_dir(dir)
        .args(["tune", "--engine", "none.sock", "--data", "train.jsonl"]);
    command
        .args(["--name", "support", "--out", "adapter"])
        .args(more)
        .output()
        .unwrap()
}

/// P-TUNE-1: a bad line or option is one line with exit code 2, whether or not there is an engine.
#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let dir = std::env::temp_dir().join(format!("tidegate-cli-tune-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let talk = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}";
    let bad = talk.replace("assistant", "robot");
    let cases: [(&str, &[&str], &str, i32); 6] = [
        (talk, &[], "cannot reach the engine at none.sock", 1),
        (
            &format!("{talk}\n{bad}\n"),
            &[],
            "train.jsonl:2: messages[0].role: expected one of system",
            2,
        ),
        (
            talk,
            &["--validation", "absent.jsonl"],
            "absent.jsonl: No such file",
            2,
        ),
        (
            talk,
            &["--lora", "rank=4"],
            "rank: expected r=N,alpha=X,modules=NAME+NAME",
            2,
        ),
        (talk, &["--publish", "now"], "--publish: expected", 2),
        (talk, &["--lr", "0"], "give a number above 0, up to 10", 2),
    ];
    for (data, more, told, code) in cases {
        std::fs::write(dir.join("train.jsonl"), data).unwrap();
        let output = tune(&dir, more);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(told), "{more:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            !dir.join("adapter.tune").exists(),
            "{more:?} began something"
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}
