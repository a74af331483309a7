//! What the agent has of its machine: its directory, the service manager, the log, what operators told it, the deaths
//! of processes, what they pass, and who uses its GPUs.

pub mod drives;
pub mod foreign;
pub mod grave;
pub mod kept;
pub mod leases;
pub mod logs;
pub mod means;
pub mod notify;
pub mod orders;
pub mod reaper;
pub mod rundir;
pub mod users;
pub mod yard;
