//! Schedules of real processes, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A schedule that may panic where it cannot go on; what was wrong.
///
/// # Errors
/// What the schedule says, or its panic.
pub fn caught<E: From<String>>(schedule: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    catch_unwind(AssertUnwindSafe(schedule)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.unwrap_or_else(|| "the schedule did not go through".to_owned());
        Err(text.into())
    })
}
