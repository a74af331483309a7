//! What rules channel control out, whatever the self-test says: on the node, or of a process.
//!
//! * **MPS**: all its clients share the channels of one server, so gating one gates all. The node has it where its
//!   daemon runs: the pid file in its pipe directory, or its processes. It rules out no level: a process is a client
//!   only if it finds a daemon in its own pipe directory, as its environment names it and as its mount namespace has
//!   it ([`Mps::serves`]). Only the launches of such a process are gated.
//! * **MIG**: channels belong to a GPU instance, which the agent's subdevice is not subscribed to. Asked
//!   of every GPU (`GPU_GET_INFO_V2`, SMC mode).
//! * **A vGPU guest**: whose channels run is up to the hypervisor's driver. Asked of every GPU
//!   (`GPU_GET_VIRTUALIZATION_MODE`).
//! * **Confidential computing**: its key rotation disables and enables channels by itself. Asked of the
//!   driver (`NV_CONFIDENTIAL_COMPUTE`).
//!
//! MIG and confidential computing take a reset of the GPU to change, a vGPU another machine; MPS comes and goes, so it is looked
//! for again while the agent runs.

use crate::causes::with_causes;
use crate::config::Level;
use crate::device::Device;
use crate::inbox::{Input, Mailbox};
use crate::rm::{Driver, RmError, Subdevice};
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_abi::rm::{MAX_GPUS, Status};

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// NVIDIA's multi-process service runs, as this process.
    Mps(i32),
    /// This GPU is, or is about to be, split into instances.
    Mig(u32),
    /// This GPU is a hypervisor's virtual one.
    VgpuGuest(u32),
    /// The GPUs compute confidentially.
    ConfidentialComputing,
}

impl Obstacle {
    /// As status names it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Mps(_) => "mps",
            Self::Mig(_) => "mig",
            Self::VgpuGuest(_) => "vgpu_guest",
            Self::ConfidentialComputing => "confidential_computing",
        }
    }

    /// Whether it concerns the node's GPUs, and not some processes only.
    #[must_use]
    pub const fn rules_levels_out(&self) -> bool {
        !matches!(self, Self::Mps(_))
    }

    /// Which GPU it is about, if one.
    #[must_use]
    pub const fn gpu(&self) -> Option<u32> {
        match self {
            Self::Mig(gpu) | Self::VgpuGuest(gpu) => Some(*gpu),
            Self::Mps(_) | Self::ConfidentialComputing => None,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mps(pid) => write!(
                f,
                "MPS runs (process {pid}): its clients share one server's channels, so only their launches are gated"
            ),
            Self::Mig(gpu) => write!(f, "MIG is on (GPU {gpu}): channels belong to its instances"),
            Self::VgpuGuest(gpu) => write!(
                f,
                "GPU {gpu} is a vGPU: the hypervisor's driver decides which channels run"
            ),
            Self::ConfidentialComputing => f.write_str(
                "confidential computing is on: its key rotation switches channels by itself",
            ),
        }
    }
}

/// Where MPS may be seen.
#[derive(Clone, Debug)]
pub struct Mps {
    pipe_dir: PathBuf,
    /// None: another device's machine, whose processes say nothing of this one's GPUs.
    processes: Option<PathBuf>,
}

/// MPS' pipe directory, unless `CUDA_MPS_PIPE_DIRECTORY` names another.
const PIPE_DIR: &str = "/tmp/nvidia-mps";
/// Names the pipe directory.
pub const PIPE_DIR_ENV: &str = "CUDA_MPS_PIPE_DIRECTORY";
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// What the kernel keeps (15 characters) of nvidia-cuda-mps-control and nvidia-cuda-mps-server.
pub const MPS_PROCESS: &str = "nvidia-cuda-mps";
/// How often MPS is looked for.
const EVERY: Duration = Duration::from_secs(2);

