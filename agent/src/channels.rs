//! How the agent stops and resumes channels: this folder connects the shell of the node to the driver.
//!
//! Before anything is touched, [`obstacle`] and [`level`] decide how far the agent may go. Then [`prove`] finds which
//! process owns an RM client, and [`issue`] carries out the shell's orders through [`channel`]. The [`journal`] records
//! what may be disabled, so that [`reconcile`] can enable it after a crash. [`figures`] is for operators.

pub mod awake;
pub mod channel;
pub mod figures;
pub mod issue;
pub mod journal;
pub mod level;
pub mod lookout;
pub mod obstacle;
pub mod prove;
pub mod reconcile;
