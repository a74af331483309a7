//! Trains adapters in an engine that serves: `tidegate tune`.
//!
//! The engine (vLLM with the plugin and `TIDEGATE_TUNE`) computes. It listens on a Unix socket whose messages
//! `interposer/engines/README.md` defines. This crate decides what the engine is asked to do, and in which order:
//!
//! ```text
//!   data      a file of samples, checked line by line
//!   sample    what the engine's tokenizer made of a line
//!   lora      which adapter
//!   order     which samples a step has        } pure: they follow from
//!   rate      the learning rate of a step     } a seed and a step
//!   run       steps, checkpoints, validation, and how a run goes on after it was killed
//!   engine    the socket
//!   files     files that are whole or absent
//!   serve     the same for several users, over HTTP: `tidegate tune serve`
//! ```
#![forbid(unsafe_code)]

pub mod clock;
pub mod data;
pub mod engine;
pub mod files;
pub mod lora;
pub mod order;
pub mod rate;
pub mod run;
pub mod sample;
pub mod serve;
#[cfg(test)]
mod stand_in;
