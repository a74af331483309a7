//! What is logged, as text.

use std::fmt::Display;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{filter}` is not a log level: use error, warn, info, debug or trace, or a filter such as \
     \"info,tidegate_agent::control=debug\" ({why})"
)]
pub struct BadFilter {
    filter: String,
    why: String,
}

impl BadFilter {
    pub(crate) fn new(filter: &str, why: &dyn Display) -> Self {
        Self {
            filter: filter.to_owned(),
            why: why.to_string(),
        }
    }
}

/// What is logged, as `log.level` says it.
///
/// # Errors
/// Where it is neither a level nor a filter.
pub fn log_filter(filter: &str) -> Result<EnvFilter, BadFilter> {
    // A bare word that is no level would be taken for the name of a module, and silence everything.
    let plain = !filter.contains(['=', ',', '[']);
    if plain && filter.parse::<LevelFilter>().is_err() {
        return Err(BadFilter::new(filter, &"there is no such level"));
    }
    EnvFilter::try_new(filter).map_err(|error| BadFilter::new(filter, &error))
}
