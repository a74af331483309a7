//! What takes a disabled channel off its engine: the driver's word and the firmware's deed are two
//! things.
//!
//! `FIFO_DISABLE_CHANNELS` is documented to take the channels off the hardware before it returns.
//! Published measurements of real firmware disagree with that and with one another, so the model has
//! each that was seen, and two that nobody wants to meet:
//!
//! * [`Eviction::OnDisable`]: as documented. Seen on an RTX 5090 with 595.99.02, where the vendor's own
//!   Vulkan driver relies on it.
//! * [`Eviction::OnRestart`]: on an A100-80G with 575.57.08 and 610.43.02 a disable of a process that
//!   saturates the GPU changed nothing (715 of 715 matmul/s), and the same followed by
//!   `RESTART_RUNLIST` stopped it altogether (1,551 and 0); enabling brought it back (709 of 709). A
//!   channel that was disabled when it had not run yet stayed away from the start.
//! * [`Eviction::OnPreempt`]: with 575.64.05 a public research prototype disables scheduling only and
//!   then preempts the group, waiting for it, which costs it 59 us of save and load.
//! * [`Eviction::AtKernelEnd`]: a context that is not preempted inside a kernel (the compute preemption
//!   mode "wait for idle") goes off when its kernel has ended.
//! * [`Eviction::Never`]: the call is answered, and that is all.

/// When a disable in force takes effect on a channel that has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// At once.
    #[default]
    OnDisable,
    /// When the runlist is restarted next; at once where nothing of the channel has run.
    OnRestart,
    /// When the group is preempted next, if scheduling alone was disabled; at once where nothing of
    /// the channel has run.
    OnPreempt,
    /// When the kernel or transfer that it is inside of has ended.
    AtKernelEnd,
    /// Never.
    Never,
}

/// A disable in force that has not taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The caller's.
    pub(crate) ticket: u64,
    /// What runs was to stay until its turn is over.
    pub(crate) scheduling_only: bool,
}

impl Eviction {
    pub(crate) fn by_restart(self, _: Pending) -> bool {
        self == Self::OnRestart
    }

    pub(crate) fn by_preempt(self, pending: Pending) -> bool {
        self == Self::OnPreempt && pending.scheduling_only
    }

    pub(crate) fn by_end_of_turn(self, pending: Pending) -> bool {
        self == Self::OnDisable && pending.scheduling_only
    }

    pub(crate) fn at_kernel_end(self) -> bool {
        self == Self::AtKernelEnd
    }
}
