//! What threads launch, and the contexts and streams of their devices.
//!
//! * [`slots`]: each thread's own counts, and the hot path of a launch; [`turns`]: iterations that these counts show.
//! * [`registry`]: contexts and streams that exist; [`streams`]: on which device a stream is.

pub mod registry;
pub mod slots;
pub mod streams;
pub mod turns;
