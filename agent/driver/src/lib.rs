//! What speaks to the kernel and its GPU driver, for the agent, its self-test and the probes.
//!
//! * [`rm`]: the resource manager, by ioctls of this process.
//! * [`mod@cuda`], [`kernels`]: CUDA's driver API, in a process that exists for it, and what runs there.
//! * [`worker`]: such a process from both ends: lines go in, lines come out.
//! * [`mod@stop_and_resume`]: whether its work stands still while it is disabled, and goes on after.
//! * [`device`]: which device it is, the machine's or a virtual one.
//! * [`sys`]: system calls.
//! * [`causes`]: errors as people read them.
//!
//! Nothing in here decides anything, and nothing in here knows the agent: of this workspace only the foreign
//! ABIs (`tidegate-abi`) are used.

pub mod causes;
pub mod cuda;
pub mod device;
pub mod kernels;
pub mod rm;
pub mod stop_and_resume;
pub mod sys;
pub mod worker;
