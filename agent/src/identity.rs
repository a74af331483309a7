//! Which process is online, which is offline: decided from what the kernel says of a socket's peer
//! and the operator's ordered rules.
//!
//! Credentials of the socket -> its cgroup -> where it runs ([`place`]) and what the node's own services
//! say of that ([`labels`]) -> the first rule whose every condition holds ([`rules`]).
//!
//! What a process says of itself only ever takes something from it: one that asks for it is *offline*
//! where a rule makes it online or none matches; where a rule says that it is left alone, it is. It becomes
//! online by its own word only when the configuration trusts its user. No rule and no word: ignored.

pub mod clock;
pub mod labels;
pub mod names;
pub mod place;
pub mod rules;
pub mod tenant;

pub use crate::config::Qos;
use crate::config::{Identity, Role};
use crate::plain::Foreign;
use labels::Labels;
use place::Place;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::LazyLock;
use tidegate_node::kinds::{Process, Tenant};
use tidegate_node::text::Text;
use tidegate_policy::fair::Gives;

/// What the kernel says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its id in the agent's pid namespace.
    pub pid: i32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its groups, the effective one first.
    pub groups: Vec<u32>,
    /// Path in the cgroup2 hierarchy (or the longest of a v1 hierarchy); empty if unknown.
    pub cgroup: Foreign,
    /// Where it runs, by all its hierarchies.
    pub place: Place,
    /// Why it is taken to be in a container that the agent is not in; empty: it is not.
    pub contained: String,
    /// Ticks since boot at which it started: with `pid` it names a process for good.
    pub started: u64,
    /// `comm`.
    pub name: Text,
    /// Whose allowance it uses.
    pub tenant: Tenant,
}

impl Credentials {
    /// The process, named for good.
    #[must_use]
    pub const fn process(&self) -> Process {
        Process {
            pid: self.pid,
            started: self.started,
        }
    }
}

impl std::fmt::Display for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "uid {}, process {} ({})", self.uid, self.pid, self.name)
    }
}

/// Everything a rule looks at.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// What the kernel says.
    pub peer: &'a Credentials,
    /// Where it runs.
    pub place: &'a Place,
    /// What is said of that.
    pub labels: Labels,
}

impl<'a> Subject<'a> {
    /// A process, with the labels of where it runs.
    #[must_use]
    pub fn of(peer: &'a Credentials, identity: &Identity) -> Self {
        Self {
            peer,
            place: &peer.place,
            labels: labels::of(&identity.labels, &peer.place),
        }
    }
}

/// A role and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the process is.
    pub role: Role,
    /// For people: "rule 2: cgroup /online.slice".
    pub rule: String,
    /// What an offline one gives its job among others.
    pub gives: Gives,
    /// The conditions of the rule, if it makes one job of all that match it and name the same.
    pub joined_by: Option<Text>,
}

/// Reads what /proc says of the peer of a socket, and whether it still is the same process afterwards.
///
/// # Errors
/// When the process ended meanwhile, or its files cannot be read.
pub fn credentials(pid: i32, uid: u32, pidfd: BorrowedFd<'_>) -> io::Result<Credentials> {
    let credentials = Credentials {
        uid,
        ..of_process(pid)?
    };
    if crate::sys::pidfd_ended(pidfd) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the process ended"));
    }
    Ok(credentials)
}

/// Reads what /proc says of a process, its user too.
///
/// # Errors
/// When there is no such process, or its files cannot be read.
pub fn of_process(pid: i32) -> io::Result<Credentials> {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    let text = |file: &str| read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let stat = text("stat")?;
    let status = text("status")?;
    let name = text("comm")?.trim().to_owned();
    let cgroups = text("cgroup").unwrap_or_default();
    let ids = |field: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let ids = line.unwrap_or_default().split_whitespace();
        ids.filter_map(|id| id.parse().ok()).collect()
    };
    // Real, effective, saved, of the file system.
    let effective = |field: &str| ids(field).get(1).copied().unwrap_or(u32::MAX);
    let mut groups = vec![effective("Gid:")];
    groups.extend(ids("Groups:"));
    let cgroup = cgroup_of(&cgroups);
    let uid = effective("Uid:");
    Ok(Credentials {
        pid,
        uid,
        tenant: tenant::of(pid, uid, &cgroups),
        groups,
        place: Place::of(&cgroups),
        contained: contained(pid, &cgroup),
        cgroup: Foreign::new(cgroup),
        started: started_of(&stat).unwrap_or(0),
        name: Text::name(&name),
    })
}

