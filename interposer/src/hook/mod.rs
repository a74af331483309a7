//! How the library comes between an application and the driver.
//!
//! * [`table`]: every function it hooks, one row each; [`row`]: what a row is; [`detour`]: what the table is
//!   made into.
//! * [`names`], [`proc_address`]: how the application's own questions for a function are answered.
//! * `judged`: a test that compares the table's signatures with another's;
//! * [`driver`]: the real driver, its functions by name; [`loader`]: the real `dlsym` and `dlopen`.

pub mod detour;
pub mod driver;
pub mod elf;
#[cfg(test)]
pub mod judged;
pub mod loader;
pub mod names;
pub mod proc_address;
pub mod row;
pub mod table;
