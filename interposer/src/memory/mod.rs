//! KV memory that is reclaimed and restored under a running engine, and grown ahead of need. Its state is in
//! [`crate::state::memory`]; the C functions that engines call are in [`crate::abi`].
//!
//! * [`arena`]: tensors over the blocks of an allocation, at second addresses if they need several blocks.
//! * [`grant`]: the gate before every allocation; [`arrays`]: how large an array is.
//! * [`answers`]: how an allocation behaves for the application, and what is only counted.
//! * [`usage`]: what the page shows of caches.
//! * [`service`]: the thread that changes mappings.
//! * [`talk`]: what the reporter passes between this folder and the agent.
//! * [`answered`], [`scope`]: what the C functions share.
//! * [`job`]: the memory that a job's processes share; [`place`]: the file that it is in; [`tables`]: what each of them
//!   misses there.
//! * [`whole`]: memory behind everything that no cache claims; [`alone`]: an elastic cache to which no agent gives
//!   memory.
//! * [`work`]: what a job reports of its work; [`lease`]: its units, and when they may run; [`beat`]: the iterations of
//!   an online engine.

pub mod alone;
pub mod answered;
pub mod answers;
pub mod arena;
pub mod arrays;
pub mod beat;
pub mod grant;
pub mod job;
pub mod lease;
pub mod place;
pub mod scope;
pub mod service;
pub mod tables;
pub mod talk;
pub mod usage;
pub mod whole;
pub mod work;
