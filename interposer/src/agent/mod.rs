//! What the library says to its agent.
//!
//! * [`report`]: the reporter, the one thread that speaks with the agent.
//! * [`watch`]: whether the agent lives, and what an offline process does if not; [`news`]: what the agent was told.
//! * [`greet`]: the sixteen bytes before that; [`connect`]: the connection, and why it ends.
//! * [`pages`]: where pages of agents are mapped; [`edges`]: how edges are said without one.
//! * [`messages`]: what waits for the agent, as messages of the protocol; [`upstream`]: their stream.
//! * [`signals`]: how the reporter is woken.

mod connect;
mod edges;
pub mod greet;
mod messages;
mod news;
mod pages;
pub mod report;
mod signals;
mod upstream;
mod watch;
