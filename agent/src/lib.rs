//! The node agent and its command line.
