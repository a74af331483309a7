//! What speaks to the kernel and its GPU driver, for the agent, its self-test and the probes.
//!
//! * [`sys`]: system calls.
//!
//! Nothing in here decides anything, and nothing in here knows the agent: of this workspace only the foreign
//! ABIs (`tidegate-abi`) are used.

pub mod sys;
