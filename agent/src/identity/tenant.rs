//! Whose allowance a process uses: its container's, its scheduler's job's, or its user's.
//!
//! Decided by what no tenant has a say in, the first of these that says it:
//!
//! 1. a container's id in its cgroup's path, as far as no tenant has made that longer;
//! 2. the user whose session or service manager it is in, by the same path;
//! 3. a job of Slurm's, or a machine of LXC or systemd-nspawn, by the same path;
//! 4. the user who made the namespace of users in which it is: whoever makes one has thousands of user ids to give;
//! 5. the namespace of users or of processes in which it is, where root made that: a container of whatever runtime;
//! 6. its user.
//!
//! What the agent's own user runs in the agent's own namespaces is no tenant's.

use super::place;
use crate::sys::{Below, namespace_below};
use std::io;
use tidegate_node::kinds::Tenant;
use tidegate_node::text::Text;

/// Of the process `pid`, which has the effective user `uid`.
#[must_use]
pub fn of_process(pid: i32, uid: u32) -> Tenant {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    of(pid, uid, &cgroups)
}

/// Of the process `pid` with that user and that `/proc/PID/cgroup`.
#[must_use]
pub fn of(pid: i32, uid: u32, cgroups: &str) -> Tenant {
    let own = nix::unistd::Uid::effective().as_raw();
    let found = || Found::of(pid, [0, own]);
    match named(uid, cgroups, found) {
        Tenant::User(uid) if uid == own && found() == Found::Own => Tenant::Agent,
        tenant => tenant,
    }
}

/// In which namespaces a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The agent's own.
    Own,
    /// One of users that a user made.
    MadeBy(u32),
    /// One that root or the agent's user made, by kind and number.
    Made(&'static str, u64),
    /// It cannot be looked at.
    Unknown,
}

impl Found {
    /// `trusted`: users who make namespaces for others.
    fn of(pid: i32, trusted: [u32; 2]) -> Self {
        let look = || -> io::Result<Self> {
            if let Some(users) = namespace_below(pid, "user")? {
                let owner = users.owner()?;
                return Ok(if trusted.contains(&owner) {
                    Self::Made("users", users.number)
                } else {
                    Self::MadeBy(owner)
                });
            }
            // Nobody but root makes one of processes alone.
            let processes = namespace_below(pid, "pid")?;
            let made = |below: Below| Self::Made("processes", below.number);
            Ok(processes.map_or(Self::Own, made))
        };
        look().unwrap_or(Self::Unknown)
    }
}

fn named(uid: u32, cgroups: &str, found: impl Fn() -> Found) -> Tenant {
    let paths = || {
        cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
    };
    let trusted = || paths().map(place::trusted);
    if let Some(id) = trusted().find_map(|path| place::containers(path).next()) {
        return Tenant::Container(id.into());
    }
    // What root runs in a session is root's, unless it is a namespace's root.
    let root = uid == 0 && matches!(found(), Found::Own | Found::Unknown);
    if let Some(user) = trusted().find_map(|path| path.split('/').find_map(session_of))
        && !root
    {
        return Tenant::User(user);
    }
    if let Some(name) = paths().find_map(place::group)
        && !root
    {
        return Tenant::Group(Text::name(&name).as_str().into());
    }
    match found() {
        Found::Own | Found::Unknown => Tenant::User(uid),
        Found::MadeBy(user) => Tenant::User(user),
        Found::Made(kind, number) => Tenant::Group(format!("namespace of {kind} {number}").into()),
    }
}

