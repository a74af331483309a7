//! Cost of a wrapper on a busy process: time against a native run, and instructions as callgrind counts
//! them in our function alone.

use crate::row::{Row, median};
use std::path::Path;
use std::process::Command;
use tidegate_tests::{TempDir, built, compile_driver};

/// (kernel, graph) nanoseconds of one run.
fn once(program: &Path, dir: &Path, threads: u32, preload: bool) -> (f64, f64) {
    let mut command = Command::new(program);
    // Batches of a tenth of a millisecond: what else the machine does falls into few of them, and the
    // median batch is free of it.
    command.args([threads, 400, 20_000].map(|number| number.to_string()));
    command
        .env("LD_LIBRARY_PATH", dir)
        .env("TIDEGATE_RUN_DIR", dir);
    if preload {
        command.env("LD_PRELOAD", built("libtidegate.so"));
    }
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut figures = text.split_whitespace().filter_map(|word| word.parse().ok());
    (
        figures.next().unwrap_or(f64::NAN),
        figures.next().unwrap_or(f64::NAN),
    )
}

/// Native and preloaded by turns, the median of each.
pub fn measure(rounds: u32) -> Vec<Row> {
    let dir = TempDir::new();
    let program = compile_driver(dir.path(), "sink_cuda", "bench_hook");
    let mut rows = Vec::new();
    for (threads, prefix, target) in [(1, "hook", 2.0), (8, "hook_8_threads", 5.0)] {
        let mut native = (Vec::new(), Vec::new());
        let mut hooked = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (into, preload) in [(&mut native, false), (&mut hooked, true)] {
                let (kernel, graph) = once(&program, dir.path(), threads, preload);
                into.0.push(kernel);
                into.1.push(graph);
            }
        }
        for (name, native, hooked) in [
            ("cuLaunchKernel", median(native.0), median(hooked.0)),
            ("cuGraphLaunch", median(native.1), median(hooked.1)),
        ] {
            rows.push(Row::new(format!("{prefix}.{name}.native_ns"), native, "ns"));
            rows.push(Row::new(
                format!("{prefix}.{name}.preloaded_ns"),
                hooked,
                "ns",
            ));
            rows.push(
                Row::new(format!("{prefix}.{name}.added_ns"), hooked - native, "ns")
                    .at_most(target),
            );
        }
    }
    rows.extend(instructions(&program, dir.path()));
    rows
}

/// Launches of each kind under callgrind.
const COUNTED: u32 = 20_000;

/// Instructions of one hooked launch on a busy device, those of the driver's function excluded; nothing
/// where there is no valgrind.
fn instructions(program: &Path, dir: &Path) -> Vec<Row> {
    let out = dir.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["1", "1", &COUNTED.to_string()])
        .env("LD_LIBRARY_PATH", dir)
        .env("TIDEGATE_RUN_DIR", dir)
        .env("LD_PRELOAD", built("libtidegate.so"));
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => {
            eprintln!("bench: SKIPPED instructions: no valgrind (apt-get install valgrind)");
            return Vec::new();
        }
    }
    let profile = std::fs::read_to_string(&out).expect("callgrind writes its profile");
    ["cuLaunchKernel", "cuGraphLaunch"]
        .map(|name| {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let each = own_instructions(&profile, name) as f64 / f64::from(COUNTED);
            Row::new(format!("hook.{name}.instructions"), each, "").at_most(40.0)
        })
        .into()
}

/// What `function` of our library itself executed, by a callgrind profile without compression: after
/// `ob=` and `fn=` come lines of a position and a cost; a `calls=` line is followed by one with the
/// cost of the callee.
fn own_instructions(profile: &str, function: &str) -> u64 {
    let (mut ours, mut it, mut callee, mut sum) = (false, false, false, 0);
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            ours = object.ends_with("/libtidegate.so");
        } else if let Some(name) = line.strip_prefix("fn=") {
            it = name == function;
        } else if line.starts_with("calls=") {
            callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            if ours && it && !callee {
                sum += cost.unwrap_or(0_u64);
            }
            callee = false;
        }
    }
    sum
}
