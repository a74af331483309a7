//! KV memory: backed by handles, reclaimed and restored under a running engine, grown ahead of need.
//!
//! * [`state`]: what the process knows of its memory, and the order of its locks.
//! * [`backed`], [`vmm`]: allocations with a handle behind each piece.
//! * [`arena`], [`placed`]: tensors over the blocks of such an allocation, at second addresses where they need several.
//! * [`grant`]: the gate before every allocation; [`created`]: what was made by handle;
//!   [`arrays`]: how large an array is.
//! * [`answers`]: how such an allocation answers the application, and what is only counted; [`gone`]: its end.
//! * [`kv`]: the caches an engine registered, by stripe; [`usage`]: what the page shows of them.
//! * [`hold`], [`marks`]: calls that may hold the driver's locks.
//! * [`order`], [`service`]: what the agent orders, and the thread that changes mappings.
//! * [`talk`], [`outbox`]: what the reporter carries between it and the agent.
//! * [`abi`], [`answered`], [`scope`]: the C functions engines call.
//! * [`job`], [`keeper`]: the memory that a job's processes share; [`tables`], [`file`]: what each of them misses there.
//! * [`whole`]: memory behind what no cache claims; [`alone`], [`heard`]: an elastic cache that no agent gives memory.
//! * [`work`]: what a job says of its work; [`lease`]: of its units, and when they may run;
//!   [`beat`], [`iterations`]: of the iterations of an online engine.

pub mod abi;
mod alone;
mod answered;
pub mod answers;
mod arena;
pub mod arrays;
mod backed;
mod beat;
mod created;
mod file;
pub mod gone;
pub mod grant;
mod heard;
pub mod hold;
mod iterations;
mod job;
mod keeper;
mod kv;
mod lease;
mod marks;
mod order;
mod outbox;
mod placed;
mod scope;
mod service;
pub mod state;
mod tables;
pub mod talk;
mod usage;
mod vmm;
mod whole;
mod work;
