//! The node agent. The command `tidegate`, which asks it, is in `tidegate-cli`.
//!
//! # Rooms
//!
//! Each room uses those that its row names, and no other. They stand below it; `scripts/circles` checks both.
//!
//! ```text
//!             what it is for                                       uses
//!  app        builds the agent of its parts, knows every type      every room
//!  arguments  what the agent is started with                       config
//!  control    the control thread, and what it answers people       selftest watch host channels config
//!  selftest   whether a channel level does what the driver says    grpc host channels config
//!  grpc       sockets, their callers, the services behind them     watch host identity config
//!  channels   what joins the shell of the node to the driver       watch host identity config
//!  watch      what is kept for those who look on                   host config
//!  host       the machine: directory, service manager, log         config
//!  identity   which process is online, which is offline            config
//!  config     what an operator can set                             none
//! ```
//!
//! Every room may use [`inbox`], where all that the control thread is told comes together; [`clock`], the
//! only file that reads one; [`doorbell`], how threads wait for processes; [`wire`], the protocol's words; [`plain`] and [`span`],
//! text for people. What speaks to the driver is in `tidegate-driver`, here [`device`], [`rm`] and [`sys`].
//!
//! # Threads
//!
//! Who knows whom:
//!
//! ```text
//!  preloaded libraries          tidegate, gRPC clients
//!     |  page   | hook.sock        | control.sock, status.sock
//!     |         v                  v
//!     |    grpc::sessions     grpc::service     (tokio, one thread)
//!     |          \                /
//!     |           v              v
//!     +-------> control thread (inbox)  ------> watch::events (log, WatchEvents)
//!                 |  node, policy  ^
//!                 v                |
//!      channels::issue, channels::prove         (the driver's ioctls)
//! ```
//!
//! The control thread turns the shell of the node (`tidegate-node`), which owns all state. The gRPC side and the RM
//! side never see each other.
#![forbid(unsafe_code)]

pub mod app;
pub mod arguments;
pub mod channels;
pub mod clock;
pub mod config;
pub mod control;
pub mod doorbell;
pub mod grpc;
pub mod host;
pub mod identity;
pub mod inbox;
pub mod plain;
pub mod selftest;
pub mod span;
pub mod standing;
pub mod watch;
pub mod wire;

pub use tidegate_driver::{causes, device, rm, sys};
