//! The agent's sockets, their callers, and the services behind them.
//!
//! A connection comes by a socket that the service manager holds ([`activation`]) or the agent binds ([`sockets`]). The
//! agent knows the caller before it reads anything from the connection ([`peers`]). Each call is allowed or refused
//! ([`authority`]), and gets room for what it sends and for its answer ([`bounds`]). [`server`] limits what HTTP/2 may have
//! under way. Libraries are served by [`sessions`], operators and readers by [`service`].

pub mod activation;
pub mod apart;
pub mod authority;
pub mod bounds;
pub mod budget;
pub mod crowd;
pub mod explained;
pub mod follow;
pub mod heard;
pub mod incoming;
pub mod outgoing;
pub mod page;
pub mod peers;
pub mod readers;
pub mod reload;
pub mod rooms;
pub mod server;
pub mod service;
pub mod sessions;
pub mod sockets;
pub mod standing;
pub mod ungated;
