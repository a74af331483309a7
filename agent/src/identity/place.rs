//! Where a process runs, read from its cgroup's path: systemd unit, container, Kubernetes pod and its class
//! of service, Slurm job. Pure, total, and wary.
//!
//! Part of such a path may be a tenant's word. Whoever owns a cgroup makes cgroups below it by any name:
//! a container can call one `kubepods-podX`, a user one `job_7` below `user@1000.service`. So a path is
//! read from the root on, and only up to the first component that is delegated: a container, a user's
//! own service manager, a Slurm job, or a machine of LXC or systemd-nspawn.
//!
//! ```text
//!   /kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice/cri-containerd-ID.scope/...
//!   '------------------- the kubelet's word --------------------------------' '-- the runtime's --' '-- the tenant's
//! ```

use crate::config::Qos;

/// What a cgroup's path says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The unit of the system's service manager, e.g. `vllm.service`.
    pub unit: Option<String>,
    /// The id of the container, as its runtime made it.
    pub container: Option<String>,
    /// Class of service of the pod.
    pub qos: Option<Qos>,
    /// The pod's id, with dashes.
    pub pod: Option<String>,
    /// Number of the Slurm job.
    pub slurm_job: Option<String>,
}

impl Place {
    /// Reads `/proc/PID/cgroup`: of each kind of fact the first, the unified hierarchy before others.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let (unified, others): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with("0::"));
        let mut place = Self::default();
        for line in unified.into_iter().chain(others) {
            if let Some(path) = line.splitn(3, ':').nth(2) {
                place = place.or(Self::of_path(path));
            }
        }
        place
    }

    /// Reads the path of one hierarchy.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let mut place = Self::default();
        let mut slurm = false;
        for component in components(trusted(path)) {
            place.read_pod(component);
            if place.unit.is_none()
                && [".service", ".scope"]
                    .iter()
                    .any(|end| component.ends_with(end))
            {
                place.unit = Some(component.to_owned());
            }
            if let Some(id) = container(component) {
                place.container = Some(id.to_owned());
            }
            if let Some(job) = slurm_job(component).filter(|_| slurm) {
                place.slurm_job = Some(job.to_owned());
            }
            slurm |= is_slurm(component);
        }
        place
    }

    fn or(self, other: Self) -> Self {
        Self {
            unit: self.unit.or(other.unit),
            container: self.container.or(other.container),
            qos: self.qos.or(other.qos),
            pod: self.pod.or(other.pod),
            slurm_job: self.slurm_job.or(other.slurm_job),
        }
    }

    /// With systemd: `kubepods.slice`, `kubepods-besteffort.slice`, `kubepods-besteffort-podUID.slice`;
    /// else `kubepods`, `besteffort`, `podUID`. A prefix of the kubelet's (`kubelet-`) may stand before.
    fn read_pod(&mut self, component: &str) {
        // containerd with the wrong driver names a container "SLICE:cri-containerd:ID".
        let component = component.split(':').next().unwrap_or(component);
        let name = component.strip_suffix(".slice").unwrap_or(component);
        let rest = name
            .strip_prefix("kubelet-")
            .unwrap_or(name)
            .strip_prefix("kubepods");
        let rest = match rest {
            Some("") => {
                self.qos = self.qos.or(Some(Qos::Guaranteed));
                return;
            }
            Some(rest) => match rest.strip_prefix('-') {
                Some(rest) => rest,
                None => return,
            },
            None if self.qos.is_some() => name,
            None => return,
        };
        let rest = match rest.split_once('-').unwrap_or((rest, "")) {
            ("besteffort", rest) => {
                self.qos = Some(Qos::BestEffort);
                rest
            }
            ("burstable", rest) => {
                self.qos = Some(Qos::Burstable);
                rest
            }
            _ => rest,
        };
        let Some(pod) = rest.strip_prefix("pod") else {
            return;
        };
        let pod = pod.replace('_', "-");
        let is_id = pod.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        if self.pod.is_none() && is_id && (32..=36).contains(&pod.len()) {
            self.qos = self.qos.or(Some(Qos::Guaranteed));
            self.pod = Some(pod);
        }
    }
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty())
}

/// The part of a path in which no tenant has a say: up to the first component that is delegated.
#[must_use]
pub fn trusted(path: &str) -> &str {
    let (mut slurm, mut lxc) = (false, false);
    let mut end = 0;
    for component in path.split('/') {
        end += component.len() + 1;
        let user = component.starts_with("user@") && component.ends_with(".service");
        let job = slurm && slurm_job(component).is_some();
        if container(component).is_some() || user || job || machine(component, lxc).is_some() {
            break;
        }
        slurm |= is_slurm(component);
        lxc = component == "lxc";
    }
    path.get(..end - 1).unwrap_or(path)
}

/// The container's id in a component that a runtime made.
fn container(component: &str) -> Option<&str> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = match name.rsplit_once(['-', ':']) {
        Some((before, id)) => {
            let runtime = before.rsplit(':').next().unwrap_or(before);
            let known = ["docker", "cri-containerd", "crio", "libpod", "nerdctl"];
            known.contains(&runtime).then_some(id)?
        }
        None => name,
    };
    let hexadecimal = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    (id.len() == 64 && id.bytes().all(hexadecimal)).then_some(id)
}

/// The name of a machine in a component that LXC or systemd-nspawn made: `lxc.payload.NAME`, `NAME` below `lxc` in earlier
/// versions, `systemd-nspawn@NAME.service`, `machine-NAME.scope`.
fn machine(component: &str, below_lxc: bool) -> Option<&str> {
    let nspawn = || {
        component
            .strip_prefix("systemd-nspawn@")?
            .strip_suffix(".service")
    };
    let machined = || component.strip_prefix("machine-")?.strip_suffix(".scope");
    let earlier = || Some(component).filter(|name| below_lxc && !name.is_empty());
    let lxc = component.strip_prefix("lxc.payload.");
    lxc.or_else(nspawn).or_else(machined).or_else(earlier)
}

/// What runs in a path, if that is a job of Slurm's or a machine: "Slurm job 17", "machine web".
#[must_use]
pub fn group(path: &str) -> Option<String> {
    let (mut slurm, mut lxc) = (false, false);
    for component in components(trusted(path)) {
        if let Some(job) = slurm_job(component).filter(|_| slurm) {
            return Some(format!("Slurm job {job}"));
        }
        if let Some(name) = machine(component, lxc) {
            return Some(format!("machine {name}"));
        }
        slurm |= is_slurm(component);
        lxc = component == "lxc";
    }
    None
}

/// Every container's id in a path, trusted or not.
pub fn containers(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(container)
}

/// `slurm`, `slurm_NODE` (cgroup v1); `slurmstepd.scope`, `NODE_slurmstepd.scope` (v2).
fn is_slurm(component: &str) -> bool {
    component == "slurm"
        || component.starts_with("slurm_")
        || component == "slurmstepd.scope"
        || component.ends_with("_slurmstepd.scope")
}

fn slurm_job(component: &str) -> Option<&str> {
    component.strip_prefix("job_").filter(|id| is_number(id))
}

fn is_number(text: &str) -> bool {
    (1..=12).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;
