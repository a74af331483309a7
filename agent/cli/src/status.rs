//! `tidegate status` and `tidegate hooks`: the node at this moment.

use super::agent::{Agent, report};
use super::print::{Output, print, print_folded};
use super::{json, table};
use tidegate_text::screen::terminal_width;

pub(super) async fn status(agent: &Agent, output: Output) -> anyhow::Result<()> {
    let report = report(agent, false).await?;
    match output {
        Output::Table => print_folded(&table::status(&report, terminal_width())),
        Output::Json => print(&format!("{:#}\n", json::status(&report))),
    }
}

pub(super) async fn hooks(agent: &Agent, pid: Option<i32>, output: Output) -> anyhow::Result<()> {
    let mut report = report(agent, true).await?;
    if let Some(pid) = pid {
        report.processes.retain(|process| process.pid == pid);
        anyhow::ensure!(
            !report.processes.is_empty(),
            "no attached process has the id {pid}"
        );
    }
    match output {
        Output::Table => print_folded(&table::hooks(&report.processes, terminal_width())),
        Output::Json => print(&format!("{:#}\n", json::processes(&report.processes))),
    }
}
