//! What is broken on purpose in the environment of the shell. Each scenario has names of its own for these defects.

/// A part of the agent's surroundings, or of a library, that does not do what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Some doorbells are never heard.
    LostEdge,
    /// An agent that follows another acknowledges its first disables without a call.
    FakedDisables,
    /// An offline process whose agent is gone waits for ever.
    NoLanding,
    /// An issue thread carries out an older order after a newer one.
    StaleOrder,
    /// An issue thread enables without a last look at online.
    NoLook,
    /// An issue thread says that it did what an armed order says, and makes no call.
    FakedFire,
    /// An issue thread whose queue is full takes an order and forgets it.
    LostOrder,
    /// An issue thread reports a call that the driver refused as done.
    HiddenRefusal,
    /// A process enables its own channels in the middle of a change of its mappings.
    LandsMoving,
    /// A process attaches again in the middle of a change of its mappings.
    AttachesMoving,
    /// Nobody asks the journal whether a process is in the middle of a change.
    ForgottenMover,
}
