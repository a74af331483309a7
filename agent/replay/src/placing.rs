//! What an offline job gets on a node, predicted and measured.
//!
//! Prediction is the agent's own ([`tidegate_policy::placement`]). It is told two things: the node's history, as the
//! agent keeps it while *another* kind of offline job runs there, and the job's profile, which is measured with the GPU
//! to itself. What the job then gets is a run of both in virtual time.

mod alone;
mod stages;

pub use alone::{Kind, Standalone, kinds};
pub use stages::{Errors, Measured, Pair, SLICE, Stage, beside, error, rank_correlation};
