//! How the library gets between an application and the driver.
//!
//! * [`table`]: every hooked function, one row each; [`detour`]: what the macro makes of the table.
//! * [`names`], [`proc_address`]: what the application gets when it looks a function up.
//! * [`ioctl`]: the process' calls on the driver's files.
//! * `judged`: a test that compares the table's signatures with cudarc's.

pub mod detour;
pub mod ioctl;
#[cfg(test)]
pub mod judged;
pub mod names;
pub mod proc_address;
pub mod table;
