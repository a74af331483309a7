//! The kernels of self-test and probes, as PTX text: the same program runs on a real GPU and on the virtual
//! one, which knows them by name.
//!
//! * `tg_steps(counter, steps, step_ns)`: every thread spins `steps` times for `step_ns`; the first
//!   thread of the first block adds one to the counter after each. So a counter in pinned memory tells, in
//!   mid-kernel, whether the kernel runs.
//! * `tg_count(counter, ns, tag)`: spins once, then adds one.
//! * `tg_spin_ns(ns, tag)`: spins.
//! * `tg_sms(seen, ns)`: every block marks the byte of the multiprocessor it runs on, then spins.

use crate::cuda::{Cuda, CudaError, Handle, Launch};
use std::ffi::CStr;

/// The module.
pub const PTX: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry tg_spin_ns(.param .u64 ns, .param .u64 tag)
{
.reg .u64 %a, %b, %c, %d;
.reg .pred %p;
ld.param.u64 %a, [ns];
mov.u64 %b, %globaltimer;
L1:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L1;
ret;
}
.visible .entry tg_count(.param .u64 counter, .param .u64 ns, .param .u64 tag)
{
.reg .u64 %a, %b, %c, %d, %e, %f;
.reg .pred %p;
ld.param.u64 %e, [counter];
ld.param.u64 %a, [ns];
mov.u64 %b, %globaltimer;
L2:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L2;
ld.global.u64 %f, [%e];
add.u64 %f, %f, 1;
st.global.u64 [%e], %f;
ret;
}
.visible .entry tg_steps(.param .u64 counter, .param .u64 steps, .param .u64 step_ns)
{
.reg .u64 %a, %b, %c, %d, %e, %f, %n;
.reg .u32 %x, %y;
.reg .pred %p, %q, %r;
ld.param.u64 %e, [counter];
ld.param.u64 %n, [steps];
ld.param.u64 %a, [step_ns];
mov.u32 %x, %ctaid.x;
mov.u32 %y, %tid.x;
or.b32 %x, %x, %y;
setp.eq.u32 %q, %x, 0;
L3:
setp.eq.u64 %r, %n, 0;
@%r bra L5;
mov.u64 %b, %globaltimer;
L4:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L4;
@!%q bra L6;
ld.volatile.global.u64 %f, [%e];
add.u64 %f, %f, 1;
st.volatile.global.u64 [%e], %f;
L6:
sub.u64 %n, %n, 1;
bra L3;
L5:
ret;
}
.visible .entry tg_sms(.param .u64 seen, .param .u64 ns)
{
.reg .u64 %a, %b, %c, %d, %e, %f;
.reg .u32 %s, %o;
.reg .pred %p;
ld.param.u64 %e, [seen];
ld.param.u64 %a, [ns];
mov.u32 %s, %smid;
cvt.u64.u32 %f, %s;
add.u64 %e, %e, %f;
mov.u32 %o, 1;
st.volatile.global.u8 [%e], %o;
mov.u64 %b, %globaltimer;
L7:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L7;
ret;
}
";

/// Threads of a block of `tg_steps`.
const THREADS: u32 = 256;

/// The kernels, loaded.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// `tg_spin_ns`.
    pub spin: Handle,
    /// `tg_count`.
    pub count: Handle,
    /// `tg_steps`.
    pub steps: Handle,
    /// `tg_sms`.
    pub sms: Handle,
}

/// What a launch of `tg_steps` does.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Address of the counter.
    pub counter: u64,
    /// Steps; each adds one.
    pub steps: u64,
    /// Length of a step.
    pub step_ns: u64,
    /// Blocks of 256 threads; one thread of the first counts.
    pub blocks: u32,
}

impl Kernels {
    /// Loads the module into the current context.
    ///
    /// # Errors
    /// The driver's; so for every method below.
    pub fn load(cuda: &Cuda) -> Result<Self, CudaError> {
        let module = cuda.module(PTX)?;
        Ok(Self {
            spin: cuda.function(module, c"tg_spin_ns")?,
            count: cuda.function(module, c"tg_count")?,
            steps: cuda.function(module, c"tg_steps")?,
            sms: cuda.function(module, c"tg_sms")?,
        })
    }

    /// Launches `tg_steps` on a stream.
    pub fn launch_steps(&self, cuda: &Cuda, stream: Handle, steps: Steps) -> Result<(), CudaError> {
        let launch = Launch {
            function: self.steps,
            blocks: steps.blocks,
            threads: THREADS,
            arguments: &[steps.counter, steps.steps, steps.step_ns],
        };
        cuda.launch(stream, launch)
    }

    /// A graph of `kernels` launches of `tg_steps`, one after the other, recorded on a stream.
    pub fn graph_of_steps(
        &self,
        cuda: &Cuda,
        recorder: Handle,
        kernels: u64,
        steps: Steps,
    ) -> Result<Handle, CudaError> {
        cuda.graph(recorder, || {
            (0..kernels).try_for_each(|_| self.launch_steps(cuda, recorder, steps))
        })
    }
}
