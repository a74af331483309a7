//! What the operator's rules give a job among others on its GPUs.

use crate::ids::UserId;

/// When a job runs beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// By weight.
    #[default]
    Normal,
    /// Only where no other job wants to.
    Idle,
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
