//! What the library says to its agent, and to tests.
//!
//! * [`report`]: the reporter, the one thread that speaks with the agent.
//! * [`greet`]: the sixteen bytes before that; [`connect`]: the connection, and why it ends.
//! * [`messages`]: what waits for the agent, as messages of the protocol.
//! * [`signals`]: how the reporter is woken.
//! * [`introspect`]: what tests ask the library about itself.

mod connect;
pub mod greet;
pub mod introspect;
mod messages;
pub mod report;
mod signals;
