//! `tidegate release`: enable what a dead agent left disabled, from outside.
//!
//! It reads the journal and needs nobody: not the agent, and not the processes, which may be frozen.
//! systemd runs it after the service has ended. While an agent is handing over to a successor it does
//! nothing, because the successor takes the channels as they are; beside a living agent it refuses.

use super::agent::Unreachable;
use super::print::print;
use super::values::device_of;
use anyhow::Context;
use std::path::Path;
use tidegate_agent::channels::journal;
use tidegate_agent::clock::now_ns;
use tidegate_agent::host::rundir::{self, RunDir, RunDirError};

pub(super) fn run(run_dir: &Path, device: Option<&str>, shim: Option<&Path>) -> anyhow::Result<()> {
    let last = rundir::holder(run_dir).map(|holder| holder.device);
    let device = device_of(device, last)?;
    let Some(journal) = journal::find(run_dir)
        .context("cannot read the journal: start the agent, which sets it aside")?
    else {
        return print("there is no journal: nothing was ever disabled here\n");
    };
    if journal.is_handing_over(now_ns()) {
        return print("an agent is handing over to a successor: nothing to do\n");
    }
    // Held until the end, so that no agent starts in between.
    let _held = match RunDir::take(run_dir, &device.to_string()) {
        Ok(held) => held,
        Err(error @ RunDirError::Held(..)) => {
            return Err(Unreachable::Failed {
                path: run_dir.to_owned(),
                why: format!("nothing to release, {error}"),
            }
            .into());
        }
        Err(error) => return Err(error.into()),
    };
    device.enter(shim)?;
    let report = tidegate_agent::channels::reconcile::enable_marked(&journal);
    print(&format!("{report}\n"))?;
    for line in report.lines() {
        print(&format!("{line}\n"))?;
    }
    anyhow::ensure!(report.failed == 0, "some channels could not be enabled");
    Ok(())
}