impl Mps {
    /// Where `device`'s MPS would be.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        Self {
            pipe_dir: std::env::var_os(PIPE_DIR_ENV).map_or_else(|| PIPE_DIR.into(), PathBuf::from),
            processes: (*device == Device::Real).then(|| PathBuf::from("/proc")),
        }
    }

    /// What there is to be known of the pipe directory where no MPS is found.
    #[must_use]
    pub fn left_over(&self) -> Option<String> {
        let dir = self.pipe_dir.display();
        let found = std::fs::metadata(&self.pipe_dir).ok()?;
        Some(if found.is_dir() {
            format!("no server uses the pipe directory {dir}, so programs run without MPS")
        } else {
            format!("{dir} is not a directory, so programs find no MPS there")
        })
    }

    /// Whether a process' GPU work goes through MPS. Where it may not be looked at, whether MPS runs at all.
    #[must_use]
    pub fn serves(&self, pid: i32) -> bool {
        serves(Path::new("/proc"), pid).unwrap_or_else(|_| self.find().is_some())
    }

    /// Its process, if it runs.
    #[must_use]
    pub fn find(&self) -> Option<i32> {
        let named = daemon_in(&self.pipe_dir.join(PID_FILE)).ok().flatten();
        named
            .filter(|&pid| is_mps(Path::new("/proc"), pid))
            .or_else(|| mps_processes(self.processes.as_deref()?).first().copied())
    }
}

/// Bytes of a process' environment that are looked at.
const ENVIRONMENT: u64 = 1 << 20;
/// Bytes of a pid file.
const PID_BYTES: u64 = 32;

/// The process that a pid file names. The file may be any, of whoever wrote it.
fn daemon_in(file: &Path) -> io::Result<Option<i32>> {
    let mut named = std::fs::OpenOptions::new();
    let named = named
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let found = match named.open(file) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
        Err(_) => return Ok(None),
    };
    // To open a device may do something, so nothing but a plain file is opened.
    if !found.metadata()?.is_file() {
        return Ok(None);
    }
    let file = std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut text = String::new();
    let read = file.take(PID_BYTES).read_to_string(&mut text);
    Ok(read.ok().and_then(|_| text.trim().parse().ok()))
}

/// Whether a process finds a daemon in its own pipe directory, by a directory in the shape of /proc. One in another
/// namespace of processes has a number that says nothing here, and counts as living.
fn serves(proc_dir: &Path, pid: i32) -> io::Result<bool> {
    let own = proc_dir.join(pid.to_string());
    let mut environment = Vec::new();
    std::fs::File::open(own.join("environ"))?
        .take(ENVIRONMENT)
        .read_to_end(&mut environment)?;
    let mut entries = environment.split(|byte| *byte == 0);
    let named = entries.find_map(|entry| {
        entry
            .strip_prefix(PIPE_DIR_ENV.as_bytes())?
            .strip_prefix(b"=")
    });
    let dir = named.map_or(Path::new(PIPE_DIR), |dir| Path::new(OsStr::from_bytes(dir)));
    let view = match dir.strip_prefix("/") {
        Ok(below) => own.join("root").join(below),
        Err(_) => own.join("cwd").join(dir),
    };
    let Some(daemon) = daemon_in(&view.join(PID_FILE))? else {
        return Ok(false);
    };
    let processes = |pid: &str| std::fs::read_link(proc_dir.join(pid).join("ns/pid"));
    let same = processes("self")? == processes(&pid.to_string())?;
    Ok(!same || is_mps(proc_dir, daemon))
}

fn is_mps(proc_dir: &Path, pid: i32) -> bool {
    std::fs::read_to_string(proc_dir.join(pid.to_string()).join("comm"))
        .is_ok_and(|name| name.trim_end() == MPS_PROCESS)
}

/// Processes of MPS, by a directory in the shape of /proc.
#[must_use]
pub fn mps_processes(proc_dir: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(proc_dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| is_mps(proc_dir, pid))
        .collect()
}

