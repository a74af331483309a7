//! Whose allowance a process uses: its container's, or its user's.
//!
//! Decided by the part of its cgroup's path in which no tenant has a say. A user who makes namespaces has
//! thousands of user ids to give to its processes; all of them count as the user whose session or service manager
//! they are in. What the agent's own user runs outside of containers is no tenant's.

use super::place;
use tidegate_node::kinds::Tenant;

/// Of the process `pid`, which has the effective user `uid`. One read of `/proc`.
#[must_use]
pub fn of_process(pid: i32, uid: u32) -> Tenant {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    of(uid, &cgroups)
}

/// Of a process with that user and that `/proc/PID/cgroup`.
#[must_use]
pub fn of(uid: u32, cgroups: &str) -> Tenant {
    match named(uid, cgroups) {
        Tenant::User(uid) if uid == nix::unistd::Uid::effective().as_raw() => Tenant::Agent,
        tenant => tenant,
    }
}

fn named(uid: u32, cgroups: &str) -> Tenant {
    let paths = || {
        cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2))
    };
    let trusted = || paths().map(place::trusted);
    if let Some(id) = trusted().find_map(|path| place::containers(path).next()) {
        return Tenant::Container(id.into());
    }
    // What root runs in a session is root's.
    let user = || trusted().find_map(|path| path.split('/').find_map(session_of));
    Tenant::User(if uid == 0 { 0 } else { user().unwrap_or(uid) })
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

    #[test]
    fn a_container_is_one_tenant_whatever_users_are_in_it() {
        let inside =
            format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope/any\n");
        assert_eq!(named(0, &inside), Tenant::Container(ID.into()));
        assert_eq!(named(0, &inside), named(1000, &inside));
        assert_eq!(named(0, &inside).to_string(), "container 0123456789ab");
        let v1 = format!("3:cpu:/docker/{ID}\n0::/\n");
        assert_eq!(named(7, &v1), Tenant::Container(ID.into()));
    }

    #[test]
    fn no_cgroup_and_no_user_id_that_a_user_makes_is_a_tenant_of_its_own() {
        let made = format!("0::/user.slice/user-1000.slice/user@1000.service/libpod-{ID}.scope\n");
        assert_eq!(named(100_005, &made), Tenant::User(1000));
        assert_eq!(
            named(1000, "0::/user.slice/user-1000.slice/session-3.scope\n"),
            Tenant::User(1000)
        );
        assert_eq!(
            named(1000, "0::/system.slice/user-3.service/user-4.slice.d\n"),
            Tenant::User(1000)
        );
        assert_eq!(
            named(0, "0::/user.slice/user-1000.slice/session-3.scope\n"),
            Tenant::User(0)
        );
        assert_eq!(named(65_534, ""), Tenant::User(65_534));
    }

    #[test]
    fn the_agents_user_is_a_tenant_only_in_a_container() {
        let own = nix::unistd::Uid::effective().as_raw();
        assert_eq!(of(own, "0::/\n"), Tenant::Agent);
        assert_eq!(of(own + 1, "0::/\n"), Tenant::User(own + 1));
        let inside = format!("0::/docker/{ID}\n");
        assert_eq!(of(own, &inside), Tenant::Container(ID.into()));
    }
}
