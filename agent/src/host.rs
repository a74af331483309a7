//! What the agent has of its machine: its directory, the service manager, the log, the deaths of processes, and
//! what they pass.

pub mod foreign;
pub mod logs;
pub mod notify;
pub mod reaper;
pub mod rundir;
pub mod yard;
