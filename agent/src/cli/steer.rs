//! Commands that change how the agent works: drain, set, reload.

use super::{Cli, print};
use anyhow::Context;
use tidegate_proto::v1::control_client::ControlClient;
use tidegate_proto::{CONTROL_SOCKET, v1};
use tonic::transport::Channel;

async fn control(cli: &Cli) -> anyhow::Result<ControlClient<Channel>> {
    Ok(ControlClient::new(cli.connect(CONTROL_SOCKET).await?))
}

pub async fn drain(cli: &Cli) -> anyhow::Result<()> {
    let answer = control(cli).await?.drain(v1::DrainRequest {}).await?;
    let held = answer.into_inner().jobs;
    print(&format!(
        "drained: no offline job runs until `tidegate undrain`{}\n",
        listed("; held: ", &held)
    ))
}

pub async fn undrain(cli: &Cli) -> anyhow::Result<()> {
    let answer = control(cli).await?.undrain(v1::UndrainRequest {}).await?;
    let free = answer.into_inner().jobs;
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
pub async fn set(cli: &Cli, assignment: &str, unset: bool) -> anyhow::Result<()> {
    let (path, value) = match assignment.split_once('=') {
        Some((path, value)) if !unset => (path.trim(), value.trim()),
        None if unset => (assignment.trim(), ""),
        _ => anyhow::bail!("give KEY=VALUE, or --unset KEY"),
    };
    let request = v1::SetRequest {
        path: path.to_owned(),
        value: value.to_owned(),
        unset,
    };
    let answer = control(cli).await?.set(request).await?;
    print(&said(&answer.into_inner().changes))
}

pub async fn reload(cli: &Cli) -> anyhow::Result<()> {
    let answer = control(cli).await?.reload(v1::ReloadRequest {}).await?;
    print(&said(&answer.into_inner().changes))
}

/// Every setting of the running agent.
pub async fn settings(cli: &Cli) -> anyhow::Result<v1::GetConfigResponse> {
    let channel = cli.connect(tidegate_proto::STATUS_SOCKET).await?;
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
