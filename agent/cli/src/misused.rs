//! Wrong usage that only shows when arguments are looked at together.

/// The arguments do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Misused(pub &'static str);
