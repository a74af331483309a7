//! `--device`: the machine's GPUs, or a virtual GPU for machines without one.
//!
//! The virtual GPU answers the same ioctls through a preloaded shim, so all that `virtual=DIR` does is
//! start the program again with the shim preloaded and the device's directory named. From there on
//! nothing in the agent knows the difference.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of the virtual GPU, for its shim.
pub const DIR_ENV: &str = "TIDEGATE_VGPU_DIR";
const SHIM: &str = "libvgpu_rm.so";

/// Which device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// `/dev/nvidia*` as they are.
    Real,
    /// The virtual GPU in this directory.
    Virtual(PathBuf),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "real" => Ok(Self::Real),
            Some(("virtual", dir)) if !dir.is_empty() => Ok(Self::Virtual(PathBuf::from(dir))),
            _ => Err("expected \"real\" or \"virtual=DIR\"".to_owned()),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Real => f.write_str("real"),
            Self::Virtual(dir) => write!(f, "virtual={}", dir.display()),
        }
    }
}

/// Why a virtual device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no shim.
    #[error("{0} is not there; name the shim with --vgpu-shim")]
    NoShim(PathBuf),
    /// The program does not start again.
    #[error("cannot start again with the shim preloaded")]
    Exec(#[source] std::io::Error),
}

impl Device {
    /// Makes sure this process speaks to the device: returns if it does, else starts the program again
    /// so that it will, and then does not return.
    ///
    /// # Errors
    /// When the shim is not there or the program does not start again.
    pub fn enter(&self, shim: Option<&Path>) -> Result<(), DeviceError> {
        let Self::Virtual(dir) = self else {
            return Ok(());
        };
        let exe = std::env::current_exe().map_err(DeviceError::Exec)?;
        let shim = shim.map_or_else(|| exe.with_file_name(SHIM), Path::to_owned);
        let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if std::env::split_paths(&preloaded).any(|path| path == shim)
            && std::env::var_os(DIR_ENV).is_some_and(|there| Path::new(&there) == dir)
        {
            return Ok(());
        }
        if !shim.exists() {
            return Err(DeviceError::NoShim(shim));
        }
        let mut preload = preloaded;
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(&shim);
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let error = Command::new(exe)
            .args(arguments)
            .env("LD_PRELOAD", preload)
            .env(DIR_ENV, dir)
            .exec();
        Err(DeviceError::Exec(error))
    }
}

impl Device {
    /// Where its user-mode driver is, if not where the system's is: beside the shim.
    #[must_use]
    pub fn driver_dir(&self, shim: Option<&Path>) -> Option<PathBuf> {
        let Self::Virtual(_) = self else {
            return None;
        };
        let beside = |path: &Path| path.parent().map(Path::to_owned);
        match shim {
            Some(shim) => beside(shim),
            None => std::env::current_exe().ok().and_then(|exe| beside(&exe)),
        }
    }
}

impl Device {
    /// The version of the driver's library, where one is installed; of the virtual one there is none.
    #[must_use]
    pub fn library_version(&self) -> Option<String> {
        (*self == Self::Real)
            .then(|| library(&LIBRARY_DIRS.map(Path::new)))
            .flatten()
    }
}

/// Where distributions and the container toolkit put the driver's library.
const LIBRARY_DIRS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
];

/// The version of the driver's library, `libcuda.so.VERSION`, which `libcuda.so.1` leads to.
fn library(dirs: &[&Path]) -> Option<String> {
    let target = |dir: &&Path| std::fs::canonicalize(dir.join("libcuda.so.1")).ok();
    let file = dirs.iter().find_map(target)?;
    let name = file.file_name()?.to_str()?;
    let version = name.strip_prefix("libcuda.so.")?;
    version.contains('.').then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_librarys_version_is_read_from_where_its_link_leads() {
        let dir = std::env::temp_dir().join(format!("tidegate-libcuda-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("writable");
        let dirs = [Path::new("/nowhere"), dir.as_path()];
        assert_eq!(library(&dirs), None);
        fs::write(dir.join("libcuda.so.580.95.05"), b"").expect("writable");
        std::os::unix::fs::symlink("libcuda.so.580.95.05", dir.join("libcuda.so.1"))
            .expect("writable");
        assert_eq!(library(&dirs).as_deref(), Some("580.95.05"));
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn a_device_reads_as_it_prints() {
        for text in ["real", "virtual=/tmp/gpu"] {
            assert_eq!(text.parse::<Device>().expect("valid").to_string(), text);
        }
        assert!("virtual=".parse::<Device>().is_err());
        assert!("imaginary".parse::<Device>().is_err());
    }
}
