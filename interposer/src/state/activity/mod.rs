//! What threads launch, and what lives on their devices.
//!
//! * [`slots`]: each thread's own counts, and the hot path of a launch; [`turns`], which they count.
//! * [`registry`]: contexts and streams that live; [`streams`]: on which device a stream is.

pub mod registry;
pub mod slots;
pub mod streams;
pub mod turns;
