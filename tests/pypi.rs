//! Unmodified packages from PyPI run to their end on the virtual GPU, with and without the library.
//!
//! `tests/pypi/run` installs them and sets `TIDEGATE_PYPI`; without it the tests say that they did
//! not run.

use std::path::{Path, PathBuf};

use tidegate_tests::{Node, Running};

fn python() -> Option<PathBuf> {
    let found = std::env::var_os("TIDEGATE_PYPI").map(|dir| Path::new(&dir).join("bin/python"));
    if found.is_none() {
        eprintln!("!!! SKIPPED: TIDEGATE_PYPI is not set; run tests/pypi/run");
    }
    found
}

fn runs(script: &str) {
    let Some(python) = python() else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("pypi")
        .join(script);
    let node = Node::device_only(&[]);
    for mut command in [node.plain(&python), node.preloaded(&python, "online")] {
        command.args(["-W", "ignore"]).arg(&script);
        let out = Running::start("python", &mut command).succeed();
        assert!(out.trim_end().ends_with("ok"), "{out}");
    }
}

#[test]
fn cuda_bindings_runs_to_its_end() {
    runs("cuda_bindings_smoke.py");
}

#[test]
fn numba_cuda_compiles_launches_and_copies_back() {
    runs("numba_smoke.py");
}
