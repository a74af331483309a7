//! `libtidegate_coserve.so`: what an engine asks in each step that carries more than its users' requests.
//!
//! The engine's plugin is in Python and decides nothing: it hands over numbers and does what comes back.
//!
//! ```text
//!   abi       the C interface (include/tidegate_coserve.h) around `policy::lease`
//!   training  its functions for training between two steps
//! ```
//!
//! No IO, no clock, no threads. Nothing is allocated after `tg_coserve_new`, and no panic leaves the library.

mod abi;
mod training;

pub use abi::*;
pub use tidegate_policy::lease::{ride, train};
pub use training::*;
