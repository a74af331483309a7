//! What this node would give offline jobs, said to the engine that places them.
//!
//! There is no daemon: each command reads the history that the agent keeps, predicts by
//! [`tidegate_policy::placement`] what a job of each profile would get, and says it in the engine's own words.
//!
//! ```text
//!   profiles.d/NAME.toml --> profiles --.
//!   history.ring ----------> facts ------+--> offers --> slurm   features of the node, and its weight
//!                                                    \-> nfd     a file of node-feature-discovery
//! ```
//!
//! [`engine`] runs the engine's commands, for no longer than it may; [`claims`] says which GPUs a Slurm job got;
//! [`said`] remembers what was said last, so that only a change is logged. [`metrics`] is for Prometheus. All but these three are pure.

#![forbid(unsafe_code)]

pub mod claims;
pub mod engine;
pub mod facts;
pub mod memo;
pub mod metrics;
pub mod nfd;
pub mod offers;
pub mod profiles;
pub mod queue;
pub mod said;
pub mod slurm;
pub mod windows;
