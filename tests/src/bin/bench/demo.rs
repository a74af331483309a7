//! The demo, three times on each trace: medians of its figures against the bars they have to clear.

use crate::row::{Row, median};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_tests::{TempDir, built};

const TIMES: usize = 3;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It could not be started.
    #[error("start the demo: {0}")]
    Start(#[source] std::io::Error),
    /// It failed, and said why on standard error.
    #[error("the demo failed ({status}) on {trace}")]
    Failed {
        /// How it ended.
        status: std::process::ExitStatus,
        /// On which trace.
        trace: String,
    },
    /// It wrote no figures.
    #[error("read the demo's figures: {0}")]
    Figures(#[source] std::io::Error),
    /// It wrote something else.
    #[error("read the demo's figures: {0}")]
    Json(#[from] serde_json::Error),
}

pub(super) fn once(trace: Option<&Path>, seconds: u64, file: &Path) -> Result<Value, DemoError> {
    let mut command = Command::new(built("demo"));
    command
        .args(["--seconds", &seconds.to_string(), "--json"])
        .arg(file)
        .stdout(Stdio::null());
    if let Some(trace) = trace {
        command.arg("--trace").arg(trace);
    }
    let status = command.status().map_err(DemoError::Start)?;
    if !status.success() {
        let trace = trace.map_or("its own trace".into(), |trace| trace.display().to_string());
        return Err(DemoError::Failed { status, trace });
    }
    let text = std::fs::read(file).map_err(DemoError::Figures)?;
    Ok(serde_json::from_slice(&text)?)
}

/// A figure of each run, found by its path.
pub(super) fn all(runs: &[Value], path: &str) -> Vec<f64> {
    let of = |run: &Value| {
        run.pointer(path)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    };
    runs.iter().map(of).collect()
}

/// The median over the runs of one figure over another of the same run.
pub(super) fn ratio(runs: &[Value], over: &str, under: &str) -> f64 {
    let pairs = all(runs, over).into_iter().zip(all(runs, under));
    median(pairs.map(|(over, under)| over / under).collect())
}

fn rows(name: &str, runs: &[Value]) -> Vec<Row> {
    let mean = |run: &str, figure: &str| format!("/runs/{run}/{figure}/mean");
    let against_alone = |run: &str, figure: &str| {
        let value = ratio(runs, &mean(run, figure), &mean("alone", figure));
        Row::new(format!("demo.{name}.{run}.{figure}_ratio"), value, "")
    };
    let gated = |figure: &str, path: &str| {
        let value = median(all(runs, &format!("/runs/tidegate/{path}")));
        Row::new(format!("demo.{name}.tidegate.{figure}"), value, "")
    };
    vec![
        against_alone("tidegate", "ttft_ms").at_most(1.05),
        against_alone("tidegate", "tpot_ms").at_most(1.02),
        against_alone("uncontrolled", "ttft_ms").at_least(1.2),
        against_alone("uncontrolled", "tpot_ms"),
        gated("harvest_ratio", "harvest_ratio").at_least(0.8),
        gated("preemptions", "preemptions").at_least(20.0),
        gated("preemptions_per_request_max", "preemptions_per_request/max").at_most(1.0),
    ]
}

pub fn measure(traces: &[PathBuf], seconds: u64) -> Result<Vec<Row>, DemoError> {
    let dir = TempDir::new();
    let file = dir.path().join("demo.json");
    let mut out = Vec::new();
    for trace in std::iter::once(None).chain(traces.iter().map(Some)) {
        let trace = trace.map(PathBuf::as_path);
        let name = trace
            .and_then(Path::file_stem)
            .map_or("default".into(), |stem| {
                stem.to_string_lossy().replace('.', "_")
            });
        let runs = (0..TIMES).map(|_| once(trace, seconds, &file));
        out.extend(rows(&name, &runs.collect::<Result<Vec<_>, _>>()?));
    }
    Ok(out)
}
