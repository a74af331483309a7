//! The node agent and its command line.
//!
//! Threads, and who knows whom:
//!
//! ```text
//!  preloaded libraries          tidegate, gRPC clients
//!     |  page   | hook.sock        | control.sock, status.sock
//!     |         v                  v
//!     |      sessions           service        (tokio, one thread)
//!     |          \                /
//!     |           v              v
//!     +-------> control thread (inbox)  ------> events (log, WatchEvents)
//!                 |  node, policy  ^
//!                 v                |
//!               issue threads, prover            (the driver's ioctls)
//! ```
//!
//! The control thread turns the shell of the node (`tidegate-node`), which owns all state. The gRPC side and the RM
//! side never see each other.
#![forbid(unsafe_code)]

pub mod app;
pub mod channels;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod doctor;
pub mod grpc;
pub mod host;
pub mod identity;
pub mod inbox;
pub mod plain;
pub mod selftest;
pub mod span;
pub mod watch;
pub mod wire;

pub use tidegate_driver::{causes, device, rm, sys};
