//! What handles stand for, and what a stream is given: objects without the calls on them.
//!
//! Nothing here knows of capture, nor of the calls, which stand one level up.

pub mod context;
pub mod current;
pub mod event;
pub mod function;
pub mod memory;
mod queues;
pub mod sms;
pub mod transfer;
pub mod work;
