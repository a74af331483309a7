//! Where logs go, and what is logged, which can be changed while the agent runs.
//!
//! One filter stands in front of everything. [`LogLevel`] holds it and the one that was configured, to
//! which an empty request goes back.

use crate::config::{BadFilter, Config, LogFormat, log_filter};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// The filter in front of the logs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    filters: Arc<Mutex<Filters>>,
}

#[derive(Debug)]
struct Filters {
    configured: String,
    now: String,
}

/// What was in force, and what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Before.
    pub before: String,
    /// From here on.
    pub now: String,
}

/// Lines for the journal: a syslog priority in front, as sd-daemon(3) says, and no time, for the journal has one.
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

fn journal() -> Journal {
    Journal(
        Format::default()
            .without_time()
            .with_target(false)
            .with_ansi(false),
    )
}

/// Whether standard error goes to the journal: systemd says which file that is in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|file| named == format!("{}:{}", file.st_dev(), file.st_ino()))
}

/// Sends logs to standard error, in the configured format.
#[must_use]
pub fn init(config: &Config) -> LogLevel {
    let (level, subscriber) = filtered(&config.log.level);
    let written = fmt::layer().with_writer(io::stderr).with_target(false);
    match config.log.format {
        LogFormat::Text if is_journal() => {
            subscriber.with(written.event_format(journal())).init();
        }
        LogFormat::Text => subscriber.with(written.with_ansi(false)).init(),
        LogFormat::Json => subscriber.with(written.json().flatten_event(true)).init(),
    }
    level
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<EnvFilter, Registry>, Registry>;

fn filtered(configured: &str) -> (LogLevel, Filtered) {
    let parsed = log_filter(configured);
    let in_force = if parsed.is_ok() { configured } else { "info" };
    let (layer, handle) = reload::Layer::new(parsed.unwrap_or_else(|_| EnvFilter::new("info")));
    let level = LogLevel {
        handle,
        filters: Arc::new(Mutex::new(Filters {
            configured: in_force.to_owned(),
            now: in_force.to_owned(),
        })),
    };
    (level, tracing_subscriber::registry().with(layer))
}

impl LogLevel {
    /// Logs what `filter` lets through from now on; empty: what was configured.
    ///
    /// # Errors
    /// When it is not a filter; nothing changes then.
    pub fn set(&self, filter: &str) -> Result<Changed, BadFilter> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = if filter.is_empty() {
            filters.configured.clone()
        } else {
            filter.to_owned()
        };
        self.apply(&wanted)?;
        let before = std::mem::replace(&mut filters.now, wanted.clone());
        Ok(Changed {
            before,
            now: wanted,
        })
    }

    /// The configuration says `filter` from now on.
    ///
    /// # Errors
    /// When it is not a filter; nothing changes then.
    pub fn configure(&self, filter: &str) -> Result<(), BadFilter> {
        self.apply(filter)?;
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        filter.clone_into(&mut filters.configured);
        filter.clone_into(&mut filters.now);
        Ok(())
    }

    fn apply(&self, filter: &str) -> Result<(), BadFilter> {
        self.handle
            .reload(log_filter(filter)?)
            .map_err(|error| BadFilter::new(filter, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-OPERATE-23: the journal gets the priority of each line, and no second clock.
    #[test]
    fn a_line_for_the_journal_has_its_priority_and_no_time() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("not poisoned").write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let own = lines.clone();
        let written = fmt::layer().with_writer(move || own.clone());
        let subscriber = tracing_subscriber::registry().with(written.event_format(journal()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(gpu = 1, "channels are not touched");
            tracing::warn!("slow");
            tracing::info!("started");
            tracing::debug!("woken");
        });
        let written = String::from_utf8(lines.0.lock().expect("not poisoned").clone());
        assert_eq!(
            written.expect("text"),
            "<3>ERROR channels are not touched gpu=1\n<4> WARN slow\n<6> INFO started\n<7>DEBUG woken\n"
        );
    }

    #[test]
    fn an_empty_request_goes_back_to_what_was_configured_and_a_bad_one_changes_nothing() {
        let (level, _subscriber) = filtered("warn");
        let set = |filter: &str| {
            level
                .set(filter)
                .map(|changed| (changed.before, changed.now))
        };
        let pair = |before: &str, now: &str| (before.to_owned(), now.to_owned());
        assert_eq!(set("debug").expect("a level"), pair("warn", "debug"));
        assert!(set("verbose").is_err());
        assert!(set("info,x=loud").is_err());
        assert_eq!(
            set("info,tidegate_agent=trace").expect("a filter"),
            pair("debug", "info,tidegate_agent=trace")
        );
        assert_eq!(
            set("").expect("the configured"),
            pair("info,tidegate_agent=trace", "warn")
        );
        level.configure("error").expect("a level");
        assert!(level.configure("loud").is_err());
        assert_eq!(set("").expect("the configured"), pair("error", "error"));
    }
}
