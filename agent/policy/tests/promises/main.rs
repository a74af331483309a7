//! The promises of the policy, each a property over any list of events, or a story.

mod bench;
mod learning;
mod ledger;
mod memory;
mod orders;
mod reserve;
mod select;
