//! `tidegate config`: whether files are right, and what is in force.

use super::agent::Agent;
use super::print::print;
use anyhow::Context;
use clap::Subcommand;
use std::path::{Path, PathBuf};
use tidegate_agent::config::{Applies, FILE, Loaded, SETTINGS, Sources, environment, pool_of};
use tidegate_proto::v1;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether the agent would accept a file and its drop-ins; exit code 1 if not.
    Check {
        /// The file; files in FILE.d are read too.
        #[arg(default_value = FILE)]
        file: PathBuf,
        /// Also compare the file with the GPUs of the running agent.
        #[arg(long)]
        on_node: bool,
    },
    /// Print every setting and its value: of the running agent, or as an agent would read a file, its
    /// drop-ins and this shell's environment.
    Dump {
        /// The file (default: ask the running agent).
        file: Option<PathBuf>,
        /// Also print where each value came from, and when a change of it takes effect.
        #[arg(long)]
        origin: bool,
    },
}

pub async fn run(agent: &Agent, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Check { file, on_node } => check(agent, file, *on_node).await,
        Command::Dump { file, origin } => {
            let rows = match file {
                Some(file) => {
                    let sources = Sources {
                        environment: environment(),
                        ..Sources::of(file)
                    };
                    rows(&load(&sources)?)
                }
                None => {
                    let running = super::steer::settings(agent).await?.settings;
                    running.into_iter().map(row).collect()
                }
            };
            print(&dump(&rows, *origin))
        }
    }
}

fn load(sources: &Sources) -> anyhow::Result<Loaded> {
    sources.load().context("the configuration is refused")
}

async fn check(agent: &Agent, file: &Path, on_node: bool) -> anyhow::Result<()> {
    let sources = Sources::of(file);
    let loaded = load(&sources)?;
    let files: Vec<_> = sources.files()?;
    let names = files.iter().map(|file| file.display().to_string());
    let mut text = format!("{}: ok\n", names.collect::<Vec<_>>().join(", "));
    let mut notes = loaded.overridden();
    if on_node {
        let gpus = super::agent::report(agent, false).await?.gpus;
        let totals: Vec<u64> = gpus.iter().map(|gpu| gpu.memory_total_bytes).collect();
        notes.extend(pool_of(loaded.config.memory.pool, &totals).1);
    }
    for note in notes {
        text.push_str(&format!("warning: {note}\n"));
    }
    print(&text)
}

/// One setting as it is printed.
struct Row {
    path: String,
    value: String,
    origin: String,
    applies: &'static str,
}

fn row(setting: v1::Setting) -> Row {
    let applies = match setting.applies() {
        v1::SettingApplies::Unspecified | v1::SettingApplies::Now => Applies::Now,
        v1::SettingApplies::NextAttach => Applies::NextAttach,
        v1::SettingApplies::Restart => Applies::Restart,
    };
    Row {
        path: setting.path,
        value: setting.value,
        origin: if setting.pending.is_empty() {
            setting.origin
        } else {
            format!("{}, after a restart {}", setting.origin, setting.pending)
        },
        applies: self::applies(applies),
    }
}

const fn applies(applies: Applies) -> &'static str {
    match applies {
        Applies::Now => "at once",
        Applies::NextAttach => "next attach",
        Applies::Restart => "restart",
    }
}

fn rows(loaded: &Loaded) -> Vec<Row> {
    let row = |setting: &'static tidegate_agent::config::Setting| Row {
        path: setting.path.to_owned(),
        value: setting.show(&loaded.config),
        origin: loaded.origin(setting).to_string(),
        applies: applies(setting.applies),
    };
    SETTINGS.iter().map(row).collect()
}

/// As an agent.toml that says the same.
fn dump(rows: &[Row], origin: bool) -> String {
    let mut text = String::new();
    let mut section = "";
    for row in rows {
        let (own, key) = row.path.split_once('.').unwrap_or(("", &row.path));
        if own != section {
            let blank = if section.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{blank}[{own}]\n"));
            section = own;
        }
        let line = format!("{key} = {}", row.value);
        if origin {
            text.push_str(&format!("{line:<36}  # {}; {}\n", row.origin, row.applies));
        } else {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}