/// Everything there is now. What the driver does not know how to answer is not there; what it fails to
/// answer is told of and counts as not there either, because the self-test is still to come.
#[must_use]
pub fn look(driver: &Driver, mps: &Mps) -> Vec<Obstacle> {
    let mut found: Vec<_> = mps.find().map(Obstacle::Mps).into_iter().collect();
    let Some(layout) = driver.layout else {
        return found;
    };
    for (index, gpu) in driver.gpus.iter().enumerate() {
        let own = match Subdevice::open(gpu) {
            Ok(own) => own,
            Err(error) => {
                tracing::warn!(
                    gpu = index,
                    error = with_causes(&error),
                    "the driver does not say in which mode it is"
                );
                continue;
            }
        };
        let says = |asked: Result<bool, RmError>| {
            asked.unwrap_or_else(|error| {
                if !is_unknown(&error) {
                    tracing::warn!(
                        gpu = index,
                        error = with_causes(&error),
                        "the driver does not say in which mode it is"
                    );
                }
                false
            })
        };
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        if says(own.is_split(layout)) {
            found.push(Obstacle::Mig(number));
        }
        if says(own.is_guest(layout)) {
            found.push(Obstacle::VgpuGuest(number));
        }
        if index == 0 && says(own.is_confidential(layout)) {
            found.push(Obstacle::ConfidentialComputing);
        }
    }
    found
}

fn is_unknown(error: &RmError) -> bool {
    [Status::NOT_SUPPORTED, Status::INVALID_CLASS]
        .map(Some)
        .contains(&error.status())
}

/// Looks for MPS for ever, and tells the control thread when it comes and goes.
///
/// # Errors
/// When no thread can be made.
pub fn watch(mps: Mps, known: Option<i32>, mailbox: Mailbox) -> std::io::Result<()> {
    let mut last = known;
    std::thread::Builder::new()
        .name("tg-obstacles".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(EVERY);
                let now = mps.find();
                if now.is_some() != last.is_some() {
                    mailbox.put(Input::Mps(now));
                }
                last = now;
            }
        })?;
    Ok(())
}

