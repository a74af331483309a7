//! Communication with the agent.
//!
//! * [`report`]: the reporter, the one thread that talks to the agent.
//! * [`watch`]: whether the agent lives, and what an offline process does if not; [`news`]: what the agent knows
//!   already.
//! * [`greet`]: the sixteen bytes before HTTP/2; [`connect`]: the connection, and why it ends.
//! * [`pages`]: where pages of agents are mapped; [`edges`]: how edges are reported without a page.
//! * [`messages`]: builds messages from what waits for the agent; [`upstream`]: their stream.
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
