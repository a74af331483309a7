//! Channels, as the agent stops and resumes them: what joins the shell of the node to the driver.
//!
//! Before anything is touched, [`obstacle`] and [`level`] say how far the agent may go. Then [`prove`]
//! shows whose an RM client is, [`issue`] carries out the shell's orders through [`channel`], and the
//! [`journal`] remembers what may be disabled, for [`reconcile`] to enable it after a crash. [`figures`] is for people.

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