/// Whose session or service manager a component is: `user-UID.slice`, `user@UID.service`.
fn session_of(component: &str) -> Option<u32> {
    let slice = component
        .strip_prefix("user-")
        .and_then(|rest| rest.strip_suffix(".slice"));
    let manager = component
        .strip_prefix("user@")
        .and_then(|rest| rest.strip_suffix(".service"));
    slice.or(manager)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn here(uid: u32, cgroups: &str) -> Tenant {
        named(uid, cgroups, || Found::Own)
    }

    fn group(name: &str) -> Tenant {
        Tenant::Group(name.into())
    }

    #[test]
    fn a_container_is_one_tenant_whatever_users_are_in_it() {
        let inside =
            format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope/any\n");
        assert_eq!(here(0, &inside), Tenant::Container(ID.into()));
        assert_eq!(here(0, &inside), here(1000, &inside));
        assert_eq!(here(0, &inside).to_string(), "container 0123456789ab");
        let v1 = format!("3:cpu:/docker/{ID}\n0::/\n");
        assert_eq!(here(7, &v1), Tenant::Container(ID.into()));
    }

    #[test]
    fn no_cgroup_and_no_user_id_that_a_user_makes_is_a_tenant_of_its_own() {
        let made = format!("0::/user.slice/user-1000.slice/user@1000.service/libpod-{ID}.scope\n");
        assert_eq!(here(100_005, &made), Tenant::User(1000));
        assert_eq!(
            here(1000, "0::/user.slice/user-1000.slice/session-3.scope\n"),
            Tenant::User(1000)
        );
        assert_eq!(
            here(1000, "0::/system.slice/user-3.service/user-4.slice.d\n"),
            Tenant::User(1000)
        );
        let session = "0::/user.slice/user-1000.slice/session-3.scope\n";
        assert_eq!(here(0, session), Tenant::User(0));
        let its_root = named(0, session, || Found::MadeBy(1000));
        assert_eq!(
            its_root,
            Tenant::User(1000),
            "root of a namespace is not root"
        );
        assert_eq!(here(65_534, ""), Tenant::User(65_534));
    }

    /// P-SECURITY-23: tenants cannot be multiplied.
    #[test]
    fn all_user_ids_that_a_user_has_to_give_are_that_users() {
        for uid in 100_000..100_100 {
            let made = named(uid, "0::/\n", || Found::MadeBy(1000));
            assert_eq!(made, Tenant::User(1000));
            let slurm = "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n";
            assert_eq!(here(uid, slurm), group("Slurm job 17"));
            let slurm = "4:memory:/slurm/uid_1000/job_17/step_0\n0::/\n";
            assert_eq!(here(uid, slurm), group("Slurm job 17"));
        }
        assert_eq!(
            here(0, "0::/system.slice/slurmstepd.scope/job_17\n"),
            Tenant::User(0)
        );
    }

    /// P-SECURITY-23: tenants cannot be multiplied.
    #[test]
    fn a_machine_is_one_tenant_whatever_users_and_cgroups_are_in_it() {
        let machines = [
            "0::/lxc.payload.web/system.slice/a.service\n",
            "9:memory:/lxc/web/user.slice/user-7.slice\n0::/\n",
            "0::/machine.slice/systemd-nspawn@web.service/payload/b\n",
            "0::/machine.slice/machine-web.scope/c\n",
        ];
        for cgroups in machines {
            let inside = |uid| named(uid, cgroups, || Found::Made("users", 5));
            assert_eq!(inside(0), group("machine web"), "{cgroups}");
            assert_eq!(inside(1000), inside(0));
            let nested = format!("{}/docker/{ID}\n", cgroups.lines().next().expect("one"));
            assert_eq!(named(0, &nested, || Found::Made("users", 5)), inside(0));
        }
        // ctr and runc have no names by which a cgroup could be told from a user's.
        for cgroups in ["0::/default/web\n", "0::/runc-web\n"] {
            let inside = |uid| named(uid, cgroups, || Found::Made("processes", 4_026_532_001));
            assert_eq!(inside(0), group("namespace of processes 4026532001"));
            assert_eq!(inside(1000), inside(0));
        }
    }

    #[test]
    fn the_agents_user_is_a_tenant_only_in_a_container() {
        let own = nix::unistd::Uid::effective().as_raw();
        let pid = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(of(pid, own, "0::/\n"), Tenant::Agent);
        assert_eq!(of(pid, own + 1, "0::/\n"), Tenant::User(own + 1));
        let inside = format!("0::/docker/{ID}\n");
        assert_eq!(of(pid, own, &inside), Tenant::Container(ID.into()));
        // Nobody has this number, so nobody says where it is.
        assert_eq!(of(i32::MAX, own, "0::/\n"), Tenant::User(own));
    }
}