/// Why a process is taken to be in a container that this one is not in: it has another namespace of
/// processes or of users, or a container in its cgroup's path. Empty: it is not.
fn contained(pid: i32, cgroup: &str) -> String {
    let pid = pid.to_string();
    for ((name, what), own) in NAMESPACES.into_iter().zip(&OWN.namespaces) {
        match (own, namespace(&pid, name)) {
            (Some(own), Some(its)) if *own == its => {}
            (Some(_), Some(_)) => return format!("it is in another namespace of {what}"),
            _ => return format!("its namespace of {what} cannot be read"),
        }
    }
    let foreign = place::containers(cgroup).find(|id| !OWN.cgroups.contains(id));
    foreign.map_or_else(String::new, |id| {
        format!("it is in container {}", &id[..12])
    })
}

/// Namespaces that a container has of its own, and what is in them.
const NAMESPACES: [(&str, &str); 2] = [("pid", "processes"), ("user", "users")];

fn namespace(pid: &str, name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok()
}

/// Where the agent is itself, read once: every stranger is compared with it.
struct Own {
    namespaces: [Option<PathBuf>; 2],
    cgroups: String,
}

static OWN: LazyLock<Own> = LazyLock::new(|| Own {
    namespaces: NAMESPACES.map(|(name, _)| namespace("self", name)),
    cgroups: std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
});

/// The path in `/proc/PID/cgroup`: the cgroup2 line, else the longest of the others, as far as no tenant
/// has made it longer.
#[must_use]
pub fn cgroup_of(text: &str) -> String {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text
        .lines()
        .find(|line| line.starts_with("0::"))
        .and_then(path)
        .filter(|path| path != "/");
    unified
        .or_else(|| {
            text.lines()
                .filter_map(path)
                .max_by_key(|path| place::trusted(path).len())
        })
        .unwrap_or_default()
}

/// The process that has this number now.
#[must_use]
pub fn process(pid: i32) -> Option<Process> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let started = started_of(&String::from_utf8_lossy(&stat)).unwrap_or(0);
    Some(Process { pid, started })
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may hold anything, parentheses too.
fn started_of(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_name_cannot_forge_the_start_time() {
        let own = format!(
            "{} (a) 1 2 (b) S 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0",
            9
        );
        assert_eq!(started_of(&own), Some(4242));
        assert_eq!(started_of("garbage"), None);
    }

    #[test]
    fn the_unified_cgroup_is_preferred_unless_it_is_the_root() {
        assert_eq!(cgroup_of("1:cpu:/x\n0::/a/b\n"), "/a/b");
        assert_eq!(
            cgroup_of("0::/\n3:cpu,cpuacct:/x/y\n1:name=systemd:/x\n"),
            "/x/y"
        );
        assert_eq!(cgroup_of(""), "");
        let tenants =
            "2:cpu:/online.slice/a.service\n1:name=systemd:/u/user@7.service/long/of/its/own\n";
        assert_eq!(cgroup_of(tenants), "/online.slice/a.service");
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let pidfd = crate::sys::pidfd_open(pid).expect("pidfds exist");
        let own = credentials(pid, 7, pidfd.as_fd()).expect("alive");
        assert!(own.started > 0);
        assert_eq!(own.uid, 7, "as it was when it connected");
        let gid = nix::unistd::Gid::effective().as_raw();
        assert_eq!(own.groups.first(), Some(&gid));
        assert_eq!(own.contained, "", "nobody is in a container of his own");
    }
}
