//! The control thread: what happens on the node goes to the shell in one order, and people get answers.

mod explain;
mod status;
mod thread;
mod waiting;

pub use status::About;
pub use thread::{ControlThread, Machine, MonotonicClock};
