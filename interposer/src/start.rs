//! Starts the library's threads. None exists before the process' first CUDA context.
//!
//! The *prober* shares the application's descriptors, because it calls the driver. The *reporter* has a descriptor
//! table of its own and makes no CUDA call.

use crate::activity::{prober, work};
use crate::agent::report;
use crate::process::Process;
use crate::real::row::Row;
use crate::threads::{BlockSignals, spawn, spawn_apart};
use crate::{env, log};
use core::sync::atomic::Ordering::AcqRel;

/// Starts the threads with the first call, which names the table's rows.
pub fn once(process: &'static Process, rows: &'static [Row]) {
    if process.start.threads.swap(true, AcqRel) {
        return;
    }
    let quiet = BlockSignals::new();
    spawn("tidegate-prober", move || {
        prober::run(process, rows, work::begin);
    });
    // Here, by a thread of the application's: it may change its environment while the reporter runs.
    let said = env::Said::read();
    log::enabled();
    spawn_apart("tidegate", move || {
        report::run(process, rows, said.clone());
    });
    drop(quiet);
}
