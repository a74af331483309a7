//! Roles of processes, levels and methods, and the names of GPUs and processes.

use crate::text::Text;
use std::fmt;
use std::sync::Arc;
use tidegate_policy::ids::GpuId;

/// Who shares one allowance of what the agent has: connections, places in the journal, time of its threads.
///
/// All processes of a container are one, whatever users are in it, and so are all processes of a user that are in
/// none, also under the user ids that this user has to give. A user may be root in any number of containers, and a
/// container may have any number of users. Who runs the agent is no tenant of it: what its user runs outside of
/// containers is bounded by nothing but what there is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// The agent's own user's processes outside of containers.
    Agent,
    /// A user's processes outside of containers.
    User(u32),
    /// The processes of a container, by its id.
    Container(Arc<str>),
    /// The processes of a job of a scheduler, a machine in a machine or a namespace, by what people call it.
    Group(Arc<str>),
}

impl Default for Tenant {
    fn default() -> Self {
        Self::User(0)
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent => f.write_str("the agent's user"),
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Group(name) => f.write_str(name),
            Self::Container(id) => write!(f, "container {}", id.get(..12).unwrap_or(id)),
        }
    }
}

/// Whose processes of one name are one job. Names are free to invent: nobody joins a job of somebody else's by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOwner {
    /// A user's, outside of containers.
    User(Tenant, u32),
    /// Those of a container or a scheduler's job, whatever users are in it.
    Tenant(Tenant),
    /// Those of a pod, in whichever of its containers, by its id.
    Pod(Text),
    /// All that a rule of the operator's joins, by its conditions.
    Rule(Text),
}

impl JobOwner {
    /// Of a process of that tenant and user, in that pod if it is in one.
    #[must_use]
    pub fn of(tenant: &Tenant, uid: u32, pod: &Text) -> Self {
        match tenant {
            Tenant::User(_) | Tenant::Agent => Self::User(tenant.clone(), uid),
            _ if !pod.is_empty() => Self::Pod(pod.clone()),
            Tenant::Container(_) | Tenant::Group(_) => Self::Tenant(tenant.clone()),
        }
    }
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its activity closes the gate.
    Online,
    /// The gate closes on it.
    Offline,
    /// Neither.
    Ignore,
}

/// How channels are controlled, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The agent's own RM client names foreign pairs.
    L1,
    /// The agent calls through the owner's control file.
    L2,
    /// The job's own library calls.
    L3,
    /// Launches wait in the library; no channel is touched.
    L5,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::L5 => "L5",
        })
    }
}

/// How a level stops what runs: firmware differs in what it takes, so the self-test finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Disable, which the driver documents to take the channels off the hardware.
    #[default]
    Disable,
    /// Disable, then restart the runlists concerned; enable, then restart them.
    Restart,
    /// Disable scheduling only, then preempt each group; enable.
    Preempt,
    /// Preempt each group that computes, then disable; enable. The disable is what stops work. A preemption only makes
    /// it yield once, but locks one GPU where a disable locks all of them.
    PreemptFirst,
}

impl Method {
    /// In the order in which they are tried.
    pub const ALL: [Self; 4] = [
        Self::Disable,
        Self::Restart,
        Self::Preempt,
        Self::PreemptFirst,
    ];

    /// As configuration, status and metrics name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Restart => "disable+restart",
            Self::Preempt => "preempt",
            Self::PreemptFirst => "preempt+disable",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an order does to channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Nothing of the job runs on the GPU afterwards.
    Disable,
    /// The job may run on the GPU.
    Enable,
}

impl Switch {
    /// Whether it disables, as the driver and the protocol say it.
    #[must_use]
    pub const fn disables(self) -> bool {
        matches!(self, Self::Disable)
    }
}

/// A process, named for good: its id and the time it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// In the agent's pid namespace.
    pub pid: i32,
    /// Ticks since boot.
    pub started: u64,
}

/// A GPU of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's number for it, `NV0080_ALLOC.deviceId`.
    pub device_instance: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
}

/// A GPU's index as policy names it.
#[must_use]
pub fn gpu_id(index: usize) -> GpuId {
    GpuId(u8::try_from(index).unwrap_or(u8::MAX))
}
