//! `tidegate run`: starts a program online or offline, as it has to be started.
//!
//! The library is preloaded, the role and the job are said, and engines are told to outlast a gate. What
//! would come of it is asked of the agent first: a program that would be left alone, beside which offline work
//! would run or which would run beside online, is not started.

use super::agent::{Agent, Refusal, Unreachable, runtime};
use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_agent::clock::{nanos, now_ns};
use tidegate_agent::config::Role;
use tidegate_agent::selftest::find_library;
use tidegate_agent::wire::{role, role_said};
use tidegate_proto::{RUN_DIR, RUN_DIR_ENV, v1};

/// How often an agent that is not there yet is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What an offline engine is told to wait at least, in seconds: a gate can stay closed for hours. The timeout of PyTorch's
/// process groups is not among them, because no variable sets it.
const PATIENCE: [(&str, &str); 2] = [
    ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "86400"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "86400"),
];
/// As a shell says it: the program is not there; it cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// See each field.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ask to be online: the program has the GPU whenever it wants it.
    #[arg(long, conflicts_with = "offline")]
    online: bool,
    /// Ask to be offline: the program has the GPU while online is idle.
    #[arg(long)]
    offline: bool,
    /// The offline job that it belongs to; all processes of a job are gated together.
    #[arg(long, value_name = "NAME", conflicts_with = "online")]
    job: Option<String>,
    /// Set CUDA_DEVICE_MAX_CONNECTIONS for an offline program (default: leave it as it is). A context with fewer
    /// connections has fewer channels, and is stopped sooner; streams of the program may then wait for each other.
    #[arg(long, value_name = "N", conflicts_with = "online", value_parser = clap::value_parser!(u32).range(1..=32))]
    connections: Option<u32>,
    /// Wait this long for an agent.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = wait)]
    wait: Duration,
    /// The library (default: in the usual places).
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// "30s", "2m"; 0 is no wait.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") {
        return Ok(Duration::ZERO);
    }
    super::values::ago(text).map(Duration::from_nanos)
}

/// The agent would not give the role or is not there to say so, or there is no library to start it with.
#[derive(Debug, thiserror::Error)]
#[error("not started: {0}")]
pub struct NotStarted(String);

impl Args {
    /// Of a program that is started for somebody, offline.
    pub(super) fn offline(
        job: &str,
        wait: Duration,
        library: Option<PathBuf>,
        command: Vec<OsString>,
    ) -> Self {
        Self {
            online: false,
            offline: true,
            job: Some(job.to_owned()),
            connections: None,
            wait,
            library,
            command,
        }
    }

    /// The role that is asked for: by a flag, else by the variable.
    fn wish(&self) -> anyhow::Result<Option<Role>> {
        let said = match (self.online, self.offline) {
            (true, _) => "online".to_owned(),
            (_, true) => "offline".to_owned(),
            _ => std::env::var("TIDEGATE_ROLE").unwrap_or_default(),
        };
        match said.as_str() {
            "online" => Ok(Some(Role::Online)),
            "offline" => Ok(Some(Role::Offline)),
            "" => Ok(None),
            _ => Err(super::misused::Misused("TIDEGATE_ROLE takes online or offline").into()),
        }
    }

    /// The library that is to be preloaded. The loader passes over one that it cannot read, with a line on standard
    /// error, and the program would run as without it.
    fn library(&self) -> anyhow::Result<PathBuf> {
        let found = self.library.clone().or_else(find_library);
        let path = found.ok_or_else(|| {
            NotStarted("the library is not found; --library says where it is".to_owned())
        })?;
        let path = std::path::absolute(&path)?;
        std::fs::File::open(&path).map_err(|error| {
            let why = format!("the library {} cannot be read: {error}", path.display());
            NotStarted(why)
        })?;
        Ok(path)
    }
}

