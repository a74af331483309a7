//! The actor: another process with an RM client of its own that disables and enables given pairs as it
//! is told. It plays the agent that is killed, its successor, and a user without rights.
//!
//! It reads lines, `disable` and `enable`, and answers each with one [`Did`].

use crate::subject::Subject;
use anyhow::Context;
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS};
use tidegate_agent::clock::now_ns;
use tidegate_agent::config::Method;
use tidegate_driver::causes::with_causes;
use tidegate_driver::rm::{Driver, Gpu, RmError, Subdevice};

/// What an actor is to do it to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// Device instance.
    pub device_instance: u32,
    /// Clients and channels.
    pub pairs: Vec<(u32, u32)>,
    /// User to become first.
    pub uid: Option<u32>,
    /// Disables take the channels off their runlist, and no more.
    pub unlist: bool,
}

/// What became of one order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Did {
    /// How long the call took.
    pub ns: u64,
    /// Why it did not succeed.
    pub error: Option<String>,
}

/// The actor's life.
///
/// # Errors
/// When its part cannot be played at all; refused orders are answers.
pub fn run(part: &str) -> anyhow::Result<()> {
    let part: Part = serde_json::from_str(part).context("the actor's part")?;
    if let Some(uid) = part.uid {
        nix::unistd::setgid(Gid::from_raw(uid)).context("setgid")?;
        nix::unistd::setuid(Uid::from_raw(uid)).context("setuid")?;
    }
    let gpu = Gpu {
        minor: part.minor,
        device_instance: part.device_instance,
        uuid: [0; 16],
    };
    let subdevice = Subdevice::open(&gpu);
    for line in std::io::stdin().lock().lines() {
        let disable = match line?.as_str() {
            "disable" => true,
            "enable" => false,
            other => anyhow::bail!("not an order: {other:?}"),
        };
        let start = now_ns();
        let result = match &subdevice {
            Ok(subdevice) => call(subdevice, &part, disable).map_err(|error| with_causes(&error)),
            Err(error) => Err(with_causes(error)),
        };
        let did = Did {
            ns: now_ns() - start,
            error: result.err(),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&did)?)?;
        out.flush()?;
    }
    Ok(())
}

fn call(subdevice: &Subdevice, part: &Part, disable: bool) -> Result<(), RmError> {
    part.pairs.chunks(MAX_PAIRS).try_for_each(|pairs| {
        let mut call = list(pairs, disable);
        call.only_disable_scheduling = u8::from(disable && part.unlist);
        subdevice.set_channels(&mut call)
    })
}

/// A call about these pairs; those beyond 64 are counted but have no place.
#[must_use]
pub fn list(pairs: &[(u32, u32)], disable: bool) -> DisableChannels {
    let mut call = DisableChannels {
        disable: u8::from(disable),
        num_channels: u32::try_from(pairs.len()).unwrap_or(u32::MAX),
        ..DisableChannels::default()
    };
    let lists = call.h_client_list.iter_mut().zip(&mut call.h_channel_list);
    for ((client, channel), pair) in lists.zip(pairs) {
        (*client, *channel) = *pair;
    }
    call
}

/// An actor as a probe holds it. Killed with this value.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts one for a subject's pairs, which stops them by its method as far as another process can: what has
    /// to follow is [`Subject::follow`]'s.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(driver: &Driver, subject: &Subject<'_>, uid: Option<u32>) -> anyhow::Result<Self> {
        let device_instance = subject.instance();
        let part = Part {
            minor: crate::subject::gpu(driver, device_instance)?.minor,
            device_instance,
            pairs: subject.pairs(),
            uid,
            unlist: subject.method() == Method::Preempt,
        };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("actor")
            .arg(serde_json::to_string(&part)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start an actor")?;
        Ok(Self {
            orders: child.stdin.take().context("an actor's input")?,
            answers: BufReader::new(child.stdout.take().context("an actor's output")?),
            child,
        })
    }

    /// Gives an order and waits for what became of it.
    ///
    /// # Errors
    /// When the actor is gone.
    pub fn order(&mut self, disable: bool) -> anyhow::Result<Did> {
        let order = if disable { "disable" } else { "enable" };
        writeln!(self.orders, "{order}").context("the actor is gone")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the actor said {line:?}"))
    }

    /// Kills it, as an agent is killed.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}
