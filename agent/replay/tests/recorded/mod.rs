//! The recorded workloads of the tests beside this.
//!
//! They are not part of the project. They are looked for in `../shared/data` beside it, or where
//! `TIDEGATE_DATA` says, and without them a test says loudly that it was skipped.

use std::path::{Path, PathBuf};

use tidegate_replay::scenarios;
use tidegate_replay::spec::Spec;

/// Of the ten: bursty arrivals with small offline iterations, an extreme client, large batches that
/// fill the memory.
pub const SUBSET: [&str; 3] = ["P03", "P06", "P09"];

/// Whether all ten run, not [`SUBSET`] alone.
pub fn full() -> bool {
    std::env::var("TIDEGATE_EVALUATION").is_ok_and(|what| what == "full")
}

pub fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let dir = std::env::var_os("TIDEGATE_DATA").map_or(beside, PathBuf::from);
    if dir.join("scenarios.csv").is_file() {
        return Some(dir);
    }
    eprintln!(
        "SKIPPED: no scenarios.csv in {}: the recorded workloads are not here, so nothing was \
         compared; TIDEGATE_DATA names another place",
        dir.display()
    );
    None
}

/// Those that are to run here; none where there are none.
pub fn workloads() -> Vec<Spec> {
    let Some(dir) = data() else { return Vec::new() };
    let table = scenarios::read(&dir.join("scenarios.csv"), &dir.join("traces"));
    let table = table.expect("the shared table can be read");
    table
        .iter()
        .filter(|scenario| full() || SUBSET.contains(&scenario.id.as_str()))
        .map(|scenario| scenario.spec().expect("its traces can be read"))
        .collect()
}
