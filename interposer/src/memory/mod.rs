//! KV memory, reclaimed and restored under a running engine, grown ahead of need. What is known of it is in
//! [`crate::state::memory`]; the C functions that engines call are in [`crate::abi`].
//!
//! * [`arena`]: tensors over the blocks of an allocation, at second addresses where they need several.
//! * [`grant`]: the gate before every allocation; [`arrays`]: how large an array is.
//! * [`answers`]: how an allocation answers the application, and what is only counted.
//! * [`usage`]: what the page shows of caches.
//! * [`service`]: the thread that changes mappings.
//! * [`talk`]: what the reporter carries between this and the agent.
//! * [`answered`], [`scope`]: what the C functions share.
//! * [`job`]: the memory that a job's processes share; [`tables`]: what each of them misses there.
//! * [`whole`]: memory behind what no cache claims; [`alone`]: an elastic cache that no agent gives memory.
//! * [`work`]: what a job says of its work; [`lease`]: of its units, and when they may run;
//!   [`beat`]: of the iterations of an online engine.

pub mod alone;
pub mod answered;
pub mod answers;
pub mod arena;
pub mod arrays;
pub mod beat;
pub mod grant;
pub mod job;
pub mod lease;
pub mod scope;
pub mod service;
pub mod tables;
pub mod talk;
pub mod usage;
pub mod whole;
pub mod work;
