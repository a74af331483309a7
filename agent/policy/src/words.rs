//! The data types with which the policy is called and with which it answers, below everything that decides.
//!
//! * [`event`] and [`memory`]: what happened.
//! * [`effect`]: what the shell must do.
//! * [`view`], [`lending`] and [`no_lease`]: what operators see.
//! * [`terms`], [`config`] and [`lease`]: what operators and online set.
//! * [`account`], [`choice`] and [`reclaim`]: where bytes are, and why.
//! * [`layout`]: where blocks lie.
//! * [`ids`] and [`time`]: used by all others.

pub mod account;
pub mod choice;
pub mod config;
pub mod effect;
pub mod event;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod lending;
pub mod memory;
pub mod no_lease;
pub mod reclaim;
pub mod terms;
pub mod time;
pub mod view;
