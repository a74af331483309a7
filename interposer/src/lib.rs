//! `libtidegate.so`, the preloaded library.
//!
//! It runs inside somebody's service: on any doubt it calls the real function and counts the case.
//! What it decides is in `tidegate-core`; here is what touches the process.
//!
//! * [`hook`]: the driver's functions it hooks, and how the application finds them.
//! * [`activity`]: launches and all that bears on them: streams, captures, contexts, the gate, the prober.
//! * [`rm`]: the resource manager's objects, from the process' ioctls.
//! * [`memory`]: KV memory, backed by handles, reclaimed and restored.
//! * [`agent`]: the reporter, which speaks with the agent.
//! * [`process`]: the process' state, put together from what each room defines.
//! * [`start`]: the library's threads, put together; [`threads`]: how one starts; [`ending`]: how they end.
//! * [`env`], [`log`], [`clock`], [`sys`]: every variable it reads, what it says, the time, the system calls.
//!
//! No two files use each other (`scripts/circles`). Below [`process`] are files with state and none that knows
//! the process; above it are those that act on it; the exported functions are on top: [`hook::table`],
//! [`hook::names`], [`rm::ioctl`], [`memory::abi`].

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the hot path and the tail calls are written for x86-64 Linux with glibc");

mod activity;
mod agent;
mod clock;
mod ending;
mod env;
mod hook;
mod log;
mod memory;
mod process;
mod rm;
mod start;
mod sys;
mod threads;
