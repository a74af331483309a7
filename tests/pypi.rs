//! Unmodified packages from PyPI run to their end on the virtual GPU, with and without the library,
//! and an agent sees every launch they make. Clients that are not ours speak to its socket as tidegate(7)
//! tells them to. The examples for Kubernetes are looked at by its schemas.
//!
//! `tests/pypi/run` installs them and sets `TIDEGATE_PYPI`; without it the tests say that they did
//! not run.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::view::process;
use tidegate_tests::{Node, Running, TRUSTING, wait_for};

fn python() -> Option<PathBuf> {
    let found = std::env::var_os("TIDEGATE_PYPI").map(|dir| Path::new(&dir).join("bin/python"));
    if found.is_none() {
        eprintln!("!!! SKIPPED: TIDEGATE_PYPI is not set; run tests/pypi/run");
    }
    found
}

fn script<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("pypi")
        .join(name);
    command.args(["-W", "ignore"]).arg(path)
}

fn runs(name: &str) {
    let Some(python) = python() else {
        return;
    };
    let node = Node::device_only(&[]);
    for mut command in [node.plain(&python), node.preloaded(&python, "online")] {
        let out = Running::start("python", script(&mut command, name)).succeed();
        assert!(out.trim_end().ends_with("ok"), "{out}");
    }
}

/// Calls of the hooks whose symbol begins with `prefix`, of the one process there is.
fn calls(hooks: &Value, prefix: &str) -> u64 {
    let rows = hooks[0]["hooks"].as_array().into_iter().flatten();
    rows.filter(|row| {
        row["symbol"]
            .as_str()
            .is_some_and(|s| s.starts_with(prefix))
    })
    .filter_map(|row| row["calls"].as_u64())
    .sum()
}

