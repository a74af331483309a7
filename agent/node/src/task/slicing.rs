//! Sets the timeslices of a job's channel groups on one GPU, by one call per group through its owner's control file.
//!
//! Nothing waits for these calls, so the thread makes one at a time, and only while it has nothing else to do. It first
//! reads the group's timeslice from the driver, and restores it when the job is to have the driver's default again.
//! CUDA sets a value of its own when it makes a context, so the former value of one group says nothing about another.

use crate::batch::Object;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_abi::rm::Status;
use tidegate_policy::ids::{GpuId, JobId};

/// What CUDA was seen to set for a group that computes, microseconds: traced by others at `SET_TIMESLICE` in the open
/// kernel module of 575. It stands for what a group had under an earlier agent, as long as no other group shows it.
pub const CUDA_US: u64 = 2_048;

/// What a group had before it was given a timeslice, microseconds; 0: it was given none.
#[derive(Clone, Debug, Default)]
pub struct Before(Arc<AtomicU64>);

/// A group of channels that computes.
#[derive(Clone, Debug)]
pub struct Group {
    /// By its owner's file.
    pub object: Object,
    /// See [`Before`].
    pub before: Before,
    /// An earlier agent may have given it a timeslice: what it has says nothing.
    pub inherited: bool,
}

/// Timeslices to be set.
#[derive(Debug)]
pub struct Slicing {
    /// Whose.
    pub job: JobId,
    /// Where.
    pub gpu: GpuId,
    /// How long each group keeps the GPU; `None`: as before.
    pub slice: Option<Duration>,
    /// Groups that are left.
    pub groups: Vec<Group>,
    /// The first refusal.
    pub refused: Option<Status>,
}

/// What became of timeslices.
#[derive(Clone, Copy, Debug)]
pub struct Sliced {
    /// Whose.
    pub job: JobId,
    /// Where.
    pub gpu: GpuId,
    /// Why some could not be set.
    pub refused: Option<Status>,
}

/// The driver's calls for one group.
pub trait SliceCalls {
    /// What it has, microseconds.
    ///
    /// # Errors
    /// The driver's answer.
    fn timeslice(&self, object: &Object) -> Result<u64, Status>;
    /// Gives it so many microseconds.
    ///
    /// # Errors
    /// The driver's answer.
    fn set_timeslice(&self, object: &Object, us: u64) -> Result<(), Status>;
}

impl Slicing {
    /// Sets one group more, if any is left: else what became of all. `usual`: what the driver gives, as last read.
    pub fn step(&mut self, calls: &impl SliceCalls, usual: &mut u64) -> Option<Sliced> {
        let answer = match self.groups.pop() {
            Some(group) => self.set(&group, calls, usual),
            None => Ok(()),
        };
        // A group that is gone with its process needs no timeslice.
        if let Err(status) = answer
            && !is_gone(status)
        {
            self.refused.get_or_insert(status);
        }
        self.groups.is_empty().then_some(Sliced {
            job: self.job,
            gpu: self.gpu,
            refused: self.refused,
        })
    }

    fn set(&self, group: &Group, calls: &impl SliceCalls, usual: &mut u64) -> Result<(), Status> {
        let before = &group.before.0;
        let Some(slice) = self.slice else {
            let us = match before.load(Ordering::Relaxed) {
                0 if group.inherited => *usual,
                us => us,
            };
            if us != 0 {
                calls.set_timeslice(&group.object, us)?;
                before.store(0, Ordering::Relaxed);
            }
            return Ok(());
        };
        if before.load(Ordering::Relaxed) == 0 {
            if !group.inherited {
                *usual = calls.timeslice(&group.object)?;
            }
            before.store(*usual, Ordering::Relaxed);
        }
        let us = u64::try_from(slice.as_micros()).unwrap_or(u64::MAX);
        calls.set_timeslice(&group.object, us)
    }
}

fn is_gone(status: Status) -> bool {
    let gone = [
        Status::INVALID_CLIENT,
        Status::INVALID_OBJECT_HANDLE,
        Status::OBJECT_NOT_FOUND,
    ];
    gone.contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::File;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// The timeslices of groups, by handle; one that is missing is gone, and the refused one refuses.
    struct Driver(RefCell<BTreeMap<u32, u64>>, Option<u32>);

    impl SliceCalls for Driver {
        fn timeslice(&self, object: &Object) -> Result<u64, Status> {
            let known = self.0.borrow().get(&object.handle).copied();
            known.ok_or(Status::OBJECT_NOT_FOUND)
        }

        fn set_timeslice(&self, object: &Object, us: u64) -> Result<(), Status> {
            if self.1 == Some(object.handle) {
                return Err(Status::NOT_SUPPORTED);
            }
            let mut known = self.0.borrow_mut();
            *known
                .get_mut(&object.handle)
                .ok_or(Status::OBJECT_NOT_FOUND)? = us;
            Ok(())
        }
    }

    fn group(handle: u32, inherited: bool) -> Group {
        Group {
            object: Object {
                file: File::new(()),
                client: 1,
                handle,
            },
            before: Before::default(),
            inherited,
        }
    }

    fn set(driver: &Driver, groups: &[Group], us: Option<u64>, usual: &mut u64) -> Sliced {
        let mut slicing = Slicing {
            job: JobId(0),
            gpu: GpuId(0),
            slice: us.map(Duration::from_micros),
            groups: groups.to_vec(),
            refused: None,
        };
        loop {
            if let Some(sliced) = slicing.step(driver, usual) {
                return sliced;
            }
        }
    }

    #[test]
    fn what_each_group_had_is_put_back_and_one_that_is_gone_is_no_refusal() {
        let had = BTreeMap::from([(1, 2_000), (2, 3_000)]);
        let driver = Driver(RefCell::new(had.clone()), None);
        let groups = [1, 2, 3].map(|handle| group(handle, false));
        let mut usual = CUDA_US;
        for us in [5_000, 7_000] {
            assert_eq!(set(&driver, &groups, Some(us), &mut usual).refused, None);
            assert_eq!(*driver.0.borrow(), BTreeMap::from([(1, us), (2, us)]));
        }
        assert_eq!(set(&driver, &groups, None, &mut usual).refused, None);
        assert_eq!(*driver.0.borrow(), had);
        // Who was given none is left alone.
        driver.0.borrow_mut().insert(1, 9);
        set(&driver, &groups, None, &mut usual);
        assert_eq!(driver.0.borrow()[&1], 9);
    }

    #[test]
    fn what_an_earlier_agent_left_is_not_taken_for_the_drivers() {
        let driver = Driver(
            RefCell::new(BTreeMap::from([(1, 40_000), (2, 2_000)])),
            None,
        );
        let mut usual = CUDA_US;
        let inherited = [group(1, true)];
        set(&driver, &inherited, None, &mut usual);
        assert_eq!(driver.0.borrow()[&1], CUDA_US);
        set(&driver, &[group(2, false)], Some(5_000), &mut usual);
        set(&driver, &inherited, Some(5_000), &mut usual);
        set(&driver, &inherited, None, &mut usual);
        assert_eq!(driver.0.borrow()[&1], 2_000);
    }

    #[test]
    fn a_refusal_is_told_and_the_others_are_set() {
        let driver = Driver(RefCell::new(BTreeMap::from([(1, 1), (2, 1)])), Some(2));
        let groups = [1, 2].map(|handle| group(handle, false));
        let sliced = set(&driver, &groups, Some(5_000), &mut CUDA_US.clone());
        assert_eq!(sliced.refused, Some(Status::NOT_SUPPORTED));
        assert_eq!(driver.0.borrow()[&1], 5_000);
    }
}
