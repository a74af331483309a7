//! While IDLE stands, nothing runs: the shipped library against a driver that knows what is running.

use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::{Node, Running, TRUSTING, built};

/// The driver and the program that launches on it, in `dir`.
fn build(dir: &Path) -> PathBuf {
    let apps = Path::new(env!("CARGO_MANIFEST_DIR")).join("apps");
    let cc = |source: &str, output: &str, flags: &[&str]| {
        let output = dir.join(output);
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
            .arg(&output)
            .arg(apps.join(source))
            .arg(format!("-L{}", dir.display()))
            .args(flags)
            .status()
            .expect("cc is installed");
        assert!(status.success(), "{source} does not compile");
        output
    };
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    cc("running_cuda.c", "libcuda.so.1", &soname);
    cc("random_launches.c", "random_launches", &["-l:libcuda.so.1"])
}

/// How many launches: `TIDEGATE_STRESS_LAUNCHES=10000000`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn of_millions_of_launches_none_runs_while_idle_stands() {
    let node = Node::new(&[], TRUSTING);
    let dir = node.dir().join("driver");
    std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
    let program = build(&dir);
    let launches = setting("TIDEGATE_STRESS_LAUNCHES", 1_500_000);
    let seed = setting("TIDEGATE_SEED", 1);
    let threads = [2, 3];
    for (at, threads) in (0_u64..).zip(threads) {
        let share = launches / 2;
        let mut command = node.preloaded(&program, "online");
        command
            .args([share, seed + at, threads].map(|n| n.to_string()))
            .env("LD_PRELOAD", built("libtidegate.so"))
            .env("LD_LIBRARY_PATH", &dir);
        let output = Running::start("random_launches", &mut command).succeed();
        println!("{threads} threads, seed {}: {}", seed + at, output.trim());
        let figures: Vec<u64> = output
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [made, idle, violations] = figures[..] else {
            panic!("{output:?}");
        };
        assert_eq!(violations, 0, "launches that ran while IDLE stood");
        assert!(made >= share - threads, "{output}");
        assert!(idle >= 200, "an empty run: {output}");
    }
}
