//! When offline work may run: pure decisions, no IO, no clock.
//!
//! The shell (the agent, a property test, the simulator) owns one [`node::Node`], stamps `now`,
//! feeds it [`event::Event`]s and carries out the [`effect::Effect`]s it pushes, in order. There is
//! no error in here, only events: an order that failed comes back as one.
//!
//! ```text
//!   doorbell, acks, sessions, operator, timer
//!        | Event, now                                        gap     decode gaps -> cooldown
//!        |                                                   patience, forecast: a return's cost -> cooldown
//!        v                                                   gate    busy, idle, cooldown -> open
//!   Node::step(&mut self, event, now, &mut Vec<Effect>)      online  processes -> busy, gaps
//!        |                                                   job     gates -> orders to a gang
//!        v Effect                                            charge  preemptions -> per request
//!   issue threads, gate words, timer, log                    fair    jobs that share GPUs -> whose turn
//!                                                            node    all of it, one step
//! ```
//!
//! [`fair`] is in force with [`config::FairMode::Turns`], the usual of what `fair.mode` chooses.
//! [`placement`] says what share of its throughput an offline job would get on a node, from the node's history,
//! and [`tend`] what is done about one that gets less than it was promised.
//! [`lease`] decides how much of a trainer runs beside online, where [`config::Config::leases`] says what online
//! promised, and [`resident`] says how many of its layers stay on the GPU there.
//!
//! Words: an *edge* is online going idle -> busy (busy edge) or back. A *decode gap* is the idle
//! time between two iterations of the same request; the *cooldown* is twice the longest one. A
//! *job* is a gang: all its processes on all their GPUs are disabled and enabled together. A
//! *preemption* is a disable, caused by a busy edge, while offline ran.
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
