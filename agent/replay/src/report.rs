//! What is said of a replay: to people on a terminal, and in one HTML file.

pub mod text;
