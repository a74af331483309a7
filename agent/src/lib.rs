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

pub mod activation;
pub mod app;
pub mod authority;
pub mod channel;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod doctor;
pub mod events;
pub mod history;
pub mod identity;
pub mod inbox;
pub mod issue;
pub mod journal;
pub mod latency;
pub mod level;
pub mod logs;
pub mod manual;
pub mod metrics;
pub mod notify;
pub mod obstacle;
pub mod page;
pub mod peers;
pub mod plain;
pub mod prove;
pub mod reaper;
pub mod reconcile;
pub mod recorder;
pub mod reload;
pub mod rundir;
pub mod selftest;
pub mod service;
pub mod sessions;
pub mod sockets;
pub mod span;
pub mod watcher;

pub use tidegate_driver::{causes, device, rm, sys};
