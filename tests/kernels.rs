//! On an older kernel, and under a filter that refuses newer system calls, the same promises hold by
//! slower ways.
//!
//! `apps/denied.c` runs a program for which the kernel lacks a call.

use std::process::{Command, Stdio};
use tidegate_tests::watch::{Testimony, channels, status, wait_all, wait_finished, wait_open};
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::ChannelState;
use tidegate_vgpu::history::Kind;

const FUTEX_WAITV: &str = "449";
/// `getsockopt` of `SO_PEERPIDFD`.
const PEER_PIDFD: &str = "55:2=77";
const MEMBARRIER: &str = "324";
const CLOSE_RANGE: &str = "436";
const UNSHARE: &str = "272";
/// `madvise` with `MADV_WIPEONFORK`.
const WIPE_ON_FORK: &str = "28:2=18";
/// What Linux 5.10 lacks of what the agent and the library use.
const LINUX_5_10: [&str; 2] = [FUTEX_WAITV, PEER_PIDFD];

/// `calls` by each errno with which they are refused: the kernel does not know them, or a filter forbids them.
fn each_errno<'a>(calls: &[&'a str]) -> [Vec<&'a str>; 2] {
    [calls.to_vec(), [&["EPERM"], calls].concat()]
}

/// `command` where the kernel lacks `calls`.
fn without(calls: &[&str], command: &Command) -> Command {
    let mut denied = Command::new(compile("denied", &[]));
    denied.args(calls).arg("--").arg(command.get_program());
    denied.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => denied.env(name, value),
            None => denied.env_remove(name),
        };
    }
    denied.stdin(Stdio::null()).stderr(Stdio::inherit());
    denied
}

/// The node of a kernel that lacks `calls`, its agent among them.
fn node(calls: &[&str], config: &str) -> Node {
    let mut node = Node::device_only(&[]);
    node.start_agent_by(config, |command| without(calls, &command));
    node
}

/// An online and an offline program on `node`, for which the kernel lacks `calls`.
struct Programs {
    online: Online,
    offline: Offline,
}

impl Programs {
    #[track_caller]
    fn start(node: &Node, calls: &[&str]) -> Self {
        let mut offline = node.preloaded(compile("offline", &["-lcuda"]), "offline");
        let mut offline = Offline::from_command(&mut without(calls, offline.arg("300000")));
        offline.running();
        let online = node.preloaded(compile("online", &["-lcuda"]), "online");
        let online = Online::from_command(&mut without(calls, &online));
        wait_open(node, 0, online.process.pid());
        Self { online, offline }
    }

    /// Offline stops for online and goes on after it, `times` times.
    #[track_caller]
    fn are_gated(mut self, node: &Node, times: u32) {
        let pid = [self.offline.process.pid()];
        for _ in 0..times {
            wait_finished(node, &pid, 3, monotonic_ns());
            self.online.say("hold");
            wait_all(node, &pid, true);
            self.online.say("release");
            wait_all(node, &pid, false);
        }
        assert!(self.offline.stop() > 0);
    }
}

