//! What the agent may have of its machine, and what it lets strangers have of that.
//!
//! A service manager or a container gives it some memory, tasks and open files. It reads at its start how many, so that what
//! all tenants may use together fits into them: half of the memory for connections, a quarter for what they say and ask, an
//! eighth for the caches that they describe and a sixteenth for their lists of requests, both in the agent's unit, and the
//! rest for the agent itself.

use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// Memory that a connection may take: what HTTP/2 buffers in both directions, its page, what is known of its process.
const CONNECTION: u64 = 128 << 10;
/// Open files for everything but attached processes, where so many are a small part of all: the other sockets, the driver's
/// files, the agent's own.
const RESERVE: usize = 1_024;
/// Open files that one attached process takes: its connection, two names of it, its control file, its UVM file.
const PER_PROCESS: usize = 5;
/// Threads for what strangers make wait.
const THREADS: u64 = 64;

/// What it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Bytes of memory.
    pub memory: u64,
    /// Tasks; none: nobody says.
    pub tasks: Option<u64>,
    /// Open files.
    pub files: usize,
}

impl Means {
    /// Those of this process.
    #[must_use]
    pub fn found() -> Self {
        let files = crate::sys::descriptor_limit();
        Self::below(Path::new("/"), files)
    }

    /// As the files of a machine below `root` say.
    fn below(root: &Path, files: usize) -> Self {
        let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let groups: Vec<PathBuf> = groups
            .lines()
            .flat_map(|line| hierarchies(root, line))
            .collect();
        let least = |name: &str| {
            let limits = groups.iter().map(|group| group.join(name));
            limits.filter_map(|file| number(&file)).min()
        };
        let memory = [
            least("memory.max"),
            least("memory.limit_in_bytes"),
            machine(root),
        ];
        Self {
            memory: memory.into_iter().flatten().min().unwrap_or(1 << 30),
            tasks: least("pids.max"),
            files,
        }
    }

    /// Bytes that one tenant may have kept of what it says and asks. All strangers together may have four times as many.
    #[must_use]
    pub fn share(self) -> usize {
        let share = (self.memory / 16).clamp(4 * MIB, 64 * MIB);
        usize::try_from(share).unwrap_or(usize::MAX)
    }

    /// Processes of strangers that may be attached.
    #[must_use]
    pub fn attachable(self) -> usize {
        let reserve = RESERVE.min(self.files / 2);
        let by_memory = usize::try_from(self.memory / 2 / CONNECTION).unwrap_or(usize::MAX);
        ((self.files - reserve) / PER_PROCESS).min(by_memory)
    }

    /// Threads for what strangers make wait: so many tenants have to work together before others wait for them.
    #[must_use]
    pub fn threads(self) -> usize {
        let threads = self.tasks.map_or(THREADS, |tasks| tasks / 2);
        usize::try_from(threads.clamp(4, THREADS)).unwrap_or(4)
    }
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB of memory, ", self.memory / MIB)?;
        match self.tasks {
            Some(tasks) => write!(f, "{tasks} tasks, ")?,
            None => f.write_str("any number of tasks, ")?,
        }
        write!(
            f,
            "{} open files: strangers may have {} connections and {} MiB of messages and answers, a tenant {} MiB, and {} threads",
            self.files,
            self.attachable(),
            4 * self.share() as u64 / MIB,
            self.share() as u64 / MIB,
            self.threads()
        )
    }
}

/// The groups that a line of `/proc/self/cgroup` names, from the lowest to the root of its hierarchy.
fn hierarchies(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let mount = root.join("sys/fs/cgroup").join(controllers);
    let group = mount.join(path.trim_start_matches('/'));
    let within = group
        .ancestors()
        .take_while(|above| above.starts_with(&mount));
    within.map(Path::to_owned).collect()
}

/// A limit, if there is one.
fn number(file: &Path) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

fn machine(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_with(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("tg-means-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            let dir = file.parent().expect("it has one");
            std::fs::create_dir_all(dir).expect("it can be made");
            std::fs::write(file, text).expect("it can be written");
        }
        root
    }

    const UNIT: &str = "sys/fs/cgroup/system.slice/tidegate-agent.service";

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn the_least_limit_of_all_groups_above_holds() {
        let root = machine_with(
            "unified",
            &[
                (
                    "proc/self/cgroup",
                    "0::/system.slice/tidegate-agent.service\n",
                ),
                (
                    "proc/meminfo",
                    "MemTotal:       65929840 kB\nMemFree: 1 kB\n",
                ),
                (&format!("{UNIT}/memory.max"), "536870912\n"),
                (&format!("{UNIT}/pids.max"), "128\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/pids.max", "100\n"),
            ],
        );
        let means = Means::below(&root, 65_536);
        let _ = std::fs::remove_dir_all(root);
        assert_eq!((means.memory / MIB, means.tasks), (512, Some(100)));
        assert_eq!(means.share() as u64, 32 * MIB);
        // What all strangers together may use, connections and messages, leaves the agent a quarter,
        let used = means.attachable() as u64 * CONNECTION + 4 * means.share() as u64;
        assert!(used <= means.memory / 4 * 3, "{used}");
        // and caches and lists of requests leave it twice what it takes alone.
        let kept = crate::grpc::budget::caches() + tidegate_policy::memory::LISTS as u64;
        assert!(used + kept + 28 * MIB <= means.memory, "{kept}");
        assert_eq!((means.attachable(), means.threads()), (2_048, 50));
    }

    #[test]
    fn older_hierarchies_say_it_in_files_of_their_own_and_a_machine_without_any_says_what_it_has() {
        let older = machine_with(
            "older",
            &[
                (
                    "proc/self/cgroup",
                    "5:memory:/agent\n2:pids:/agent\n1:name=systemd:/\n",
                ),
                ("proc/meminfo", "MemTotal:       4194304 kB\n"),
                (
                    "sys/fs/cgroup/memory/agent/memory.limit_in_bytes",
                    "1073741824\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/pids/agent/pids.max", "6\n"),
            ],
        );
        let means = Means::below(&older, 1_024);
        assert_eq!((means.memory, means.tasks), (1 << 30, Some(6)));
        assert_eq!((means.threads(), means.attachable()), (4, 102));
        std::fs::remove_dir_all(older.join("sys")).expect("it is there");
        let bare = Means::below(&older, 65_536);
        let _ = std::fs::remove_dir_all(older);
        assert_eq!((bare.memory, bare.tasks), (4 << 30, None));
        assert_eq!((bare.threads(), bare.share() as u64), (64, 64 * MIB));
        assert_eq!(bare.attachable(), (65_536 - RESERVE) / PER_PROCESS);
    }
}
