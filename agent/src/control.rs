//! The control thread: what happens on the node goes to the shell in one order, and people get answers.

mod explain;
mod leases;
mod status;
mod strangers;
mod thread;
mod waiting;

pub use status::About;
pub use strangers::Strangers;
pub use thread::{ControlThread, Machine, MonotonicClock};
