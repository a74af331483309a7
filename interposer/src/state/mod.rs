//! What the process is made of ([`crate::process`]): state that knows nothing of it.
//!
//! * [`activity`]: what threads launch, and the contexts and streams that live.
//! * [`memory`]: allocations, caches, and what is agreed with the agent about them.
//! * [`objects`]: the resource manager's objects, and what the agent has not been told of them.
//! * [`unhooked`]: functions that the application found past the table.

pub mod activity;
pub mod memory;
pub mod objects;
pub mod unhooked;
