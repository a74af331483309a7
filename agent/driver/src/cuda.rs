//! CUDA's driver API as the self-test and the probes use it, found at run time.
//!
//! Nothing here links to `libcuda.so.1`: the program starts on any machine and says in plain words
//! that there is no driver. The raw functions are private; what is public passes live memory only,
//! so all that can go wrong is an error code or a fault on the device.
//!
//! Only a process that exists for it loads the library: the agent never does, since a driver library in its
//! process would be a second user of the files and locks it measures, and could take it down.
//!
//! ```text
//!  memory   counters, VMM     green   green contexts
//!       \                       /
//!        +----> context <------+        contexts, streams, kernels, graphs
//!                  |
//!                  v
//!               library                 found, loaded, called; what it says instead of success
//! ```

mod context;
mod green;
mod library;
mod memory;

pub use context::{Cuda, Launch};
pub use green::Green;
pub use library::{CudaError, Handle, function};
pub use memory::Counter;
