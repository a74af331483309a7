//! `libtidegate.so`, the preloaded library.
//!
//! It runs inside somebody's service: on any doubt it calls the real function and counts the case.
//! What it decides is in `tidegate-core`; here is what touches the process.
//!
//! * [`table`], [`hook`]: the driver's functions it hooks, and what a hook is made of.
//! * [`resolve`], [`driver`]: how the application and the library itself find functions.
//! * [`slots`], [`streams`], [`launch`], [`sync`], [`gate`], [`capture`], [`contexts`]: launches and all that bears
//!   on them.
//! * [`memory`]: KV memory, backed by handles, taken and given back.
//! * [`ioctl`], [`trace`]: the resource manager's objects, and its calls written out.
//! * [`process`], [`start`], [`prober`], [`report`]: the process' state and the library's threads.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the hot path and the tail calls are written for x86-64 Linux with glibc");

mod capture;
mod channels;
mod clock;
mod contexts;
mod driver;
mod env;
mod files;
mod gate;
mod greet;
mod hook;
mod ioctl;
mod launch;
mod log;
mod memory;
mod prober;
mod process;
mod report;
mod resolve;
mod slots;
mod start;
mod streams;
mod sync;
mod sys;
mod table;
mod tell;
mod trace;
mod version;
