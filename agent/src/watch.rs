//! What is kept of the node's doings, for people and programs that look on. Nothing here decides.

pub mod denials;
pub mod events;
pub mod gauge;
pub mod history;
pub mod kinds;
pub mod latency;
pub mod metrics;
mod minute;
pub mod rates;
pub mod recent;
pub mod recorder;
pub mod refusals;
pub mod reports;
pub mod watcher;
