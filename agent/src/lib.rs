//! The node agent and its command line.
#![deny(unsafe_code)]

pub mod clock;
pub mod config;
#[allow(unsafe_code)]
pub mod rm;
#[allow(unsafe_code)]
pub mod sys;
