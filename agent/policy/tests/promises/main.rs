//! The promises of the policy, each a property over any list of events, or a story.

mod absence;
mod bench;
mod beside;
mod budget;
mod dice;
mod fair;
mod fit;
mod learning;
mod lease;
mod ledger;
mod lending;
mod memory;
mod orders;
mod patience;
mod placement;
mod plan;
mod predict;
mod requests;
mod reserve;
mod resident;
mod returns;
mod select;
mod tend;
mod together;
