//! Who gets the GPU when: compute policies behind one trait.
//!
//! A policy hears what online does and says when offline may run. It never sees the future, save
//! the oracles, which get it as a plan. What a switch takes is charged by the world, the same for
//! all ([`crate::costs`]); what is told here is only how a policy stops: at once, saving what runs,
//! or at the end of a unit that its mechanism cannot interrupt.
//!
//! ```text
//!   Off --Run--> Starting --takes--> On --Stop--> Draining --unit ends--> Stopping --takes--> Off
//! ```

pub(crate) mod channel;
pub(crate) mod gpreempt;
pub(crate) mod kernel_preempt;
pub(crate) mod layer_preempt;
pub(crate) mod no_control;
pub(crate) mod oracle;
mod policy;
pub(crate) mod standalone;
pub(crate) mod temporal_share;

pub(crate) use policy::noticed;
pub use policy::{Boundary, Command, Event, NEVER, Policy};
