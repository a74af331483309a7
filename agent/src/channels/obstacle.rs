//! What on a node rules the channel levels out, whatever the self-test says.
//!
//! * **MPS**: all its clients share the channels of one server, so gating one gates all. Seen by its
//!   daemon: the pid file in its pipe directory, or its processes.
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
use std::fmt;
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
                "MPS runs (process {pid}): its clients share one server's channels"
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
const PIPE_DIR_ENV: &str = "CUDA_MPS_PIPE_DIRECTORY";
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

    /// Its process, if it runs.
    #[must_use]
    pub fn find(&self) -> Option<i32> {
        let named = std::fs::read_to_string(self.pipe_dir.join(PID_FILE));
        let named = named.ok().and_then(|text| text.trim().parse().ok());
        named
            .filter(|&pid| is_mps(Path::new("/proc"), pid))
            .or_else(|| mps_processes(self.processes.as_deref()?).first().copied())
    }
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
}
