//! The limits that the service's unit gives its agent, by a control group of a test's own.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The unit as it is shipped.
const UNIT: &str = include_str!("../../scripts/systemd/tidegate-agent.service");
const CGROUPS: &str = "/sys/fs/cgroup";

/// Control groups with the unit's `MemoryMax=` and `TasksMax=`, removed with this value, and its `LimitNOFILE=`.
#[derive(Debug)]
pub struct Limits(Vec<PathBuf>);

/// A setting of the unit.
fn setting(name: &str) -> Option<&'static str> {
    UNIT.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// The unit's `MemoryMax=`, bytes, its `TasksMax=` and its `LimitNOFILE=`.
///
/// # Panics
/// When the unit has others than numbers.
#[must_use]
pub fn of_unit() -> (u64, u64, u64) {
    let memory = setting("MemoryMax").and_then(|text| text.strip_suffix('M'));
    let memory: u64 = memory
        .and_then(|text| text.parse().ok())
        .expect("MemoryMax= in MiB");
    let number = |name| {
        let text = setting(name).and_then(|text| text.parse().ok());
        text.expect("the unit has a number")
    };
    (memory << 20, number("TasksMax"), number("LimitNOFILE"))
}

impl Limits {
    /// Of the unit. None, loudly, where none can be made.
    #[must_use]
    pub fn make() -> Option<Self> {
        let (memory, tasks, _) = of_unit();
        let unified = Path::new(CGROUPS).join("cgroup.controllers").exists();
        let wanted: &[(&str, &[(&str, u64)])] = if unified {
            &[("", &[("memory.max", memory), ("pids.max", tasks)])]
        } else {
            &[
                ("memory", &[("memory.limit_in_bytes", memory)]),
                ("pids", &[("pids.max", tasks)]),
            ]
        };
        let mut made = Self(Vec::new());
        for (controller, settings) in wanted {
            let name = format!(
                "tidegate-test-{}-{}",
                std::process::id(),
                crate::monotonic_ns()
            );
            let group = Path::new(CGROUPS).join(controller).join(name);
            let mut make = || -> std::io::Result<()> {
                std::fs::create_dir(&group)?;
                made.0.push(group.clone());
                for (file, value) in *settings {
                    std::fs::write(group.join(file), value.to_string())?;
                }
                Ok(())
            };
            if let Err(error) = make() {
                eprintln!(
                    "!!! no control group with the unit's limits: {}: {error}",
                    group.display()
                );
                return None;
            }
        }
        Some(made)
    }

    /// Has `command` run within these limits, with as many open files as the unit gives, or this process may give.
    ///
    /// # Panics
    /// When the groups are gone.
    #[must_use]
    pub fn hold(&self, mut command: Command) -> Command {
        let open = |group: &PathBuf| {
            let procs = File::options().write(true).open(group.join("cgroup.procs"));
            procs.expect("a group of ours")
        };
        let groups: Vec<File> = self.0.iter().map(open).collect();
        let (_, _, files) = of_unit();
        let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(files, |(_, hard)| hard.min(files));
        // SAFETY: between fork and exec the child makes one system call a group and one more, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                for group in &groups {
                    // 0 is whoever writes.
                    if libc::write(group.as_raw_fd(), b"0".as_ptr().cast(), 1) != 1 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
                Ok(())
            });
        }
        command
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for group in &self.0 {
            // Its last process may be dying.
            crate::wait_until(std::time::Duration::from_secs(5), || {
                std::fs::remove_dir(group).ok()
            });
        }
    }
}
