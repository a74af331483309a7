//! What the operator's rules give a job among others on its GPUs.

use crate::words::ids::UserId;

/// When a job runs beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// By weight.
    #[default]
    Normal,
    /// Only where no other job wants to.
    Idle,
}

/// What a process gives its job, by the rule that gave it its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gives {
    /// Among the jobs of the user; at least 1.
    pub weight: u32,
    /// When it runs.
    pub class: Class,
}

impl Default for Gives {
    fn default() -> Self {
        Self {
            weight: 1,
            class: Class::Normal,
        }
    }
}

/// What a user has among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserShare {
    /// At least 1.
    pub weight: u32,
    /// Most of the time for which others wanted the GPUs too, in thousandths over an hour.
    pub most: u32,
}

impl Default for UserShare {
    fn default() -> Self {
        Self {
            weight: 1,
            most: 1000,
        }
    }
}

/// What the operator's rules give a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Whose it is.
    pub user: UserId,
    /// Of that user among users; at least 1.
    pub user_weight: u32,
    /// Among the jobs of the user; at least 1.
    pub weight: u32,
    /// When it runs.
    pub class: Class,
    /// Most that the user may have of the time for which others wanted the GPUs too, in thousandths over an hour.
    pub most: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            user: UserId(0),
            user_weight: 1,
            weight: 1,
            class: Class::Normal,
            most: 1000,
        }
    }
}

impl Terms {
    /// Those of a job of `user`. No process of it gives it more than another: the least weight holds, and one that is
    /// idle makes it idle.
    pub fn of(user: UserId, share: UserShare, given: impl Iterator<Item = Gives>) -> Self {
        let least = given.reduce(|a, b| Gives {
            weight: a.weight.min(b.weight),
            class: a.class.max(b.class),
        });
        let gives = least.unwrap_or_default();
        Self {
            user,
            user_weight: share.weight,
            weight: gives.weight,
            class: gives.class,
            most: share.most,
        }
    }
}

/// Why jobs take turns where timeslices were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// A job uses several GPUs, which it must have at the same time.
    Gang,
    /// At this level the agent makes no calls of its own.
    Level,
    /// A process has channels whose owner's control file the agent does not have.
    File,
    /// Weights, divided among groups, lie further apart than timeslices can.
    Weights,
    /// The driver refused to set a timeslice, with this status.
    Refused(u32),
}