/// `launches`: by symbol, how many the script makes.
fn counts(name: &str, launches: &[(&str, u64)]) {
    let Some(python) = python() else {
        return;
    };
    let node = Node::new(&[], TRUSTING);
    let mut command = node.preloaded(&python, "online");
    let command = script(&mut command, name).stdin(Stdio::piped());
    let mut running = Running::start("python", command.stderr(Stdio::inherit()));
    let pipe = running.child.stdout.take().expect("stdout is piped");
    let ok = BufReader::new(pipe)
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "ok");
    assert!(ok, "{name} ran");
    let pid = running.pid();
    let all: u64 = launches.iter().map(|row| row.1).sum();
    wait_for("its launches in status", || {
        let launches = process(&node, pid)?["devices"][0]["launches"].as_u64()?;
        (launches >= all).then_some(())
    });
    for &(symbol, made) in launches {
        let seen = wait_for(symbol, || {
            let output = node.tidegate(&["hooks", "--output", "json"]);
            let hooks: Value = serde_json::from_slice(&output.stdout).ok()?;
            Some(calls(&hooks, symbol)).filter(|&seen| seen >= made)
        });
        assert_eq!(seen, made, "{symbol}");
    }
    drop(running.child.stdin.take());
    running.succeed();
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn cuda_bindings_runs_to_its_end() {
    runs("cuda_bindings_smoke.py");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn numba_cuda_compiles_launches_and_copies_back() {
    runs("numba_smoke.py");
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn every_launch_of_cuda_bindings_is_counted() {
    // One for the stream and one into the graph.
    let launches = [("cuLaunchKernel", 2), ("cuGraphLaunch", 5)];
    counts("cuda_bindings_smoke.py", &launches);
}

/// P-LIBRARY-2: every way to the driver is seen, no other program is touched.
#[test]
fn every_launch_of_numba_cuda_is_counted() {
    counts("numba_smoke.py", &[("cuLaunchKernel", 11)]);
}

/// The example in that language of tidegate(7), on the sockets of `node`.
fn example(node: &Node, begin: &str) -> String {
    let page = include_str!("../agent/man/tidegate.7").replace("\\-", "-");
    let from = page.find(begin).expect("the page has an example");
    let text = &page[from..];
    let text = &text[..text.find(".EE").expect("the example ends")];
    text.replace("/run/tidegate", &node.run_dir().display().to_string())
}

/// P-OPERATE-6: the examples of tidegate(7) work.
#[test]
fn the_python_example_of_the_readme_reads_the_status() {
    let Some(python) = python() else {
        return;
    };
    let node = Node::new(&["--gpus", "2"], TRUSTING);
    let file = node.dir().join("example.py");
    std::fs::write(&file, example(&node, "import grpc\n")).expect("writable");
    let out = Running::start(
        "python",
        node.plain(&python).arg(&file).env_remove("LD_PRELOAD"),
    );
    let out = out.succeed();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    for line in lines {
        assert!(
            line.starts_with("GPU-") && line.ends_with(" idle 0"),
            "{out}"
        );
    }
}

/// P-OPERATE-6: the examples of tidegate(7) work.
#[test]
fn the_grpcurl_example_of_the_readme_reads_the_status() {
    let Some(python) = python() else {
        return;
    };
    let node = Node::new(&[], TRUSTING);
    let line = example(&node, "grpcurl -plaintext");
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let mut command = node.plain(python.with_file_name(program));
    let out = Running::start("grpcurl", command.args(words).env_remove("LD_PRELOAD")).succeed();
    let status: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(status["gpus"].as_array().map(Vec::len), Some(1), "{out}");
}

/// Kubernetes' own schemas of that version know every field of these manifests, and miss none. So many are of its kinds.
#[track_caller]
fn assert_valid(python: &Path, manifests: &Path, version: &str, known: usize) {
    let output = Command::new(python.with_file_name("kubernetes-validate"))
        .args(["--strict", "-k", version])
        .arg(manifests)
        .output()
        .expect("it is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let passed = said.lines().filter(|line| line.contains(" passed for "));
    let name = manifests.display();
    assert!(output.status.success(), "{name}, {version}: {said}");
    assert_eq!(passed.count(), known, "{name}, {version}: {said}");
}

/// P-OPERATE-20: Kubernetes' own schemas know every field of the example manifests, and miss none. Of kinds of other
/// projects they know nothing.
#[test]
fn kubernetes_takes_the_manifests_of_the_examples() {
    let Some(python) = python() else {
        return;
    };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/examples");
    for (manifest, known) in [
        ("kubernetes.yaml", 3),
        ("engines/engines.yaml", 2),
        ("kubernetes/job.yaml", 1),
        ("kubernetes/place.yaml", 2),
    ] {
        // The oldest whose users still have support, and the newest that the schemas are of.
        for version in ["1.33.0", "1.37.0"] {
            assert_valid(&python, &examples.join(manifest), version, known);
        }
    }
}

/// What Helm makes of the chart with these values, or why it refuses them.
fn rendered(python: &Path, dir: &Path, values: &Value) -> Result<String, String> {
    let file = dir.join("values.json");
    std::fs::write(&file, values.to_string()).expect("the directory is ours");
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/packaging/chart");
    let mut command = Command::new(python);
    script(&mut command, "chart.py").arg(chart).arg(file);
    let output = command.output().expect("Python starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() {
        return Ok(text(output.stdout));
    }
    Err(text(output.stderr))
}

/// The agent's configuration in the manifests of the chart.
fn configuration(manifests: &str) -> String {
    let (_, rest) = manifests.split_once("  agent.toml: |\n").expect("one");
    let lines = rest.lines().map_while(|line| line.strip_prefix("    "));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// P-OPERATE-31: Helm renders the chart to what Kubernetes and the agent take, and has no finding.
#[test]
fn helm_makes_of_the_chart_what_kubernetes_and_the_agent_take() {
    let Some(python) = python() else {
        return;
    };
    let dir = tidegate_tests::TempDir::new();
    let all = serde_json::json!({
        "inject": { "api": "v1" },
        "metrics": { "serviceMonitor": true, "rules": true, "labels": { "release": "prometheus" } },
        "rules": [
            { "uid": 1001, "role": "offline", "weight": 4, "labels": { "a/b": "c", "d": "e\"f" } },
            { "cgroup": "/kubepods.slice", "role": "online" },
        ],
        "config": "[gate]\ncooldown = \"20ms\"",
    });
    let beta = serde_json::json!({ "inject": { "api": "v1beta1" } });
    for (values, versions, known) in [
        (serde_json::json!({}), ["1.33.0", "1.37.0"], 3),
        (all.clone(), ["1.36.0", "1.37.0"], 5),
        (beta, ["1.34.0", "1.35.0"], 5),
    ] {
        let manifests = rendered(&python, dir.path(), &values).expect("Helm takes them");
        let file = dir.path().join("manifests.yaml");
        std::fs::write(&file, &manifests).expect("the directory is ours");
        for version in versions {
            assert_valid(&python, &file, version, known);
        }
        let toml = dir.path().join("agent.toml");
        std::fs::write(&toml, configuration(&manifests)).expect("the directory is ours");
        let checked = Command::new(tidegate_tests::built("tidegate"))
            .args(["config", "check"])
            .arg(&toml)
            .output()
            .expect("tidegate starts");
        assert!(checked.status.success(), "{checked:?}\n{manifests}");
    }
    let manifests = rendered(&python, dir.path(), &all).expect("Helm takes them");
    for part in [
        "kind: ServiceMonitor",
        "kind: PrometheusRule",
        "TidegateAgentGone",
        "release: prometheus",
        "uid = 1001\n",
    ] {
        assert!(manifests.contains(part), "{part} is missing: {manifests}");
    }
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/packaging/chart");
    let mut command = Command::new(&python);
    let output = script(&mut command, "chart.py")
        .arg(&chart)
        .arg("lint")
        .output();
    let output = output.expect("Python starts");
    assert!(output.status.success(), "{output:?}");
    let named = std::fs::read_to_string(chart.join("Chart.yaml")).expect("the chart has one");
    for field in ["version", "appVersion"] {
        let line = format!("\n{field}: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(
            named.contains(&line),
            "Chart.yaml: {field} is the workspace's"
        );
    }
}

/// P-OPERATE-31: values that cannot be right are refused, and named.
#[test]
fn helm_refuses_values_that_cannot_be_right() {
    let Some(python) = python() else {
        return;
    };
    let dir = tidegate_tests::TempDir::new();
    for (values, named) in [
        (
            serde_json::json!({ "rules": [{ "qos": "besteffort", "role": "ofline" }] }),
            "role",
        ),
        (
            serde_json::json!({ "rules": [{ "role": "offline" }] }),
            "rules",
        ),
        (serde_json::json!({ "metrics": { "port": 0 } }), "port"),
        (serde_json::json!({ "inject": { "api": "v2" } }), "api"),
        (serde_json::json!({ "metrcs": {} }), "metrcs"),
        (serde_json::json!({ "paths": { "run": "run" } }), "run"),
    ] {
        let why = rendered(&python, dir.path(), &values).expect_err(named);
        assert!(why.contains(named), "{why}");
    }
}
