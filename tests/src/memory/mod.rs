//! The memory policy over traces, in virtual time: what a reservation costs, and what a reclaim does.

pub mod demand;
pub mod headroom;
pub mod offline;
pub mod selection;
