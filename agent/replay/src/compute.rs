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

mod channel;
mod gpreempt;
mod kernel_preempt;
mod layer_preempt;
mod no_control;
mod oracle;
mod policy;
mod standalone;
mod temporal_share;

use std::time::Duration;

use crate::run::Alone;
use crate::spec::{Compute, Spec};
use crate::tidegate::Tidegate;

pub(crate) use policy::noticed;
pub use policy::{Boundary, Command, Event, NEVER, Policy};

/// The policy of `spec`.
#[must_use]
pub fn make(spec: &Spec, alone: Option<&Alone>) -> Box<dyn Policy> {
    let costs = &spec.costs;
    let longest_gap = alone.map_or(Duration::ZERO, |alone| alone.longest_gap);
    match spec.compute {
        // One engine has nobody to share the GPU with: `run` has its iterations.
        Compute::Standalone | Compute::OneEngine(_) => Box::new(standalone::Standalone),
        Compute::NoControl => Box::new(no_control::NoControl::new(costs)),
        Compute::KernelPreempt => Box::new(kernel_preempt::KernelPreempt),
        Compute::LayerPreempt => Box::new(layer_preempt::LayerPreempt),
        Compute::GPreempt => Box::new(gpreempt::GPreempt::new(costs)),
        Compute::TemporalShare(every) => Box::new(temporal_share::TemporalShare::new(every)),
        Compute::Channel => Box::new(channel::Channel::with_cooldown(costs, longest_gap)),
        Compute::ChannelNoCooldown => {
            Box::new(channel::Channel::with_cooldown(costs, Duration::ZERO))
        }
        Compute::Tidegate | Compute::TidegateHints => Box::new(Tidegate::gate(spec)),
        Compute::Oracle => Box::new(oracle::Oracle::at_most_once(costs, alone)),
        Compute::OracleUnlimited => Box::new(oracle::Oracle::unlimited(costs, alone)),
    }
}
