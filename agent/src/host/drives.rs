//! One agent for a device: two enable what the other disables.
//!
//! The lock is in one place for each device, whatever `run_dir` is: in `/run/tidegate` for the GPUs of the node, where only
//! root makes files, and in the directory of a virtual GPU. An agent that may not write there runs without it, and
//! `tidegate doctor` names a second one by `/proc`.

use crate::host::rundir::{RunDirError, lock_at};
use nix::fcntl::Flock;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use tidegate_driver::device::Device;

/// Where the lock of the node's GPUs is.
const NODE: &str = "/run/tidegate";
/// Its name there, and in the directory of a virtual GPU.
const LOCK: &str = "device.lock";

/// Held while this agent drives its device.
#[derive(Debug)]
pub struct DeviceLock {
    _file: Flock<File>,
}

fn place(device: &Device) -> PathBuf {
    match device {
        Device::Real => Path::new(NODE).join(LOCK),
        Device::Virtual(dir) => dir.join(LOCK),
    }
}

/// Takes the lock of `device` without waiting, for an agent on `run_dir`; None where its file cannot be had.
///
/// # Errors
/// [`RunDirError::Drives`] while another agent has it.
pub fn take(device: &Device, run_dir: &Path) -> Result<Option<DeviceLock>, RunDirError> {
    take_at(&place(device), device, run_dir)
}

fn take_at(
    path: &Path,
    device: &Device,
    run_dir: &Path,
) -> Result<Option<DeviceLock>, RunDirError> {
    if *device == Device::Real && nix::unistd::geteuid().is_root() {
        // Where it cannot be made, the lock cannot either, which is said below.
        let _ = path.parent().map(std::fs::create_dir_all);
    }
    let mut file = match lock_at(path) {
        Ok(Some(file)) => file,
        Ok(None) => {
            return Err(RunDirError::Drives {
                device: device.to_string(),
                holder: holder(path),
            });
        }
        Err(error) => {
            tracing::debug!(%error, file = %path.display(), "no lock keeps a second agent off this device");
            return Ok(None);
        }
    };
    let line = format!("{} {}\n", std::process::id(), run_dir.display());
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(line.as_bytes())
    };
    if let Err(error) = write(&mut file) {
        tracing::warn!(%error, file = %path.display(), "cannot write who drives the device");
    }
    Ok(Some(DeviceLock { _file: file }))
}

/// Process and run directory of who has the lock, as it says.
fn holder(path: &Path) -> Option<(i32, PathBuf)> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(4_096).read_to_string(&mut text).ok()?;
    let (pid, run_dir) = text.trim_end().split_once(' ')?;
    Some((pid.parse().ok()?, run_dir.into()))
}
