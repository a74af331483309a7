//! The virtual GPU: device process, its wire, its history.
#![allow(missing_debug_implementations)]

pub mod ring;
