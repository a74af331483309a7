//! Foreign ABIs that the agent, the interposer and the virtual GPU share.
//!
//! * [`rm`]: the resource manager's ioctls of the NVIDIA kernel driver, their structs and sizes; [`branch`]: the driver
//!   branches.
//! * [`uuid`]: a GPU's UUID, printed.
//! * [`uvm`]: the few unified-memory ioctls that name channels and map memory.
//! * [`class`]: class and engine numbers, and what they mean for gating.
//! * [`cuda`]: the part of the CUDA driver API whose types cross our hooks.
//! * [`vmm`]: the structs of its virtual memory management.
//! * [`page`]: the page that an agent shares with one preloaded process; [`gate`]: how its gate words are used;
//!   [`word`]: the operations of such words; [`beats`]: the page of an online process' iterations.
//!
//! Nothing here has behaviour beyond decoding and the words that two processes share, and nothing depends on another
//! crate. All users must agree on these bytes, and a size that is wrong must fail the build, not a run.
#![no_std]

pub mod beats;
pub mod branch;
pub mod class;
pub mod cuda;
pub mod gate;
pub mod page;
pub mod rm;
pub mod uuid;
pub mod uvm;
pub mod vmm;
pub mod word;
