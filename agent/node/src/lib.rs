//! The shell around Tidegate's policy: everything between what a node receives and what it does, without IO, clock or
//! threads.
//!
//! A host drives the [`Shell`]: the agent's control thread, a simulation or a test. The shell takes [`Input`]s, reads the
//! pages of processes and steps the policy. It acts only through its [`ports`].
//!
//! ```text
//!   Input --> turn --> shell (the router) --> policy: step(event) -> effects
//!                        |  ^
//!             lends to   v  | Request: what has to happen elsewhere
//!     members   the attached processes: their devices, RM clients, channels and scheduling calls
//!     lanes     one job on one GPU: prepared calls, orders and answers, launch gates
//!     proofs    ownership checks: which process owns which RM client
//!     memory    what processes report of their memory, and the orders to them
//!     leases    which process holds the lease of a GPU, and what its page says of it
//!     adoption  places in the journal, and channels that no process has claimed yet
//! ```
//!
//! A part uses only parts further down (`shell > report > proofs, memory, leases > lanes > members > gpus, adoption,
//! session > task, batch, journal, page`). For anything further up it returns a request. [`task`] contains the rules of a
//! GPU's issue thread, which runs outside of the shell.
#![forbid(unsafe_code)]

mod adoption;
pub mod batch;
pub mod beats;
mod bells;
pub mod clock;
pub mod counters;
pub mod file;
pub mod gpus;
pub mod journal;
pub mod kinds;
pub mod lanes;
pub mod latency;
mod leases;
mod lending;
pub mod members;
pub mod memory;
pub mod message;
pub mod page;
pub mod ports;
mod proofs;
pub mod report;
mod request;
pub mod session;
pub mod shares;
mod shell;
pub mod spans;
pub mod task;
pub mod text;
pub mod usage;
pub mod work;

pub use bells::{Bell, Bells};
pub use message::Input;
pub use shell::{HEARTBEAT_NS, LATE_NS, Parts, Shell};
