//! Kernel and limits.

use super::ask::line;
use crate::doctor::facts::{Found, System};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use tidegate_driver::sys;

/// `agent` is the living agent's process, whose limits count more than this one's.
pub(super) fn collect(agent: Option<i32>) -> System {
    let said = |error: std::io::Error| error.to_string();
    System {
        kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        cgroup2: cgroup2(&std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()),
        membarrier: sys::query_membarrier().map_err(said),
        futex_waitv: sys::has_futex_waitv(),
        pidfd: pidfd().map_err(said),
        // On a thread that ends: this process itself goes on as it is.
        fifo: std::thread::spawn(|| sys::schedule_fifo(1))
            .join()
            .map_or_else(|_| Err("no thread".to_owned()), |tried| tried.map_err(said)),
        open_files: open_files(agent),
        clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }
}

/// Mount point of the cgroup2 hierarchy; the usual one if there are several.
fn cgroup2(mounts: &str) -> Option<PathBuf> {
    let mut points: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let point = words.next()?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(point))
        })
        .collect();
    points.sort();
    points.into_iter().next()
}

fn pidfd() -> std::io::Result<()> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let pidfd = sys::pidfd_open(own)?;
    let null = std::fs::File::open("/dev/null")?;
    sys::pidfd_getfd(pidfd.as_fd(), null.as_raw_fd()).map(drop)
}

fn open_files(agent: Option<i32>) -> Found<u64> {
    let pid = agent.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let path = format!("/proc/{pid}/limits");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    limit(&text).ok_or_else(|| format!("{path} names no limit"))
}

/// The soft limit in a line such as `Max open files   1024   524288   files`.
fn limit(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_where_it_is_mounted() {
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(cgroup2(unified), Some("/sys/fs/cgroup".into()));
        let inner = format!("cgroup2 /var/lib/box/cgroup cgroup2 rw 0 0\n{unified}");
        assert_eq!(cgroup2(&inner), Some("/sys/fs/cgroup".into()));
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(cgroup2(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            cgroup2("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"),
            None
        );
    }

    #[test]
    fn the_soft_limit_counts() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(limit(text), Some(1_024));
        assert_eq!(
            limit("Max open files  unlimited unlimited files"),
            Some(u64::MAX)
        );
        assert_eq!(limit("Max processes 1 2 processes"), None);
        assert!(
            open_files(None).is_ok_and(|limit| limit > 0),
            "this process has one"
        );
    }
}
