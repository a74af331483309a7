//! Random schedules in virtual time: device model, the agent's shell and interposer core in one process.
//!
//! What is real here: the shell that ships with its policy, journal and the rules of its issue threads, the pages that
//! it shares with processes, the interposer's activity protocol, gate and landing steps, and the device model with its
//! turns and drawn latencies. What is made up, and drawn from the schedule's seed, is everything between them: how long
//! a doorbell, an issue thread or a message takes, when somebody forks, execs, is killed or stopped, and what the
//! programs do. No clock is read, so a schedule is its seed and ten thousand of them take minutes.
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
//! There is one world and there are three plays in it, each with its programs, its faults and its judge: [`gate`]
//! (online bursts, decode gaps, restarts), [`reclaim`] (memory that moves under a running engine) and [`lease`]
//! (trainers that run units between two iterations of an engine). A judge knows the play and the device's history and nothing of the agent's beliefs. That it can see what it should is tested by
//! breaking something on purpose.

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
