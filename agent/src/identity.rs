//! Which process is online, which is offline: decided from what the kernel says of a socket's peer
//! and the operator's ordered rules, never from what the process says of itself.
//!
//! A process may ask to be treated as *offline* when a rule makes it online (it gives up a right). It
//! becomes online by its own word only when the configuration trusts its user. No rule: ignored.

use crate::config::{Identity, Role};
use crate::inbox::Process;
use std::os::fd::BorrowedFd;

/// What the kernel says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its id in the agent's pid namespace.
    pub pid: i32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Path in the cgroup2 hierarchy (or the longest of a v1 hierarchy); empty if unknown.
    pub cgroup: String,
    /// Ticks since boot at which it started: with `pid` it names a process for good.
    pub started: u64,
    /// `comm`.
    pub name: String,
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

/// A role and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the process is.
    pub role: Role,
    /// For people: "rule 2: cgroup /online.slice".
    pub rule: String,
}

/// Applies the rules to a process that `wishes` for a role (None: it did not say).
#[must_use]
pub fn decide(identity: &Identity, peer: &Credentials, wishes: Option<Role>) -> Decision {
    if let Some(role) = wishes.filter(|_| identity.trust_env_uids.contains(&peer.uid)) {
        return Decision {
            role,
            rule: format!("trusted user {}: its own word", peer.uid),
        };
    }
    let matched = identity.rules.iter().enumerate().find(|(_, rule)| {
        rule.uid.is_none_or(|uid| uid == peer.uid)
            && rule
                .cgroup
                .as_deref()
                .is_none_or(|prefix| is_below(&peer.cgroup, prefix))
    });
    let Some((at, rule)) = matched else {
        return Decision {
            role: Role::Ignore,
            rule: "no rule matched".to_owned(),
        };
    };
    let mut text = format!("rule {}:", at + 1);
    if let Some(uid) = rule.uid {
        text.push_str(&format!(" uid {uid}"));
    }
    if let Some(cgroup) = &rule.cgroup {
        text.push_str(&format!(" cgroup {cgroup}"));
    }
    if rule.role == Role::Online && wishes == Some(Role::Offline) {
        return Decision {
            role: Role::Offline,
            rule: format!("{text}, lowered at its own wish"),
        };
    }
    Decision {
        role: rule.role,
        rule: text,
    }
}

/// Whether `path` is `prefix` or a cgroup below it; "/online" is not above "/online-batch".
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads what /proc says of the peer, and whether it still is the same process afterwards.
///
/// # Errors
/// When the process ended meanwhile, or its files cannot be read.
pub fn credentials(pid: i32, uid: u32, pidfd: BorrowedFd<'_>) -> std::io::Result<Credentials> {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    let stat = read("stat")?;
    let name = String::from_utf8_lossy(&read("comm")?).trim().to_owned();
    let cgroup = read("cgroup").unwrap_or_default();
    if crate::sys::pidfd_ended(pidfd) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "the process ended",
        ));
    }
    Ok(Credentials {
        pid,
        uid,
        cgroup: cgroup_of(&String::from_utf8_lossy(&cgroup)),
        started: started_of(&String::from_utf8_lossy(&stat)).unwrap_or(0),
        name: printable(&name),
    })
}

/// The path in `/proc/PID/cgroup`: the cgroup2 line, else the longest of the others.
fn cgroup_of(text: &str) -> String {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text
        .lines()
        .find(|line| line.starts_with("0::"))
        .and_then(path)
        .filter(|path| path != "/");
    unified
        .or_else(|| text.lines().filter_map(path).max_by_key(String::len))
        .unwrap_or_default()
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may hold anything, parentheses too.
fn started_of(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// `text` without what could fool a terminal, and not longer than a name should be.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rule;
    use std::os::fd::AsFd;

    fn peer(uid: u32, cgroup: &str) -> Credentials {
        Credentials {
            pid: 1,
            uid,
            cgroup: cgroup.to_owned(),
            started: 1,
            name: "x".to_owned(),
        }
    }

    fn rules() -> Identity {
        let rule = |uid, cgroup: Option<&str>, role| Rule {
            uid,
            cgroup: cgroup.map(str::to_owned),
            ..Rule::giving(role)
        };
        Identity {
            trust_env_uids: vec![7],
            rules: vec![
                rule(Some(1000), Some("/a"), Role::Ignore),
                rule(None, Some("/a"), Role::Online),
                rule(Some(1000), None, Role::Offline),
            ],
        }
    }

    #[test]
    fn the_first_rule_whose_every_condition_holds_decides() {
        let role = |uid, cgroup| decide(&rules(), &peer(uid, cgroup), None).role;
        assert_eq!(role(1000, "/a/b"), Role::Ignore);
        assert_eq!(role(5, "/a"), Role::Online);
        assert_eq!(role(1000, "/other"), Role::Offline);
        assert_eq!(role(5, "/ab"), Role::Ignore, "/a is not above /ab");
    }

    #[test]
    fn no_process_raises_itself_to_online() {
        for uid in [5, 1000] {
            for cgroup in ["/", "/x", ""] {
                let decision = decide(&rules(), &peer(uid, cgroup), Some(Role::Online));
                assert_ne!(decision.role, Role::Online, "{uid} {cgroup}");
            }
        }
    }

    #[test]
    fn a_process_may_lower_itself_and_a_trusted_user_may_choose() {
        let decision = decide(&rules(), &peer(5, "/a"), Some(Role::Offline));
        assert_eq!(decision.role, Role::Offline);
        let decision = decide(&rules(), &peer(1000, "/x"), Some(Role::Ignore));
        assert_eq!(decision.role, Role::Offline, "ignored is not lower");
        let decision = decide(&rules(), &peer(7, "/x"), Some(Role::Online));
        assert_eq!(decision.role, Role::Online);
    }

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
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let pidfd = crate::sys::pidfd_open(pid).expect("pidfds exist");
        let own = credentials(pid, 0, pidfd.as_fd()).expect("alive");
        assert!(own.started > 0);
    }
}
