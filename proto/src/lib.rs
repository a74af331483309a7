//! The contract between the processes of a node: `tidegate.v1` over gRPC, and the greeting.
//!
//! # Rules of compatibility
//!
//! An agent is upgraded while clients run, and a container keeps its library for months. So both sides meet peers of
//! other versions:
//!
//! * Fields, messages, enum values and RPCs are only added. Numbers are never reused; what is retired is `reserved`.
//! * Each side first sends its version ([`v1::Hello`], [`v1::Welcome`]), and never guesses what the other can do.
//!   Anything new is requested by a field that an old peer leaves at zero. Zero always means "as before the field
//!   existed".
//! * An unknown `oneof` member or enum value is skipped and counted; it is no error.
//! * The page has a version of its own (`tidegate_abi::page`). Peers with different page majors work without a page;
//!   edges then travel as [`v1::Edge`] on the stream.
//! * The first 13 bytes of the greeting never change. A peer that does not know the greeting either reads an HTTP/2
//!   frame of an unknown type and ignores it, or speaks HTTP/2 at once and is recognised as old.
//! * Memory commands go only to a library whose [`v1::Hello`] says that it takes them. `Hello.memory` is the version of
//!   these commands. A command whose meaning would change gets a new number instead. A library that does not know the
//!   gate word's state for a reclaim reads it as closed.
//! * An error that ends a stream carries a gRPC status whose message says what to do.
//!
//! The code in `generated/` is committed so that building needs no protoc. The test of this crate generates it again
//! and compares (`TIDEGATE_REGENERATE=1 cargo test -p tidegate-proto` writes it).
#![forbid(unsafe_code)]

pub mod greeting;
pub mod parts;

/// `tidegate.v1`.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods, unused_qualifications)]
#[rustfmt::skip]
#[path = "generated/tidegate.v1.rs"]
pub mod v1;

/// The encoded `FileDescriptorSet` of `tidegate.v1`, for reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!("generated/tidegate.v1.bin");

/// Message of the status that closes the stream of a client which said more at once than an agent ever hears. It would be
/// closed again for the same.
pub const BEYOND_BOUNDS: &str = "a message beyond all bounds: its stream is closed";

/// Default directory of the agent's sockets; `TIDEGATE_RUN_DIR` overrides it on both sides.
pub const RUN_DIR: &str = "/run/tidegate";
/// Default directory of what the agent keeps over restarts of the node.
pub const STATE_DIR: &str = "/var/lib/tidegate";
/// File in it with the history that `tidegate report` reads.
pub const HISTORY_FILE: &str = "history.ring";
/// Name of the environment variable that overrides [`RUN_DIR`].
pub const RUN_DIR_ENV: &str = "TIDEGATE_RUN_DIR";
/// Socket of [`v1::runtime_server`]; world-writable, greets.
pub const HOOK_SOCKET: &str = "hook.sock";
/// Socket of everything but the runtime service; root and group `tidegate`.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Socket of the read-only service; world-writable.
pub const STATUS_SOCKET: &str = "status.sock";
