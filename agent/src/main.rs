//! The node agent.
fn main() {}
