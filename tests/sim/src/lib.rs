//! Random schedules in virtual time: device model, the agent's shell and interposer core in one process.
//!
//! Real here are the shell that ships, with its policy, its journal and the rules of its issue threads; the pages that
//! it shares with processes; the interposer's protocol of activity, gate and fail-open release; and the device model
//! with its scheduling and drawn latencies. Everything between them is simulated and drawn from the schedule's seed:
//! how long a doorbell, an issue thread or a message takes, when a process forks, execs, is killed or stopped, and what
//! programs do. No clock is read, so a schedule is determined by its seed, and ten thousand of them take minutes.
//!
//! ```text
//!                        world: one queue of events, one instant
//!   programs -> interposer core -> doorbell, stream ~>  Shell  ~> issue thread -> device model
//!      ^        (process, landing)                     (agent)      (issue, method)     |
//!      +------------------- work ends, gates open, orders about memory <----------------+
//!                                                                                       v
//!                                                      judge: the device's own history
//! ```
//!
//! There are three scenarios (`plays`), each with its programs, faults and checker: [`gate`] (online bursts, decode
//! gaps, restarts), [`reclaim`] (memory that moves under a running engine) and [`lease`] (trainers that run units
//! between two iterations of an engine). A checker knows the script and the device's history, but nothing of what the
//! agent believes. Tests break something on purpose to show that the checker detects it.

mod agent;
mod attach;
mod defect;
mod dice;
pub mod gate;
mod issue;
mod landing;
pub mod lease;
mod member;
mod method;
mod ports;
mod process;
pub mod reclaim;
#[cfg(test)]
mod several;
pub mod sweep;
pub mod timeline;
mod world;
