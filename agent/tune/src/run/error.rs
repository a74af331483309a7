//! Why a run ended.

use crate::engine::EngineError;
use crate::files::FileError;
use std::path::PathBuf;

/// Why a run ended before its last step.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The plan does not fit the engine.
    #[error("{0}")]
    Unfit(String),
    /// Somebody else trains an adapter of this name.
    #[error("the engine already has an adapter {0}; choose another name, or close that one")]
    Taken(String),
    /// Another process runs in the same folder.
    #[error("{}: another process runs this training", .0.display())]
    Busy(PathBuf),
    /// The run in the folder is another one.
    #[error("{}: an unfinished run with another {what} is there; repeat its command, or remove the folder", folder.display())]
    Changed {
        /// The folder.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The output is there already.
    #[error("{} exists; choose another output directory", .0.display())]
    Exists(PathBuf),
    /// The numbers of the run are no numbers any longer.
    #[error("step {step}: {message}; use a lower learning rate")]
    NotFinite {
        /// The step; the first is 1.
        step: u64,
        /// The engine's words.
        message: String,
    },
}
