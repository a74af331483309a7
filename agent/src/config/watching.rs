//! `[metrics]` and `[history]`: who may look at the node from outside, and what is kept of it.

use super::origin::ConfigError;
use super::value::Row;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// See each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watching {
    /// `metrics.listen`: where Prometheus may scrape, "127.0.0.1:9464" or "unix:/run/tidegate/metrics.sock";
    /// "off", the default: nowhere. Whoever reaches it sees GPUs, job names and counts, without a password.
    pub metrics: Option<Listen>,
    /// `history.file`: what `tidegate report` reads. "auto", the default: `history.ring` in the directory
    /// that systemd gives the service (`$STATE_DIRECTORY`), and none where there is no such directory;
    /// "off": none.
    pub history: Kept,
    /// `history.size`: bytes of that file, taken at once. "64MiB" hold seven weeks of one GPU, three days
    /// of eight.
    pub history_size: u64,
    /// `history.every`: how finely it tells. Shorter tells bursts better and is overwritten sooner.
    pub history_every: Duration,
}

/// `metrics.listen`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// "ADDRESS:PORT"
    Tcp(SocketAddr),
    /// "unix:PATH"
    Unix(PathBuf),
}

impl Listen {
    /// Whether other machines are meant to connect.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        match self {
            Self::Tcp(address) => !address.ip().is_loopback(),
            Self::Unix(_) => false,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `history.file`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// "auto"
    WithTheService,
    /// "off"
    Off,
    /// Here.
    At(PathBuf),
}

impl Default for Watching {
    fn default() -> Self {
        Self {
            metrics: None,
            history: Kept::WithTheService,
            history_size: 64 << 20,
            history_every: Duration::from_secs(60),
        }
    }
}

impl Watching {
    /// Where the history is kept, if it is.
    #[must_use]
    pub fn history_file(&self) -> Option<PathBuf> {
        match &self.history {
            Kept::Off => None,
            Kept::At(path) => Some(path.clone()),
            Kept::WithTheService => {
                state_directory().map(|dir| dir.join(tidegate_proto::HISTORY_FILE))
            }
        }
    }
}

/// The directory for what outlasts the service, where the service manager gives it one.
#[must_use]
pub fn state_directory() -> Option<PathBuf> {
    let directories = std::env::var("STATE_DIRECTORY").ok()?;
    let first = directories.split(':').find(|path| !path.is_empty())?;
    Some(PathBuf::from(first))
}

pub(super) fn listen(row: &Row) -> Result<Option<Listen>, ConfigError> {
    let expected = "\"127.0.0.1:9464\", \"unix:/run/tidegate/metrics.sock\" or \"off\"";
    let text = row.text(expected)?;
    if text == "off" {
        return Ok(None);
    }
    if let Some(path) = text
        .strip_prefix("unix:")
        .filter(|path| path.starts_with('/'))
    {
        return Ok(Some(Listen::Unix(PathBuf::from(path))));
    }
    match text.parse() {
        Ok(address) => Ok(Some(Listen::Tcp(address))),
        Err(_) => Err(row.wrong(format!("`{text}`: expected {expected}"))),
    }
}

pub(super) fn show_listen(watching: &Watching) -> String {
    let listen = watching.metrics.as_ref();
    listen.map_or_else(|| "off".to_owned(), ToString::to_string)
}

pub(super) fn kept(row: &Row) -> Result<Kept, ConfigError> {
    Ok(match row.text("an absolute path, \"auto\" or \"off\"")? {
        "auto" => Kept::WithTheService,
        "off" => Kept::Off,
        _ => Kept::At(PathBuf::from(row.path()?)),
    })
}

pub(super) fn show_kept(watching: &Watching) -> String {
    match &watching.history {
        Kept::WithTheService => "auto".to_owned(),
        Kept::Off => "off".to_owned(),
        Kept::At(path) => path.to_string_lossy().into_owned(),
    }
}

pub(super) fn size(row: &Row) -> Result<u64, ConfigError> {
    let bytes = row.bytes()?;
    if (1 << 20..=4 << 30).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(row.wrong("expected a size from \"1MiB\" to \"4GiB\""))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use std::path::Path;

    fn load(name: &str, value: &str) -> Result<Watching, ConfigError> {
        let row = (name.to_owned(), value.to_owned());
        let config = Config::load(Path::new("/nonexistent/agent.toml"), true, [row])?;
        Ok(config.watching)
    }

    #[test]
    fn metrics_are_served_on_an_address_or_a_unix_socket_and_by_default_nowhere() {
        let listens = |text| load("TIDEGATE_METRICS__LISTEN", text).map(|read| read.metrics);
        assert_eq!(Watching::default().metrics, None);
        assert_eq!(listens("off").expect("a choice"), None);
        let tcp = listens("127.0.0.1:9464").expect("an address");
        assert_eq!(tcp, Some(Listen::Tcp(([127, 0, 0, 1], 9464).into())));
        let unix = listens("unix:/run/x.sock").expect("a path");
        assert_eq!(unix, Some(Listen::Unix("/run/x.sock".into())));
        for wrong in ["9464", "localhost:9464", "unix:x.sock", "/run/x.sock"] {
            let error = listens(wrong).expect_err(wrong).to_string();
            assert!(
                error.contains("metrics.listen") && error.contains("unix:/run"),
                "{error}"
            );
        }
    }

    #[test]
    fn history_that_would_fill_a_disk_or_a_processor_is_refused() {
        assert!(load("TIDEGATE_HISTORY__SIZE", "5GiB").is_err());
        assert!(load("TIDEGATE_HISTORY__SIZE", "64").is_err());
        let kept = load("TIDEGATE_HISTORY__SIZE", "8MiB").expect("a size");
        assert_eq!(kept.history_size, 8 << 20);
        assert!(load("TIDEGATE_HISTORY__EVERY", "10ms").is_err());
        assert!(load("TIDEGATE_HISTORY__FILE", "relative").is_err());
        let kept = load("TIDEGATE_HISTORY__FILE", "/x/y").expect("a path");
        assert_eq!(kept.history_file(), Some("/x/y".into()));
        let off = load("TIDEGATE_HISTORY__FILE", "off").expect("a choice");
        assert_eq!(off.history_file(), None);
    }
}
