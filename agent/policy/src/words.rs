//! The words in which the policy is spoken to and answers: plain data, below everything that decides.
//!
//! [`event`] and [`memory`] say what happened, [`effect`] what is to be done, [`view`] and [`lending`] what an operator
//! sees, [`no_lease`] why a trainer has no lease. [`terms`], [`config`] and [`lease`] say what was set; [`account`], [`choice`] and [`reclaim`] where bytes are and why;
//! [`layout`] where blocks lie; [`ids`] and [`time`] stand below the others.

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
