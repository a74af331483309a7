//! Sizes of controls that are found by asking.
//!
//! The driver compares the stated size with its own before it acts, and has a status for a wrong one. So where
//! a size is not sure, those that branches have had are stated, the newest first, and then what a list that goes on
//! growing would make of it: from the newest size, and from the longest, since a branch may have made it shorter.

use super::control_file::ControlFile;
use super::ioctl::{Parameters, Result, RmError};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tidegate_abi::rm::{Branch, Layout, Status};

/// How often a size is made one step longer than any branch has had it.
const STEPS: usize = 32;
/// Bytes behind parameters for those that are longer here.
const BEYOND: usize = 512;

/// A control whose parameters are not of one size in every branch.
pub(super) struct Sized {
    /// Its number, and its name in errors.
    pub call: (u32, &'static str),
    /// Its size in a branch.
    pub of: fn(Branch) -> usize,
    /// By how many bytes it grows.
    pub step: usize,
}

impl Sized {
    /// The sizes it may have, in the order in which they are tried.
    fn candidates(&self, layout: Layout) -> Vec<usize> {
        if let Some(branch) = layout.branch().filter(|branch| branch.sizes_are_sure()) {
            return vec![(self.of)(branch)];
        }
        let mut sizes: Vec<usize> = Branch::ALL.into_iter().rev().map(self.of).collect();
        let newest = sizes.first().copied().unwrap_or(0);
        let most = sizes.iter().copied().max().unwrap_or(0);
        let grown = |from: usize| (1..=STEPS).map(move |steps| from + steps * self.step);
        sizes.extend(grown(newest).chain(grown(most)));
        let mut seen = Vec::new();
        sizes.retain(|size| {
            let new = !seen.contains(size);
            seen.push(*size);
            new
        });
        sizes
    }
}

/// Parameters with room for those that are longer than any that is known.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Longer<T> {
    pub value: T,
    rest: [u8; BEYOND],
}

// SAFETY: `repr(C)`; a struct of integers, and bytes behind it.
unsafe impl<T: Parameters> Parameters for Longer<T> {}

impl<T> Longer<T> {
    pub const fn new(value: T) -> Self {
        Self {
            value,
            rest: [0; BEYOND],
        }
    }
}

/// Sizes that the driver has taken, by control.
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<BTreeMap<u32, usize>>);

impl Taken {
    fn of(&self, cmd: u32) -> Option<usize> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.get(&cmd).copied()
    }

    fn remember(&self, cmd: u32, size: usize) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(cmd, size);
    }
}

/// Whether the driver says that the stated size is not its own.
pub(super) const fn is_of_size(status: Status) -> bool {
    matches!(
        status,
        Status::INVALID_ARGUMENT | Status::INVALID_PARAM_STRUCT
    )
}

/// The first size that is not refused for being one, and what came of it. The last refusal where all are.
fn first_taken(
    sizes: impl IntoIterator<Item = usize>,
    mut state: impl FnMut(usize) -> Result<()>,
) -> Result<usize> {
    let mut refused = Err(RmError::Nonsense {
        what: "sizes of a control",
    });
    for size in sizes {
        refused = match state(size) {
            Ok(()) => return Ok(size),
            Err(error) if error.status().is_some_and(is_of_size) => Err(error),
            Err(error) => return Err(error),
        };
    }
    refused
}

impl ControlFile {
    /// Makes a control with the first of its sizes that the driver takes.
    pub(super) fn control_sized<T: Parameters + Copy>(
        &self,
        object: (u32, u32),
        (control, layout): (&Sized, Layout),
        taken: &Taken,
        parameters: &mut T,
    ) -> Result<()> {
        let known = taken.of(control.call.0);
        let sizes = known.map_or_else(|| control.candidates(layout), |size| vec![size]);
        let mut longer = Longer::new(*parameters);
        let size = first_taken(sizes, |size| {
            self.control_part(object, control.call, &mut longer, size)
        })?;
        *parameters = longer.value;
        taken.remember(control.call.0, size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_abi::rm;

    const LIST: Sized = Sized {
        call: (1, "A_LIST"),
        of: Branch::gpu_info_size,
        step: 8,
    };

    fn refuses(status: Status) -> Result<()> {
        Err(RmError::Refused {
            what: "A_LIST",
            status,
        })
    }

    /// P-GATE-23: sizes of a branch that nobody has read are asked for, the newest first.
    #[test]
    fn a_known_branch_is_never_asked_and_any_other_the_newest_size_first() {
        let of = |layout| LIST.candidates(layout);
        assert_eq!(of(Layout::Known(Branch::B580)), [564]);
        let unknown = of(Layout::ByAnswers);
        assert_eq!(unknown[..4], [580, 564, 532, 524]);
        assert_eq!(unknown[5..7], [588, 596]);
        assert_eq!(of(Layout::Known(Branch::B610)), unknown);
        assert!(
            unknown
                .iter()
                .all(|size| *size <= size_of::<Longer<rm::GpuInfoV2>>())
        );
    }

    /// P-GATE-23: sizes of a branch that nobody has read are asked for, the newest first.
    #[test]
    fn a_size_that_the_newest_branch_made_shorter_is_found_where_it_grows_from_there() {
        let name = Sized {
            call: (2, "A_NAME"),
            of: Branch::name_string_size,
            step: 4,
        };
        let sizes = name.candidates(Layout::ByAnswers);
        assert_eq!(sizes[..4], [68, 132, 72, 76]);
        assert!(sizes.contains(&136));
        let mut once = sizes.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), sizes.len(), "no size is stated twice");
    }

    /// P-GATE-23: sizes of a branch that nobody has read are asked for, the newest first.
    #[test]
    fn asking_ends_at_the_drivers_own_size_and_at_any_other_answer() {
        for own in [580, 524, 604] {
            let mut stated = Vec::new();
            let found = first_taken(LIST.candidates(Layout::ByAnswers), |size| {
                stated.push(size);
                if size == own {
                    Ok(())
                } else {
                    refuses(Status::INVALID_PARAM_STRUCT)
                }
            });
            assert_eq!(found.ok(), Some(own));
            assert_eq!(stated.last(), Some(&own));
        }
        let mut stated = 0;
        let lost = first_taken(LIST.candidates(Layout::ByAnswers), |_| {
            stated += 1;
            refuses(Status::GPU_IS_LOST)
        });
        assert_eq!(
            lost.err().and_then(|error| error.status()),
            Some(Status::GPU_IS_LOST)
        );
        assert_eq!(stated, 1, "no size is at fault");
        let none = first_taken(LIST.candidates(Layout::ByAnswers), |_| {
            refuses(Status::INVALID_ARGUMENT)
        });
        assert_eq!(
            none.err().and_then(|error| error.status()),
            Some(Status::INVALID_ARGUMENT)
        );
    }
}
