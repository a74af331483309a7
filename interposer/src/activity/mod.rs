//! What an application gives its devices to do, and what bears on it.
//!
//! * [`slots`]: each thread's own counts, and the hot path of a launch.
//! * [`launch`]: the slow path; [`gate`]: where offline launches wait.
//! * [`sync`]: calls that prove work done, and [`turns`], which they count; [`witness`]: an event that says it; [`capture`]: stream captures.
//! * [`registry`]: contexts and streams that live; [`contexts`]: the calls that make and end them; [`streams`]:
//!   on which device a stream is.
//! * [`prober`]: the thread that finds out when a device has become idle; [`work`]: the same of an offline process;
//!   [`unseen`]: what it does where no hook sees launches.

pub mod capture;
pub mod contexts;
pub mod gate;
pub mod launch;
pub mod prober;
pub mod registry;
pub mod slots;
pub mod streams;
pub mod sync;
pub mod turns;
pub mod unseen;
mod witness;
pub mod work;
