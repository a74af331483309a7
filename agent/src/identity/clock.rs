//! How far the monotonic clock of a process is from ours, as the kernel tells it: by their time namespaces.
//!
//! `/proc/PID/ns/time` says in which one a process is. `/proc/PID/timens_offsets` says how far the one of its *children*
//! is from the node's first, so it counts only where that is the same.

use std::io;
use std::path::PathBuf;

/// Why a process is refused whose clock nobody tells.
pub const UNKNOWN: &str = "its clock is not the agent's, and neither the kernel nor its library tells the difference: its library is \
                           older than the agent";

/// Nanoseconds by which the clock of process `pid` is ahead of ours; less than 0: behind. None: the kernel cannot be
/// asked, or does not say.
#[must_use]
pub fn ahead_ns(pid: i32) -> Option<i64> {
    let own = match link("self", "time") {
        // A kernel without time namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(0),
        own => own.ok()?,
    };
    let process = pid.to_string();
    let theirs = link(&process, "time").ok()?;
    if own == theirs {
        return Some(0);
    }
    offset_ns(&process, &theirs)?.checked_sub(offset_ns("self", &own)?)
}

fn link(process: &str, of: &str) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/{of}"))
}

/// From the node's first time namespace to `namespace`, in which the process is.
fn offset_ns(process: &str, namespace: &PathBuf) -> Option<i64> {
    let children = link(process, "time_for_children").ok()?;
    let text = std::fs::read_to_string(format!("/proc/{process}/timens_offsets")).ok()?;
    (children == *namespace).then(|| monotonic_ns(&text))?
}

/// The line of the monotonic clock: seconds and nanoseconds.
fn monotonic_ns(offsets: &str) -> Option<i64> {
    let mut fields = offsets.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.next()? == "monotonic").then_some(fields)
    })?;
    let seconds: i64 = fields.next()?.parse().ok()?;
    let nanos: i64 = fields.next()?.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = "monotonic           -300      250000000\nboottime            -300         0\n";
        assert_eq!(monotonic_ns(text), Some(-299_750_000_000));
        assert_eq!(monotonic_ns("monotonic 0 0\n"), Some(0));
        for wrong in [
            "",
            "boottime 1 0\n",
            "monotonic\n",
            "monotonic 1\n",
            "monotonic x 0\n",
        ] {
            assert_eq!(monotonic_ns(wrong), None, "{wrong:?}");
        }
        assert_eq!(monotonic_ns("monotonic 9999999999999 0\n"), None);
    }

    #[test]
    fn a_process_of_our_own_namespace_has_our_clock() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        assert_eq!(ahead_ns(own), Some(0));
    }
}
