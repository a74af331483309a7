//! The way to an engine that may be gone and come back.

use crate::engine::{Engine, EngineError, Hello};
use std::path::PathBuf;
use tokio::sync::Mutex;

/// A connection that is made again when it has ended.
#[derive(Debug)]
pub struct Link {
    socket: PathBuf,
    held: Mutex<Option<(Engine, Hello)>>,
}

impl Link {
    /// To the engine that listens at `socket`. Nothing is connected yet.
    #[must_use]
    pub const fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            held: Mutex::const_new(None),
        }
    }

    /// The engine, and what it said of itself when it was connected.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn engine(&self) -> Result<(Engine, Hello), EngineError> {
        let mut held = self.held.lock().await;
        if let Some((engine, hello)) = held.as_ref().filter(|(engine, _)| !engine.ended()) {
            return Ok((engine.clone(), hello.clone()));
        }
        *held = None;
        let made = Engine::connect(&self.socket).await?;
        *held = Some(made.clone());
        Ok(made)
    }

    /// What the engine says of itself now.
    ///
    /// # Errors
    /// When it is gone.
    pub async fn hello(&self) -> Result<(Engine, Hello), EngineError> {
        let (engine, _) = self.engine().await?;
        let hello = engine.call("hello", serde_json::Value::Null).await?;
        Ok((engine, hello))
    }
}
