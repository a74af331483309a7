//! What the library says to its agent, and to tests.
//!
//! * [`report`]: the reporter, the one thread that speaks with the agent.
//! * [`greet`]: the sixteen bytes before that.
//! * [`introspect`]: what tests ask the library about itself.

pub mod greet;
pub mod introspect;
pub mod report;
