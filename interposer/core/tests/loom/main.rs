//! What processes share, under the C11 memory model.
//!
//! A test is a promise; one that `#[should_panic]`s leaves one step or ordering out and shows that the
//! promise needs it.

mod activity;
mod cell;
mod gate;
mod hold;
mod joblog;
mod lease;
mod witness;
