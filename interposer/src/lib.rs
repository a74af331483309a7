//! `libtidegate.so`, the preloaded library.
//!
//! It runs inside the processes of others. In any doubt it calls the real function and counts the case. Its decisions
//! are in `tidegate-core`; this crate contains what touches the process.
//!
//! * [`hook`]: the driver's functions that it hooks, and how the application finds them; [`real`]: the real functions.
//! * [`abi`]: the C functions that engines call; [`introspect`]: what tests ask the library about itself.
//! * [`activity`]: launches and everything around them: streams, captures, contexts, the gate, the prober.
//! * [`rm`]: calls about the resource manager's objects, from the process' ioctls.
//! * [`memory`]: KV memory, backed by handles, reclaimed and restored.
//! * [`agent`]: the reporter, which talks to the agent; [`outbox`]: what other threads leave for it.
//! * [`process`]: the process' state, put together from [`state`].
//! * [`start`]: the library's threads; [`threads`]: how a thread starts; [`ending`]: how they end.
//! * [`env`], [`log`], [`clock`], [`sys`]: the variables that it reads, what it prints, the time, the system calls;
//!   [`elf`]: what is loaded.
//!
//! No two files, and no two folders, use each other (`scripts/circles`). From the top: exported functions ([`hook`],
//! [`abi`], [`introspect`]); [`start`]; [`agent`]; what acts on the process ([`rm`], [`memory`], [`activity`]);
//! [`process`]; [`state`]; [`real`].

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the hot path and the tail calls are written for x86-64 Linux with glibc");

mod abi;
mod activity;
mod agent;
mod clock;
mod elf;
mod ending;
mod env;
mod hook;
mod introspect;
mod log;
mod memory;
mod outbox;
mod process;
mod real;
mod rm;
mod start;
mod state;
mod sys;
mod threads;
