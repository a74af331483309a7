//! The control thread: it passes everything that happens on the node to the shell, in one order, and answers operators.

mod explain;
mod leases;
mod status;
mod strangers;
mod thread;
mod waiting;

pub use status::About;
pub use strangers::Strangers;
pub use thread::{ControlThread, Machine, MonotonicClock};
