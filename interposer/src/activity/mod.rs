//! What an application launches on its devices, and everything around it.
//!
//! * [`launch`]: the slow path of a launch; [`gate`]: where offline launches wait.
//! * [`hold`]: calls that may hold the driver's locks.
//! * [`sync`]: calls that prove work done; [`witness`]: an event that shows it; [`capture`]: stream captures.
//! * [`contexts`]: the calls that make and destroy contexts and streams; [`gone`]: the memory that ends with them.
//! * [`prober`]: the thread that finds out when a device has become idle; [`work`]: the same for an offline process;
//!   [`unseen`]: what it does for launches that no hook sees.

pub mod capture;
pub mod contexts;
pub mod gate;
pub mod gone;
pub mod hold;
pub mod launch;
pub mod prober;
pub mod sync;
pub mod unseen;
mod witness;
pub mod work;
