//! How the library comes between an application and the driver.
//!
//! * [`table`]: every function it hooks, one row each.
//! * [`row`]: what a row is, and the detour of each class.
//! * [`resolve`]: how the application's own questions for a function are answered.
//! * [`driver`]: the real driver, its functions by name.

pub mod driver;
pub mod resolve;
pub mod row;
pub mod table;
