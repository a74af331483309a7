//! How the library comes between an application and the driver.
//!
//! * [`table`]: every function it hooks, one row each; [`detour`]: what the table is made into.
//! * [`names`], [`proc_address`]: how the application's own questions for a function are answered.
//! * [`ioctl`]: the process' calls on the driver's files, watched.
//! * `judged`: a test that compares the table's signatures with another's.

pub mod detour;
pub mod ioctl;
#[cfg(test)]
pub mod judged;
pub mod names;
pub mod proc_address;
pub mod table;
