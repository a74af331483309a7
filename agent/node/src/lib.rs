//! The shell around Tidegate's policy: everything between what a node hears and what it does, without
//! IO, clock or threads.
//!
//! [`Shell`] is turned by whoever owns the world: the agent's control thread, a simulation, a test. It
//! hears [`Input`]s and reads the pages of processes, steps the policy, and says through its
//! [`ports`] what is to be done.
//!
//! ```text
//!   Input --> turn --> shell (the router) --> policy: step(event) -> effects
//!                        |  ^
//!              asks of   v  | Request: what has to happen elsewhere
//!     members   who is attached; their devices, RM clients, channels, scheduling calls
//!     lanes     one job on one GPU: prepared calls, orders and answers, launch gates
//!     proofs    whose an RM client is, asked again and again
//!     memory    what processes say of their memory, and what they are ordered
//!     leases    which process holds a lease, and what its words say
//!     adoption  places in the journal, and channels that nobody claims
//! ```
//!
//! Parts know each other only downwards (`shell > report > proofs, memory, leases > lanes > members > gpus,
//! adoption, session > task, batch, journal, page`); upwards they ask by a request. [`task`] holds the rules of a GPU's issue thread, which is outside.
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
