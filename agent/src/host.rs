//! What the agent has of its machine: its directory, the service manager, the log, and the deaths of
//! processes.

pub mod logs;
pub mod notify;
pub mod reaper;
pub mod rundir;
