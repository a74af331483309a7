//! Cost of a wrapper on a busy process.

use crate::{Row, median};
use std::path::Path;
use std::process::Command;
use tidegate_tests::{TempDir, built, compile_driver};

/// (kernel, graph) nanoseconds of one run.
fn once(program: &Path, dir: &Path, threads: u32, preload: bool) -> (f64, f64) {
    let mut command = Command::new(program);
    command.args([
        threads.to_string(),
        "40".into(),
        (400_000 / threads).to_string(),
    ]);
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
    rows
}
