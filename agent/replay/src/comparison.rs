//! Trainer schedulers compared: every one of [`crate::tuning`] beside the same online, and what each kept and trained.

pub mod page;
pub mod rows;
pub mod table;
