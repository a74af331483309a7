//! When offline work may run: pure decisions, no IO, no clock.
//!
//! The shell (driven by the agent, a test or a simulation) owns one [`node::Node`]. It stamps `now`, passes
//! [`event::Event`]s to the node, and carries out the resulting [`effect::Effect`]s in their order. Policy returns no
//! errors: an order that failed comes back as an event.
//!
//! ```text
//!   doorbell, answers, sessions, operator, timer
//!        | Event, now
//!        v
//!   Node::step(&mut self, event, now, &mut Vec<Effect>)
//!        |
//!        v Effect
//!   issue threads, launch gates, timer, log
//! ```
//!
//! | file | what it decides |
//! |---|---|
//! | [`node`] | combines all of the files below in one step |
//! | `online` | which online processes are busy on which GPU |
//! | [`gap`] | the cooldown: which idle times are decode gaps, and how long the longest is |
//! | [`patience`], [`forecast`] | with `[slo]`: how long online must be idle until a preemption is worth its cost |
//! | [`gate`] | whether offline may run on one GPU |
//! | `job` | which orders one job gets, on all of its GPUs together |
//! | `charge` | which request a preemption counts for |
//! | [`fair`] | which of several offline jobs has its quantum (`fair.mode`), or which timeslice each gets |
//! | [`memory`] | whose memory is taken, and who gets it |
//! | [`ledger`] | who holds each byte of a GPU's pool |
//! | [`reserve`], [`budget`] | how much memory online keeps mapped ahead of need, and how often it may run short |
//! | [`select`], [`holders`] | which stripes of a job are taken: those that cost the fewest tokens |
//! | [`reclaim`] | the steps of taking stripes from one job and giving them back |
//! | [`lease`] | how much of a trainer runs between two iterations of online |
//! | [`resident`] | how many layers of a trainer stay on the GPU |
//! | [`placement`] | which share of its throughput a job would get on a node, from the node's history |
//! | [`tend`] | whether a job that gets less than promised is moved |
//! | [`words`] | no decisions: events, effects, settings and views as plain data |
//!
//! Terms: an *edge* is the moment at which online goes from idle to busy (busy edge) or back. A *decode gap* is the
//! idle time between two iterations of the same request. The *cooldown* is twice the longest decode gap. A *job* is a
//! gang: all of its processes, on all of their GPUs, are disabled and enabled together. A *preemption* is a disable
//! that a busy edge caused while offline ran.
#![forbid(unsafe_code)]

pub mod budget;
mod charge;
pub mod fair;
pub mod forecast;
pub mod gap;
pub mod gate;
pub mod holders;
mod job;
pub mod lease;
pub mod ledger;
pub mod memory;
pub mod node;
mod online;
pub mod patience;
pub mod placement;
pub mod reclaim;
pub mod reserve;
pub mod resident;
pub mod select;
pub mod tend;
pub mod words;

pub use words::{config, effect, event, ids, layout, lending, no_lease, time, view};