/// Becomes the program; what returns is why it did not, as an exit code or an error of one line.
pub(super) fn run(agent: &Agent, args: &Args) -> anyhow::Result<u8> {
    let wish = args.wish()?;
    if args.connections.is_some() && wish != Some(Role::Offline) {
        let why = "--connections is for an offline program: add --offline";
        return Err(super::misused::Misused(why).into());
    }
    let library = args.library()?;
    let asked = runtime()?.block_on(would_be(agent, wish, args.wait));
    match asked {
        Ok(found) => verdict(wish, &found).map_err(NotStarted)?,
        // It waits for nobody, and attaches when an agent comes.
        Err(error) if wish == Some(Role::Online) => {
            eprintln!("tidegate: started all the same: {error:#}")
        }
        Err(error) if error.is::<Unreachable>() => {
            return Err(NotStarted(format!("{error}; --wait 30s waits for one")).into());
        }
        Err(error) => return Err(error),
    }
    let (program, arguments) = args.command.split_first().context("no program is named")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let preloaded = std::env::var_os("LD_PRELOAD");
    command.env("LD_PRELOAD", preload(&library, preloaded.as_deref()));
    if agent.run_dir != Path::new(RUN_DIR) {
        command.env(RUN_DIR_ENV, &agent.run_dir);
    }
    if let Some(wish) = wish {
        command.env("TIDEGATE_ROLE", role_name(wish));
    }
    if let Some(job) = &args.job {
        command.env("TIDEGATE_JOB", job);
    }
    if let Some(connections) = args.connections {
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", connections.to_string());
    }
    if wish == Some(Role::Offline) {
        for (name, value) in PATIENCE {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        if has_ranks(program, std::env::var_os("WORLD_SIZE").as_deref()) {
            eprintln!(
                "tidegate: PyTorch ends a program of several ranks after 600 s in one collective: pass timeout= to \
                 init_process_group, or set gate.long_gate = \"breathe\""
            );
        }
    }
    let error = command.exec();
    eprintln!(
        "tidegate: cannot start {}: {error}",
        Path::new(program).display()
    );
    Ok(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}

/// Whether the program is one of several ranks of PyTorch, or starts them.
fn has_ranks(program: &OsStr, world: Option<&OsStr>) -> bool {
    let ranks = world.and_then(|size| size.to_str()?.parse::<u64>().ok());
    let starter = Path::new(program).file_name() == Some(OsStr::new("torchrun"));
    starter || ranks.is_some_and(|ranks| ranks > 1)
}

fn role_name(wish: Role) -> String {
    super::json::role_name(role(wish))
}

/// What the agent would make of this process if it asked for that role.
async fn would_be(
    agent: &Agent,
    wish: Option<Role>,
    wait: Duration,
) -> anyhow::Result<v1::ExplainResponse> {
    let end = now_ns().saturating_add(nanos(wait));
    let channel = loop {
        match agent.reader().await {
            Err(Unreachable::Absent(_)) if now_ns() < end => tokio::time::sleep(LOOK_EVERY).await,
            other => break other?,
        }
    };
    let request = v1::ExplainRequest {
        pid: 0,
        asked_role: wish.map_or(v1::Role::Unspecified, role).into(),
    };
    let answer = v1::node_client::NodeClient::new(channel)
        .explain(request)
        .await
        .map_err(|status| Refusal::from(&status))?;
    Ok(answer.into_inner())
}

/// Why a program that asks for a role is not to be started.
fn verdict(wish: Option<Role>, found: &v1::ExplainResponse) -> Result<(), String> {
    match (wish, role_said(found.role())) {
        (Some(wish), Some(given)) if wish == given => Ok(()),
        (None, Some(Role::Online | Role::Offline)) => Ok(()),
        (Some(_), _) => Err(format!("it {}", found.role_refused)),
        (None, _) => Err(format!(
            "it would be left alone, neither seen nor gated: {}; --offline asks to be offline",
            found.rule
        )),
    }
}

/// Whether two paths lead to one file.
fn same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    one == other || matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

/// The library before whatever else is preloaded, once.
fn preload(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    let others = others.and_then(OsStr::to_str).unwrap_or_default();
    for other in others.split([':', ' ']).filter(|other| !other.is_empty()) {
        if !same_file(Path::new(other), library) {
            all.push(":");
            all.push(other);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_preloaded_first_and_once() {
        let library = Path::new("/lib/tg.so");
        let with = |others: &str| preload(library, Some(OsStr::new(others)));
        assert_eq!(preload(library, None), "/lib/tg.so");
        assert_eq!(with(""), "/lib/tg.so");
        assert_eq!(with("/a.so /lib/tg.so:/b.so"), "/lib/tg.so:/a.so:/b.so");
        let dir = std::env::temp_dir().join(format!("tidegate-preload-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("it is new");
        let (file, link) = (dir.join("tg.so"), dir.join("link.so"));
        std::fs::write(&file, "").expect("it is new");
        std::os::unix::fs::symlink(&file, &link).expect("it is new");
        assert_eq!(preload(&file, Some(link.as_os_str())), file.as_os_str());
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }

    #[test]
    fn a_program_is_started_only_as_what_it_asks_to_be() {
        let found = |role: v1::Role, refused: &str| v1::ExplainResponse {
            role: role.into(),
            rule: "no rule matched".to_owned(),
            role_refused: refused.to_owned(),
            ..v1::ExplainResponse::default()
        };
        let (online, offline) = (Some(Role::Online), Some(Role::Offline));
        assert_eq!(verdict(online, &found(v1::Role::Online, "")), Ok(()));
        assert_eq!(verdict(offline, &found(v1::Role::Offline, "")), Ok(()));
        assert_eq!(verdict(None, &found(v1::Role::Online, "")), Ok(()));
        let why = verdict(
            online,
            &found(v1::Role::Ignore, "asked for online and is left alone"),
        );
        assert_eq!(why, Err("it asked for online and is left alone".to_owned()));
        let why = verdict(None, &found(v1::Role::Ignore, "")).expect_err("left alone");
        assert!(why.contains("no rule matched; --offline"), "{why}");
    }

    #[test]
    fn a_program_of_several_ranks_is_told_apart() {
        let of = |program: &str, world: Option<&str>| {
            has_ranks(OsStr::new(program), world.map(OsStr::new))
        };
        assert!(of("/venv/bin/torchrun", None) && of("python", Some("2")));
        assert!(!of("python", Some("1")) && !of("python", None));
    }

    #[test]
    fn a_wait_is_a_time() {
        assert_eq!(wait("0"), Ok(Duration::ZERO));
        assert_eq!(wait("30s"), Ok(Duration::from_secs(30)));
        assert!(wait("soon").is_err());
    }
}
