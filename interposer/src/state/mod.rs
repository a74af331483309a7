//! The parts of [`crate::process`]: state that does not know the process.
//!
//! * [`activity`]: what threads launch, and the contexts and streams that exist.
//! * [`memory`]: allocations, caches, and what was agreed with the agent about them.
//! * [`objects`]: the resource manager's objects, and which changes the agent does not know yet.
//! * [`unhooked`]: functions that the application found past the table.

pub mod activity;
pub mod memory;
pub mod objects;
pub mod unhooked;
