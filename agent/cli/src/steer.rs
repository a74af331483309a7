//! Commands that change how the agent works: pause, drain, set, reload, log-level.

use super::agent::Agent;
use super::print::print;
use anyhow::Context;
use std::time::Duration;
use tidegate_agent::clock::nanos;
use tidegate_proto::v1::control_client::ControlClient;
use tidegate_proto::{CONTROL_SOCKET, v1};
use tonic::Streaming;
use tonic::transport::Channel;

async fn control(agent: &Agent) -> anyhow::Result<ControlClient<Channel>> {
    Ok(ControlClient::new(agent.connect(CONTROL_SOCKET).await?))
}

/// Pauses a job, or every job where it is empty, or takes that back; the jobs that this is about.
pub async fn set_paused(agent: &Agent, job: &str, paused: bool) -> anyhow::Result<Vec<String>> {
    let mut control = control(agent).await?;
    let job = job.to_owned();
    let (jobs, not_kept) = if paused {
        let answer = control.pause(v1::PauseRequest { job }).await?.into_inner();
        (answer.jobs, answer.not_kept)
    } else {
        let answer = control.resume(v1::ResumeRequest { job }).await?;
        let answer = answer.into_inner();
        (answer.jobs, answer.not_kept)
    };
    warn_of_lost(&not_kept);
    Ok(jobs)
}

pub async fn pause(agent: &Agent, job: Option<String>) -> anyhow::Result<()> {
    let held = set_paused(agent, &job.unwrap_or_default(), true).await?;
    jobs("paused", &held)
}

pub async fn resume(agent: &Agent, job: Option<String>) -> anyhow::Result<()> {
    let free = set_paused(agent, &job.unwrap_or_default(), false).await?;
    jobs("resumed", &free)
}

fn jobs(what: &str, jobs: &[String]) -> anyhow::Result<()> {
    if jobs.is_empty() {
        print("no job is attached\n")
    } else {
        print(&format!("{what}: {}\n", jobs.join(", ")))
    }
}

/// Lets no offline job run, or takes that back; the jobs that this is about.
pub async fn set_drained(agent: &Agent, drained: bool) -> anyhow::Result<Vec<String>> {
    let mut control = control(agent).await?;
    let (jobs, not_kept) = if drained {
        let answer = control.drain(v1::DrainRequest {}).await?.into_inner();
        (answer.jobs, answer.not_kept)
    } else {
        let answer = control.undrain(v1::UndrainRequest {}).await?.into_inner();
        (answer.jobs, answer.not_kept)
    };
    warn_of_lost(&not_kept);
    Ok(jobs)
}

/// Says that the next agent will not know of an order, and why.
fn warn_of_lost(not_kept: &str) {
    if !not_kept.is_empty() {
        let why = tidegate_agent::plain::lines(not_kept);
        eprintln!(
            "tidegate: the next start of the agent will not know this order: cannot write {why}"
        );
    }
}

/// Lets offline run beside online until what this returns is dropped, and for `length` at most.
pub async fn ungate(
    agent: &Agent,
    length: Duration,
) -> anyhow::Result<Streaming<v1::UngateResponse>> {
    let length_ns = nanos(length);
    let request = v1::UngateRequest { length_ns };
    let mut kept = control(agent).await?.ungate(request).await?.into_inner();
    let begun = kept.message().await?;
    begun.context("the agent ended the ungated block as it began")?;
    Ok(kept)
}

pub async fn drain(agent: &Agent) -> anyhow::Result<()> {
    let held = set_drained(agent, true).await?;
    print(&format!(
        "drained: no offline job runs until `tidegate undrain`{}\n",
        listed("; held: ", &held)
    ))
}

pub async fn undrain(agent: &Agent) -> anyhow::Result<()> {
    let free = set_drained(agent, false).await?;
    print(&format!("no longer drained{}\n", listed("; jobs: ", &free)))
}

fn listed(before: &str, jobs: &[String]) -> String {
    if jobs.is_empty() {
        String::new()
    } else {
        format!("{before}{}", jobs.join(", "))
    }
}

/// `KEY=VALUE`, or with `unset` a key.
pub async fn set(agent: &Agent, assignment: &str, unset: bool) -> anyhow::Result<()> {
    let (path, value) = match assignment.split_once('=') {
        Some((path, value)) if !unset => (path.trim(), value.trim()),
        None if unset => (assignment.trim(), ""),
        _ => return Err(super::misused::Misused("give KEY=VALUE, or --unset KEY").into()),
    };
    let request = v1::SetRequest {
        path: path.to_owned(),
        value: value.to_owned(),
        unset,
    };
    let answer = control(agent).await?.set(request).await?;
    print(&said(&answer.into_inner().changes))
}

pub async fn reload(agent: &Agent) -> anyhow::Result<()> {
    let answer = control(agent).await?.reload(v1::ReloadRequest {}).await?;
    print(&said(&answer.into_inner().changes))
}

/// Every setting of the running agent.
pub async fn settings(agent: &Agent) -> anyhow::Result<v1::GetConfigResponse> {
    let channel = agent.reader().await?;
    let answer = v1::node_client::NodeClient::new(channel)
        .get_config(v1::GetConfigRequest {})
        .await
        .context("the agent does not say what is in force")?;
    Ok(answer.into_inner())
}

fn said(changes: &[v1::SettingChange]) -> String {
    if changes.is_empty() {
        return "nothing changed\n".to_owned();
    }
    let mut text = String::new();
    for change in changes {
        let counts = match change.applies() {
            v1::SettingApplies::NextAttach => "; counts for processes that attach from now on",
            v1::SettingApplies::Restart => "; NEEDS A RESTART, the old value stays in force",
            _ => "",
        };
        text.push_str(&format!(
            "{}: {} -> {} ({}){counts}\n",
            change.path, change.old_value, change.new_value, change.origin
        ));
    }
    text
}

pub async fn log_level(agent: &Agent, filter: Option<&str>) -> anyhow::Result<()> {
    let request = v1::SetLogLevelRequest {
        filter: filter.unwrap_or_default().to_owned(),
    };
    let answer = control(agent)
        .await?
        .set_log_level(request)
        .await?
        .into_inner();
    print(&format!("{} (before: {})\n", answer.filter, answer.before))
}