fn threads_named(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim() == name)
        .count()
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn on_linux_5_10_the_agent_hears_every_edge_by_a_thread_for_each_online_process() {
    for calls in each_errno(&LINUX_5_10) {
        let node = node(&calls, TRUSTING);
        let programs = Programs::start(&node, &calls);
        let agent = node.agent.as_ref().expect("it runs").pid();
        assert_eq!(
            threads_named(agent, "tg-waiter"),
            1,
            "offline rings for nobody: {calls:?}"
        );
        programs.are_gated(&node, 5);
        wait_for("the waiter thread to end with its process", || {
            (threads_named(agent, "tg-waiter") == 0).then_some(())
        });
    }
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn on_linux_5_10_an_offline_process_acknowledges_its_closed_gate() {
    for calls in each_errno(&LINUX_5_10) {
        acknowledges_its_closed_gate(&calls);
    }
}

fn acknowledges_its_closed_gate(calls: &[&str]) {
    let level = format!("{TRUSTING}[gate]\ncooldown = \"20ms\"\n[channel]\nlevel = \"L5\"\n");
    let node = node(calls, &level);
    let Programs {
        mut online,
        offline,
    } = Programs::start(&node, calls);
    let pid = [offline.process.pid()];
    for _ in 0..3 {
        wait_finished(&node, &pid, 3, monotonic_ns());
        online.say("hold");
        wait_for("the launches to stop", || {
            let dry = |channel: &ChannelState| channel.queued == 0;
            let waits = status(&node)["gpus"][0]["gate"] == "closed";
            (waits && channels(&node, &pid).iter().all(dry)).then_some(())
        });
        let dry = monotonic_ns();
        online.say("release");
        let of_online = [online.process.pid()];
        wait_finished(&node, &of_online, 1, dry);
        let testimony = Testimony::of(&node);
        let ends = testimony.all(&of_online, Kind::KernelEnd);
        let end = ends.last().expect("it was waited for").at_ns;
        assert_eq!(testimony.ran_between(&pid, dry, end), []);
    }
    assert!(offline.stop() > 0);
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn without_a_table_by_itself_the_library_leaves_the_applications_descriptors_by_another_way() {
    let node = Node::new(&[], TRUSTING);
    let life = |calls: &[&str], role: &str| {
        let mut command = match role {
            "" => node.plain("python3"),
            role => node.preloaded("python3", role),
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/apps/life.py");
        let mut command = without(calls, command.args([script, "closes_everything", "10"]));
        Running::start("closes_everything", command.stdout(Stdio::piped())).succeed()
    };
    for refused in [&[CLOSE_RANGE][..], &[CLOSE_RANGE, UNSHARE]] {
        for calls in each_errno(refused) {
            let plain = life(&calls, "");
            for role in ["online", "offline"] {
                assert_eq!(life(&calls, role), plain, "{role} {calls:?}");
            }
            Programs::start(&node, &calls).are_gated(&node, 2);
        }
    }
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn where_membarrier_is_refused_the_gate_works_and_status_says_how_launches_are_counted() {
    for calls in each_errno(&[MEMBARRIER]) {
        let node = Node::new(&[], TRUSTING);
        let programs = Programs::start(&node, &calls);
        let status = status(&node);
        let processes = status["processes"].as_array().expect("a list");
        assert_eq!(processes.len(), 2);
        for process in processes {
            assert_eq!(process["counts"], "atomic adds", "{process}");
        }
        programs.are_gated(&node, 5);
    }
}

/// P-LIBRARY-3: captures and forks are not noticed.
/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn where_memory_cannot_be_wiped_on_fork_children_start_over_and_offline_is_gated() {
    let node = node(&[], TRUSTING);
    let forks = compile("forks", &["-lcuda"]);
    for calls in each_errno(&[WIPE_ON_FORK]) {
        Programs::start(&node, &calls).are_gated(&node, 3);
        for role in ["online", "offline"] {
            let mut command = without(&calls, &node.preloaded(&forks, role));
            command.stdout(Stdio::piped());
            let output = Running::start("forks", &mut command).succeed();
            assert_eq!(output.trim(), "ok", "{role} {calls:?}");
        }
    }
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn where_a_sandbox_refuses_much_at_once_offline_is_gated() {
    const PIDFD_GETFD: &str = "438";
    let refused = [WIPE_ON_FORK, FUTEX_WAITV, PIDFD_GETFD, MEMBARRIER];
    let node = node(&[], TRUSTING);
    for calls in each_errno(&refused) {
        Programs::start(&node, &calls).are_gated(&node, 3);
    }
}

/// Nanoseconds that the thread of this name has run.
fn ran_ns(pid: u32, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
    let named = tasks.filter(|task| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let ran = |task: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    named.filter_map(ran).sum()
}

/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn where_a_wait_on_several_words_is_refused_the_prober_sleeps_all_the_same() {
    for calls in each_errno(&[FUTEX_WAITV]) {
        let node = node(&[], TRUSTING);
        let programs = Programs::start(&node, &calls);
        let pid = programs.offline.process.pid();
        let (from, before) = (monotonic_ns(), ran_ns(pid, "tidegate-prober"));
        wait_for("two seconds of its life", || {
            (monotonic_ns() - from > 2_000_000_000).then_some(())
        });
        let ran = ran_ns(pid, "tidegate-prober") - before;
        let share = ran as f64 / (monotonic_ns() - from) as f64;
        // It asks fifty times a second; without a sleep it runs whenever a core is free.
        assert!(share < 0.2, "{calls:?}: {share}");
    }
}

/// Releases of systemd, and the newest system call that the kernels of their days had: what is newer they do not know,
/// whatever the unit names, and leave it out of the filter. Of 247: `process_madvise` (Linux 5.10), 249:
/// `landlock_restrict_self` (5.13), 252: `set_mempolicy_home_node` (5.17).
const SYSTEMD: [(&str, u32); 3] = [("247", 440), ("249", 446), ("252", 450)];

/// What a group of systemd's has, by this machine's systemd; none: it has none.
fn group(name: &str) -> Option<Vec<String>> {
    let mut shown = Command::new("systemd-analyze");
    let shown = shown.args(["--no-pager", "syscall-filter", name]).output();
    let text = String::from_utf8(shown.ok()?.stdout).expect("names");
    let names = text.lines().skip(1).map(str::trim);
    let names = names.filter(|name| !name.is_empty() && !name.starts_with('#'));
    Some(names.map(str::to_owned).collect())
}

/// Numbers of the system calls that `names` and groups stand for, by the kernel's own header.
fn numbers(names: &[String]) -> Option<Vec<u32>> {
    let mut cpp = Command::new("cc");
    let cpp = cpp.args([
        "-E",
        "-dM",
        "-include",
        "asm/unistd.h",
        "-x",
        "c",
        "/dev/null",
    ]);
    let header = cpp.output().expect("cc is installed");
    let header = String::from_utf8(header.stdout).expect("C");
    let number = |name: &str| -> Option<u32> {
        let defined = format!("#define __NR_{name} ");
        let mut lines = header.lines();
        lines.find_map(|line| line.strip_prefix(&*defined)?.trim().parse().ok())
    };
    assert!(number("read").is_some(), "asm/unistd.h has no read");
    let (mut found, mut open) = (Vec::new(), names.to_vec());
    while let Some(name) = open.pop() {
        if name.starts_with('@') {
            open.extend(group(&name)?);
        } else {
            // Others are of other architectures.
            found.extend(number(&name));
        }
    }
    Some(found)
}

/// What the unit allows under a systemd that knows calls up to `newest`, and what happens to others; none: there is no
/// systemd to ask.
fn unit_filter(newest: u32) -> Option<Vec<String>> {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../scripts/systemd/tidegate-agent.service"
    );
    let unit = std::fs::read_to_string(unit).expect("the unit is committed");
    let mut allowed = Vec::new();
    let lines = unit.lines();
    for line in lines.filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (takes, names) = match line.strip_prefix('~') {
            Some(names) => (true, names),
            None => (false, line),
        };
        let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
        let numbers = numbers(&names)?;
        if takes {
            allowed.retain(|number| !numbers.contains(number));
        } else {
            allowed.extend(numbers);
        }
    }
    allowed.retain(|number| *number <= newest);
    allowed.sort_unstable();
    allowed.dedup();
    let refused = unit
        .lines()
        .any(|line| line == "SystemCallErrorNumber=ENOSYS");
    let other = if refused { "only=ENOSYS" } else { "only=KILL" };
    let allowed = allowed.iter().map(u32::to_string);
    Some(std::iter::once(other.to_owned()).chain(allowed).collect())
}

/// P-OPERATE-1: the unit's filter ends no agent, however old the systemd that makes it.
/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn under_the_units_filter_of_older_systemds_offline_is_gated() {
    for (systemd, newest) in SYSTEMD {
        let Some(filter) = unit_filter(newest) else {
            return eprintln!("SKIPPED: systemd-analyze is not installed (Debian package systemd)");
        };
        assert!(filter.len() > 100, "systemd {systemd}: {filter:?}");
        let filter: Vec<_> = filter.iter().map(String::as_str).collect();
        let known = filter.contains(&FUTEX_WAITV);
        assert_eq!(known, newest >= 449, "systemd {systemd}");
        let node = node(&filter, TRUSTING);
        Programs::start(&node, &[]).are_gated(&node, 3);
    }
}
