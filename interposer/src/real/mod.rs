//! The real driver behind the hooks.
//!
//! * [`driver`]: its functions by name; [`loader`]: the real `dlsym` and `dlopen`.
//! * [`row`]: what the library knows of one hooked function.

pub mod driver;
pub mod loader;
pub mod row;
