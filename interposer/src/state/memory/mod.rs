//! What the library knows about the process' memory.
//!
//! * [`state`]: all of it, and the order of its locks.
//! * [`backed`], [`vmm`]: allocations with a handle behind each piece; [`created`]: what was made by handle.
//! * [`kv`]: the caches that an engine registered, by stripe; [`placed`]: tensors over the blocks of an allocation.
//! * [`marks`]: threads inside calls that may hold the driver's locks.
//! * [`order`]: the agent's orders; [`heard`]: whether the agent still lives.
//! * [`shown`]: what the application sees of a device's memory.
//! * [`keeper`], [`file`]: the memory that a job's processes share.
//! * [`iterations`]: the page of an online engine's iterations.

pub mod backed;
pub mod created;
pub mod file;
pub mod heard;
pub mod iterations;
pub mod keeper;
pub mod kv;
pub mod marks;
pub mod order;
pub mod placed;
pub mod shown;
pub mod state;
pub mod vmm;