/// How many GPUs there may be that the agent has not listed. Gating launches asks nothing of a GPU, so at that level
/// those of attached processes count as they come: where none could be listed, where some are hidden, and where a
/// process names an instance of one.
#[must_use]
pub fn unseen(driver: &Driver, level: Level, obstacles: &[Obstacle]) -> usize {
    let split = obstacles
        .iter()
        .any(|obstacle| matches!(obstacle, Obstacle::Mig(_)));
    let may_be = driver.lacks.is_some() || !driver.hidden.is_empty() || split;
    if level == Level::L5 && may_be {
        MAX_GPUS.saturating_sub(driver.gpus.len())
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_is_known_by_the_name_of_its_processes() {
        let dir = std::env::temp_dir().join(format!("tidegate-mps-{}", std::process::id()));
        for (pid, name) in [("7", "bash"), ("8", MPS_PROCESS), ("self", MPS_PROCESS)] {
            std::fs::create_dir_all(dir.join(pid)).expect("writable");
            std::fs::write(dir.join(pid).join("comm"), format!("{name}\n")).expect("writable");
        }
        assert_eq!(mps_processes(&dir), [8]);
    }

    #[test]
    fn a_pid_file_that_was_left_behind_is_not_mps() {
        let dir = std::env::temp_dir().join(format!("tidegate-mps-pid-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let own = std::process::id().to_string();
        std::fs::write(dir.join(PID_FILE), own).expect("writable");
        let mps = Mps {
            pipe_dir: dir,
            processes: None,
        };
        assert_eq!(mps.find(), None);
    }

    /// Processes in a directory in the shape of /proc: 1 is a daemon, 7 has a pipe directory of its own.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("tidegate-mps-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            let fake = Self(dir);
            fake.process("self", "here", "");
            fake.process("1", "here", "");
            std::fs::write(fake.0.join("1/comm"), MPS_PROCESS).expect("writable");
            fake
        }

        fn process(&self, pid: &str, namespace: &str, environment: &str) {
            let own = self.0.join(pid);
            std::fs::create_dir_all(own.join("ns")).expect("writable");
            std::fs::create_dir_all(own.join("root/pipes")).expect("writable");
            std::os::unix::fs::symlink(namespace, own.join("ns/pid")).expect("writable");
            std::fs::write(own.join("environ"), environment).expect("writable");
        }

        fn daemon(&self, pid: &str, dir: &str, daemon: &str) {
            let dir = self.0.join(pid).join("root").join(dir);
            std::fs::create_dir_all(&dir).expect("writable");
            std::fs::write(dir.join(PID_FILE), daemon).expect("writable");
        }

        fn serves(&self, pid: i32) -> bool {
            serves(&self.0, pid).expect("it may be looked at")
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const OWN_PIPES: &str = "HOME=/\0CUDA_MPS_PIPE_DIRECTORY=/pipes\0A=b\0";

    /// P-GATE-25: MPS is a property of a process.
    #[test]
    fn only_a_process_that_finds_a_daemon_is_a_client_of_mps() {
        let fake = Fake::new("some");
        fake.process("7", "here", OWN_PIPES);
        fake.process("8", "here", "HOME=/\0");
        fake.daemon("7", "pipes", "1\n");
        assert!(
            fake.serves(7),
            "its environment names a directory with a daemon"
        );
        assert!(!fake.serves(8), "the usual directory has none");
        fake.daemon("8", "tmp/nvidia-mps", "1\n");
        assert!(fake.serves(8), "now it has");
        assert!(serves(&fake.0, 9).is_err(), "there is no such process");
    }

    /// P-GATE-25: MPS is a property of a process.
    #[test]
    fn a_pipe_directory_without_a_server_is_not_mps() {
        let fake = Fake::new("empty");
        fake.process("7", "here", OWN_PIPES);
        assert!(!fake.serves(7), "an empty directory");
        fake.daemon("7", "pipes", "1234\n");
        assert!(!fake.serves(7), "its daemon is gone");
        fake.daemon("7", "pipes", "no number");
        assert!(!fake.serves(7));
        let file = fake.0.join("7/root/pipes").join(PID_FILE);
        std::fs::remove_file(&file).expect("it is there");
        std::os::unix::fs::symlink("/dev/zero", &file).expect("writable");
        assert!(!fake.serves(7), "a device is not opened");
        let dir = fake.0.join("7/root/pipes");
        let mps = Mps {
            pipe_dir: dir,
            processes: None,
        };
        assert!(
            mps.left_over()
                .is_some_and(|text| text.contains("no server uses"))
        );
    }

    /// P-GATE-25: MPS is a property of a process.
    #[test]
    fn a_pipe_directory_that_is_a_file_is_not_mps() {
        let fake = Fake::new("file");
        fake.process("7", "here", "CUDA_MPS_PIPE_DIRECTORY=/file\0");
        let file = fake.0.join("7/root/file");
        std::fs::write(&file, "1").expect("writable");
        assert!(!fake.serves(7));
        let mps = Mps {
            pipe_dir: file,
            processes: None,
        };
        assert_eq!(mps.find(), None);
        assert!(
            mps.left_over()
                .is_some_and(|text| text.contains("is not a directory"))
        );
        let none = Mps {
            pipe_dir: fake.0.join("none"),
            processes: None,
        };
        assert_eq!(none.left_over(), None);
    }

    /// P-GATE-25: MPS is a property of a process.
    #[test]
    fn a_server_in_another_namespace_is_seen_by_the_process_that_has_it() {
        let fake = Fake::new("elsewhere");
        // The node's own directory has nothing; the daemon's number there is of the container.
        fake.process("7", "container", OWN_PIPES);
        fake.process("8", "here", OWN_PIPES);
        fake.daemon("7", "pipes", "4321\n");
        assert!(fake.serves(7));
        assert!(!fake.serves(8), "the same name in another mount namespace");
    }
}
