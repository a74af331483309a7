//! Where a value came from, and what was wrong with it.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said: built in.
    #[default]
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// A variable.
    Environment(String),
    /// A flag, by its name.
    Flag(String),
    /// `Control.Set` on the running agent; by whom.
    Set(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Set(who) => write!(f, "set by {who}"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// What the parser says.
        message: String,
    },
    /// There is no such setting.
    #[error("{origin}: unknown key `{key}`{}", .near.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    Unknown {
        /// Where.
        origin: Origin,
        /// Its path.
        key: String,
        /// The nearest path there is.
        near: Option<&'static str>,
    },
    /// The value does not fit.
    #[error("{origin}: `{key}`: {message}")]
    Value {
        /// Where.
        origin: Origin,
        /// The setting.
        key: String,
        /// What would fit.
        message: String,
    },
}

impl ConfigError {
    /// Without the nearest path, which whoever knows all of them adds.
    pub(super) fn unknown(origin: Origin, key: &str) -> Self {
        Self::Unknown {
            origin,
            key: key.to_owned(),
            near: None,
        }
    }
}
