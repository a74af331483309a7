//! Commands of the engine, which may hang for as long as its controller is away.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What the commands of one run may take together.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// On the clock that never jumps, ns.
    until: u64,
}

/// How long that is.
pub const PATIENCE: Duration = Duration::from_secs(5);

impl Patience {
    /// From now on.
    #[must_use]
    pub fn begins() -> Self {
        Self {
            until: tidegate_agent::clock::now_ns() + tidegate_agent::clock::nanos(PATIENCE),
        }
    }

    /// Whether there is time for more.
    #[must_use]
    pub fn is_left(self) -> bool {
        tidegate_agent::clock::now_ns() < self.until
    }

    /// What `program` prints, in English whatever the site speaks.
    ///
    /// # Errors
    /// In one line: it does not start, fails, or takes too long, and is then ended with all that it started.
    pub fn run(self, program: &str, args: &[&str]) -> Result<String, String> {
        let left = self.until.saturating_sub(tidegate_agent::clock::now_ns());
        let name = format!("{program} {}", args.first().unwrap_or(&""));
        let child = Command::new(program)
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("there is no `{program}`: is Slurm's client installed?")
                }
                _ => format!("`{name}` does not start: {error}"),
            })?;
        let group = i32::try_from(child.id()).map(nix::unistd::Pid::from_raw);
        let (done_tx, done_rx) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done_tx.send(child.wait_with_output());
        });
        let Ok(output) = done_rx.recv_timeout(Duration::from_nanos(left)) else {
            if let Ok(group) = group {
                // What it started holds its output open.
                let _ = nix::sys::signal::killpg(group, nix::sys::signal::SIGKILL);
            }
            return Err(format!(
                "`{name}` did not answer within {} s",
                PATIENCE.as_secs()
            ));
        };
        let output = output.map_err(|error| format!("`{name}`: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("it failed");
        Err(format!("`{name}`: {}", why.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-CLUSTER-8: a command of the engine that hangs is ended, and says so in one line.
    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let patience = Patience {
            until: tidegate_agent::clock::now_ns() + 200_000_000,
        };
        let why = patience
            .run("sh", &["-c", "sleep 600 & sleep 600"])
            .expect_err("too long");
        assert_eq!(why, "`sh -c` did not answer within 5 s");
        let patience = Patience::begins();
        assert_eq!(
            patience.run("sh", &["-c", "echo so"]).as_deref(),
            Ok("so\n")
        );
        let why = patience
            .run("sh", &["-c", "echo no >&2; exit 3"])
            .expect_err("fails");
        assert_eq!(why, "`sh -c`: no");
        assert!(
            patience
                .run("/no/such", &[])
                .expect_err("none")
                .contains("there is no")
        );
    }
}
