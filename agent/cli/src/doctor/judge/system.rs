//! Kernel and limits.

use super::view::View;
use crate::doctor::check::Check;
use crate::doctor::facts::System;
use std::path::Path;
use tidegate_proto::v1::GetStatusResponse;

/// Oldest kernel that is supported.
const OLDEST: (u32, u32) = (5, 10);
/// First kernel that names a socket's peer for good (SO_PEERPIDFD).
const PEER_PIDFD: (u32, u32) = (6, 5);
/// What gVisor says its kernel is, whatever it runs on.
const GVISOR: &str = "4.4.0";
/// What an agent may hold open for one process: its connection, page, control file, pidfd, uvm file.
const FILES_PER_PROCESS: u64 = 5;
const ENOUGH_FILES: u64 = 4_096;

pub(super) fn checks(view: &View<'_>) -> Vec<Check> {
    let system = &view.node.system;
    vec![
        kernel(system),
        cgroup2(system),
        membarrier(system),
        futex_waitv(system),
        pidfd(system),
        fifo(system, view.node.agent.status()),
        open_files(system),
        clock(system),
    ]
}

fn kernel(system: &System) -> Check {
    let release = &system.kernel;
    if release == GVISOR {
        return Check::warn(
            "kernel",
            format!("{release}, what gVisor reports: this is a sandbox"),
        )
        .remedy("run the agent on the host; in a sandbox only the library belongs");
    }
    let Some(version) = version(release) else {
        return Check::skip("kernel", format!("`{release}` is no version"));
    };
    if version < OLDEST {
        Check::fail("kernel", release).remedy("run Linux 5.10 or newer")
    } else if version < PEER_PIDFD {
        let text =
            format!("{release}; before 6.5 a peer is named by its id and start time, not a pidfd");
        Check::pass("kernel", text)
    } else {
        Check::pass("kernel", release)
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn cgroup2(system: &System) -> Check {
    match system.cgroup2.as_deref() {
        Some(path) if path == Path::new("/sys/fs/cgroup") => {
            Check::pass("cgroup2", "/sys/fs/cgroup")
        }
        Some(path) => Check::warn(
            "cgroup2",
            format!("{}, beside v1 hierarchies", path.display()),
        )
        .remedy("boot with systemd.unified_cgroup_hierarchy=1"),
        None => Check::warn(
            "cgroup2",
            "not mounted: rules see the longest path of a v1 hierarchy",
        )
        .remedy("boot with systemd.unified_cgroup_hierarchy=1"),
    }
}

fn membarrier(system: &System) -> Check {
    match &system.membarrier {
        Ok(()) => Check::pass("membarrier", "private expedited"),
        Err(why) => Check::warn(
            "membarrier",
            format!("refused ({why}): launches are counted by atomic adds, a few ns each"),
        )
        .remedy("allow membarrier in the seccomp profile"),
    }
}

fn futex_waitv(system: &System) -> Check {
    if system.futex_waitv {
        Check::pass("futex-waitv", "one thread waits for all doorbells")
    } else {
        Check::warn(
            "futex-waitv",
            "missing: a thread per doorbell waits instead",
        )
        .remedy("run Linux 5.16 or newer, or allow futex_waitv in the seccomp profile")
    }
}

fn pidfd(system: &System) -> Check {
    match &system.pidfd {
        Ok(()) => Check::pass("pidfd", "pidfd_open, pidfd_getfd"),
        Err(why) => Check::warn(
            "pidfd",
            format!("{why}: unless a process sends its control file, the agent cannot take it over, and so cannot stop its channels"),
        )
        .remedy("give the agent CAP_SYS_PTRACE and allow pidfd_getfd in the seccomp profile"),
    }
}

fn fifo(system: &System, status: Option<&GetStatusResponse>) -> Check {
    const REMEDY: &str = "give the agent CAP_SYS_NICE, or LimitRTPRIO=20 in its unit";
    const COST: &str = "a busy machine delays edges by milliseconds";
    match (status, &system.fifo) {
        (Some(status), _) if status.scheduling == "SCHED_FIFO" => {
            Check::pass("sched-fifo", "the agent's threads run under SCHED_FIFO")
        }
        (Some(status), _) => {
            let text = format!(
                "the agent's threads run under {}: {COST}",
                status.scheduling
            );
            Check::warn("sched-fifo", text).remedy(REMEDY)
        }
        (None, Ok(())) => Check::pass("sched-fifo", "allowed to this process"),
        (None, Err(why)) => {
            let text = format!("refused to this process ({why}): {COST}");
            Check::warn("sched-fifo", text).remedy(REMEDY)
        }
    }
}

fn open_files(system: &System) -> Check {
    match system.open_files {
        Ok(limit) if limit >= ENOUGH_FILES => {
            Check::pass("open-files", format!("{limit} at a time"))
        }
        Ok(limit) => Check::warn(
            "open-files",
            format!(
                "{limit}: room for about {} processes",
                limit / FILES_PER_PROCESS
            ),
        )
        .remedy("set LimitNOFILE=65536 in the agent's unit"),
        Err(ref why) => Check::skip("open-files", why),
    }
}

fn clock(system: &System) -> Check {
    let Some(source) = system.clock.as_deref() else {
        return Check::skip("clock", "the kernel does not name its clock source");
    };
    if matches!(source, "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies") {
        Check::warn("clock", format!("{source}: every stamp is a system call"))
            .remedy("boot with clocksource=tsc if the kernel log does not call the TSC unstable")
    } else {
        Check::pass("clock", source)
    }
}

#[cfg(test)]
mod tests {
    use crate::doctor::Outcome::{self, Fail, Pass, Skip, Warn};
    use crate::doctor::facts::System;
    use crate::doctor::judge::healthy;

    #[track_caller]
    fn on(id: &str, change: impl FnOnce(&mut System)) -> (Outcome, String) {
        healthy::outcome(id, |facts| change(&mut facts.system))
    }

    #[test]
    fn kernels_are_judged_by_their_number_and_a_sandbox_is_named() {
        for (release, want) in [
            ("6.18.44-fc", Pass),
            ("6.5.0", Pass),
            ("5.10.0-8-amd64", Pass),
            ("5.9.16", Fail),
            ("4.18.0-553.el8", Fail),
            ("4.4.0", Warn),
            ("plan9", Skip),
        ] {
            let (outcome, text) = on("kernel", |system| system.kernel = release.to_owned());
            assert_eq!(outcome, want, "{release}: {text}");
        }
        let (_, text) = on("kernel", |system| system.kernel = "4.4.0".to_owned());
        assert!(text.contains("gVisor"), "{text}");
        let (_, text) = on("kernel", |system| system.kernel = "5.15.0".to_owned());
        assert!(text.contains("start time"), "{text}");
    }

    #[test]
    fn what_the_kernel_lacks_is_a_warning_that_says_what_happens_instead() {
        assert_eq!(
            on("cgroup2", |system| {
                system.cgroup2 = Some("/sys/fs/cgroup/unified".into());
            })
            .0,
            Warn
        );
        assert_eq!(on("cgroup2", |system| system.cgroup2 = None).0, Warn);
        let refused = || Err("Function not implemented".to_owned());
        let (outcome, text) = on("membarrier", |system| system.membarrier = refused());
        assert_eq!(outcome, Warn);
        assert!(text.contains("atomic adds"), "{text}");
        let (outcome, text) = on("futex-waitv", |system| system.futex_waitv = false);
        assert_eq!(outcome, Warn);
        assert!(text.contains("a thread per doorbell"), "{text}");
        let (outcome, text) = on("pidfd", |system| system.pidfd = refused());
        assert_eq!(outcome, Warn);
        assert!(text.contains("cannot stop its channels"), "{text}");
        let hpet = |system: &mut System| system.clock = Some("hpet".to_owned());
        assert_eq!(on("clock", hpet).0, Warn);
        assert_eq!(on("clock", |system| system.clock = None).0, Skip);
    }

    #[test]
    fn the_agents_own_scheduling_outweighs_what_this_process_may() {
        let refused = |system: &mut System| system.fifo = Err("EPERM".to_owned());
        assert_eq!(on("sched-fifo", refused).0, Pass);
        let other = healthy::outcome("sched-fifo", |node| {
            healthy::status(node).scheduling = "SCHED_OTHER".to_owned();
        });
        assert_eq!(other.0, Warn);
        for (fifo, want) in [(Ok(()), Pass), (Err("EPERM".to_owned()), Warn)] {
            let (outcome, _) = healthy::outcome("sched-fifo", |node| {
                healthy::without_agent(node);
                node.system.fifo = fifo;
            });
            assert_eq!(outcome, want);
        }
    }

    #[test]
    fn a_limit_on_open_files_is_told_in_processes() {
        let (outcome, text) = on("open-files", |system| system.open_files = Ok(1_024));
        assert_eq!(outcome, Warn);
        assert!(text.contains("about 204 processes"), "{text}");
        assert_eq!(on("open-files", |s| s.open_files = Ok(4_096)).0, Pass);
        let unknown = Err("no /proc".to_owned());
        assert_eq!(on("open-files", |s| s.open_files = unknown).0, Skip);
    }
}
