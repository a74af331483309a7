//! Hardware probes: what this node's driver and GPU really do, measured on throw-away contexts.
//!
//! Much of the design rests on facts about a closed driver. Each is a *probe* here: a named check with
//! figures and a verdict. Probes never touch a process that is not their own.
//!
//! ```text
//!  suite ──┬── probe P2 ──┬── worker      a CUDA context, preloaded with libtidegate.so (its trace
//!          │              │               of driver calls tells the channels)
//!          │              ├── actor       another RM client: an agent, its successor, a stranger
//!          │              └── guardian    enables everything when the probe is gone
//!          └── probe P3 ...
//! ```
//!
//! * [`suite`], [`report`], [`machine`], [`render`]: which probes run, what they say, as files and tables.
//! * [`probes`], [`mod@bench`]: the probes and what each is given.
//! * [`worker`], [`message`], [`link`]: the throw-away process, from both ends; what it runs is in
//!   [`tidegate_driver::kernels`].
//! * [`calls`]: the driver calls of P24.
//! * [`subject`], [`hold`], [`actor`]: channels that are disabled, and that nothing stays so.
//! * [`trace`]: driver calls as the preloaded library saw them.
//! * [`kernel_log`]: what the driver says in the kernel's log meanwhile.

pub mod actor;
pub mod bench;
pub mod calls;
pub mod clock;
pub mod hold;
pub mod kernel_log;
pub mod link;
pub mod machine;
pub mod message;
pub mod probes;
pub mod render;
pub mod report;
mod sizes;
pub mod subject;
pub mod suite;
pub mod trace;
pub mod worker;
