//! A stand-in for systemd: it holds the agent's sockets, hears what the agent says of itself (`sd_notify`), and
//! starts it again.
//!
//! The sockets outlive every agent, so that whoever connects between two waits in the backlog.

use crate::{Node, Running, TempDir, clock, wait_until};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// First descriptor of passed sockets (`sd_listen_fds(3)`).
const FIRST: RawFd = 3;
const NAMES: [&str; 3] = ["hook", "control", "status"];

/// A service manager for the agents of one node.
#[derive(Debug)]
pub struct Manager {
    sockets: Vec<UnixListener>,
    heard: UnixDatagram,
    notify: PathBuf,
    config: PathBuf,
    watchdog: Duration,
    // Last, so that what lies in it ends first.
    _dir: TempDir,
}

impl Manager {
    /// Listens for the agents of `node`, none of which has started, to be given `config`. They are told that
    /// they will be killed when they say nothing for `watchdog`.
    ///
    /// # Panics
    /// When a socket cannot be bound.
    #[must_use]
    pub fn new(node: &Node, config: &str, watchdog: Duration) -> Self {
        let dir = TempDir::new();
        let bind = |name: &str| {
            let path = node.run_dir().join(format!("{name}.sock"));
            UnixListener::bind(path).expect("the run directory is ours and empty")
        };
        let notify = dir.path().join("notify");
        let heard = UnixDatagram::bind(&notify).expect("the temporary directory is writable");
        let silence = Some(Duration::from_millis(50));
        heard.set_read_timeout(silence).expect("a timeout");
        let path = dir.path().join("agent.toml");
        std::fs::write(&path, config).expect("the temporary directory is writable");
        Self {
            sockets: NAMES.map(bind).into(),
            heard,
            notify,
            config: path,
            watchdog,
            _dir: dir,
        }
    }

    /// Starts an agent and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it does not, with its log.
    #[track_caller]
    pub fn start(&self, node: &Node) -> Running {
        let agent = self.begin(node);
        let ready = wait_until(clock::DEADLINE, || self.said("READY=1").then_some(()));
        assert!(
            ready.is_some(),
            "the agent does not get ready; its log:\n{}",
            std::fs::read_to_string(node.agent_log()).unwrap_or_default()
        );
        agent
    }

    /// Starts an agent.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn begin(&self, node: &Node) -> Running {
        while self.hear().is_some() {}
        let plain = node.agent_command();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(node.agent_log())
            .expect("the temporary directory is writable");
        // The one who reads LISTEN_PID has to be the one it names: the shell becomes the agent.
        let mut command = Command::new("sh");
        command
            .args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""])
            .arg(plain.get_program())
            .args(plain.get_args())
            .arg("--config")
            .arg(&self.config)
            .envs(
                plain
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("LISTEN_FDS", NAMES.len().to_string())
            .env("LISTEN_FDNAMES", NAMES.join(":"))
            .env("NOTIFY_SOCKET", &self.notify)
            .env("WATCHDOG_USEC", self.watchdog.as_micros().to_string())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(log);
        let passed: Vec<RawFd> = self
            .sockets
            .iter()
            .map(|socket| socket.as_raw_fd())
            .collect();
        let pass = move || {
            // Out of the way of the places they go to, first.
            let mut aside = [0; NAMES.len()];
            for (fd, aside) in passed.iter().zip(&mut aside) {
                // SAFETY: plain system call on a descriptor that this process holds.
                *aside = unsafe { libc::fcntl(*fd, libc::F_DUPFD, 64) };
            }
            for (fd, place) in aside.into_iter().zip(FIRST..) {
                // SAFETY: as above; whatever was there belongs to this child, which becomes the shell next.
                if unsafe { libc::dup2(fd, place) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // SAFETY: as above.
                unsafe { libc::close(fd) };
            }
            Ok(())
        };
        // SAFETY: it makes plain system calls only, and no allocation.
        unsafe { command.pre_exec(pass) };
        Running::start("tidegate-agent", &mut command)
    }

    /// The next thing the agent says, within 50 ms.
    #[must_use]
    pub fn hear(&self) -> Option<String> {
        let mut text = [0; 512];
        let length = self.heard.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    /// Whether the next thing the agent says, within 50 ms, has `line` among its lines.
    #[must_use]
    pub fn said(&self, line: &str) -> bool {
        self.hear()
            .is_some_and(|text| text.lines().any(|said| said == line))
    }
}
