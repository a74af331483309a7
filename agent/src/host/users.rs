//! Who uses the GPUs, as /proc shows it.
//!
//! On a real GPU whoever computes holds `/dev/nvidia-uvm` open; tools that only look (nvidia-smi, DCGM)
//! do not. A virtual GPU's users have its driver library mapped and its directory in their environment.

use crate::clock::now_ns;
use crate::device::{self, Device};
use crate::inbox::{Input, Mailbox, User};
use crate::standing::Standing;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use tidegate_node::text::Text;

/// The name of an agent.
pub const AGENT: &str = "tidegate-agent";
const UVM: &str = "/dev/nvidia-uvm";
/// Time between two looks, at least.
const EVERY: Duration = Duration::from_secs(5);
/// A look takes at most this part of the time: a node has thousands of processes.
const PART: u32 = 500;
/// So many are reported.
const MOST: usize = 64;
/// Flag of a process that was forked and has not called `execve` since (`PF_FORKNOEXEC`).
const FORKED_ONLY: u64 = 0x40;

/// Every process.
pub fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process' name; empty: it has ended.
#[must_use]
pub fn name(pid: i32) -> String {
    let read = fs::read_to_string(format!("/proc/{pid}/comm"));
    read.map_or_else(
        |_| String::new(),
        |name| Text::name(name.trim_end_matches('\n')).into(),
    )
}

/// How a process stands to the library. One that may not be looked into counts as without it.
#[must_use]
pub fn standing(pid: i32) -> Standing {
    Standing::of(&fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
}

/// Whether a process uses the GPUs of `device`.
///
/// # Errors
/// When it has ended, or may not be looked into.
pub fn uses(pid: i32, device: &Device) -> io::Result<bool> {
    match device {
        Device::Real => {
            let files = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
            Ok(files
                .filter_map(|file| fs::read_link(file.path()).ok())
                .any(|target| target == Path::new(UVM)))
        }
        Device::Virtual(dir) => {
            let mut wanted = device::DIR_ENV.as_bytes().to_vec();
            wanted.push(b'=');
            wanted.extend(dir.as_os_str().as_bytes());
            let environment = fs::read(format!("/proc/{pid}/environ"))?;
            Ok(environment
                .split(|&byte| byte == 0)
                .any(|entry| entry == wanted)
                && fs::read_to_string(format!("/proc/{pid}/maps"))?.contains("/libcuda.so"))
        }
    }
}

/// The parent of a process that was forked and has executed nothing since, by its line in `/proc/PID/stat`.
fn forked_from(stat: &str) -> Option<i32> {
    // The name, in parentheses, may have spaces and parentheses of its own.
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let flags: u64 = words.get(6)?.parse().ok()?;
    let parent = words.get(1)?.parse().ok()?;
    (flags & FORKED_ONLY != 0).then_some(parent)
}

/// The processes that use the GPUs of `device`, but not a forked child that has its parent's files: the driver does not
/// work there.
fn users(device: &Device) -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let found: BTreeSet<i32> = all()
        .filter(|&pid| pid != own && uses(pid, device).unwrap_or(false))
        .collect();
    let inherits = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        let parent = stat.ok().and_then(|stat| forked_from(&stat));
        parent.is_some_and(|parent| found.contains(&parent))
    };
    found.iter().copied().filter(|pid| !inherits(pid)).collect()
}

/// Looks for ever who uses the GPUs of `device`, and tells the control thread. A process counts from the second look on that
/// finds it: it attaches soon after its start. Processes named in `besides` never attach.
///
/// # Errors
/// When no thread can be made.
pub fn watch(device: Device, besides: &'static [&'static str], mailbox: Mailbox) -> io::Result<()> {
    let mut last = BTreeSet::new();
    std::thread::Builder::new()
        .name("tg-users".to_owned())
        .spawn(move || {
            loop {
                let begun = now_ns();
                let found = users(&device);
                let stays = found.intersection(&last).map(|&pid| User {
                    pid,
                    name: name(pid),
                    standing: standing(pid),
                });
                let stays = stays.filter(|user| !besides.contains(&user.name.as_str()));
                mailbox.offer(Input::Users(stays.take(MOST).collect()));
                last = found;
                let took = Duration::from_nanos(now_ns().saturating_sub(begun));
                std::thread::sleep(EVERY.max(took.saturating_mul(PART)));
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_no_gpu() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(uses(own, &Device::Virtual("/nowhere".into())).is_ok_and(|uses| !uses));
        assert!(uses(own, &Device::Real).is_ok_and(|uses| !uses));
        assert!(!name(own).is_empty() && all().any(|pid| pid == own));
    }

    #[test]
    fn a_forked_child_is_known_by_its_flags_whatever_its_name() {
        let forked = "71 (a) S 9) R 70 71 71 0 -1 4194368 120 0 0 0";
        assert_eq!(forked_from(forked), Some(70));
        let executed = "71 (python3) S 70 71 71 0 -1 4194304 120 0 0 0";
        assert_eq!(forked_from(executed), None);
        assert_eq!(forked_from("71 (python3) S"), None);
        assert_eq!(forked_from(""), None);
    }
}
