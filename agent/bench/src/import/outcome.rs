//! What came of reading a file.

use crate::block::Block;
use std::path::PathBuf;

/// Why results cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {}: {why}", file.display())]
    Read {
        /// Its path.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// It is no JSON.
    #[error("{}:{line}: not JSON: {why}; is the file whole?", file.display())]
    Json {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Why.
        why: String,
    },
    /// It is JSON of something else.
    #[error(
        "{}: not a result of guidellm (benchmarks.json), aiperf (profile_export.jsonl, profile_export_aiperf.json) or \
         `vllm bench serve --save-result`", file.display()
    )]
    Format {
        /// Its path.
        file: PathBuf,
    },
    /// A field is not as its format says, or this run cannot be used.
    #[error("{}:{line}: field {field}: {why}", file.display())]
    Field {
        /// Its path.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Path of the field, e.g. `benchmarks[0].requests`.
        field: String,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// A block, and what the reader has to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The results.
    pub block: Block,
    /// What is less than it seems.
    pub notes: Vec<String>,
}
