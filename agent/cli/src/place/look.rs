//! What every command of placement looks at.

use crate::values::{ago, span};
use anyhow::Context as _;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_agent::clock::{unix_ms, unix_ns};
use tidegate_agent::watch::history;
use tidegate_place::facts::Facts;
use tidegate_place::memo::Memo;
use tidegate_place::metrics;
use tidegate_place::offers::{Offer, horizon, offers};
use tidegate_place::profiles::{self, Refused};
use tidegate_place::said::Said;
use tidegate_policy::placement::{Horizon, Profile};
use tidegate_policy::tend::Tending;
use tidegate_policy::time::Instant;
use tidegate_proto::{HISTORY_FILE, STATE_DIR};

// What is documented here would become the program's own help.
#[derive(Debug, Args)]
pub(super) struct Look {
    /// Directory of the profiles.
    #[arg(long, value_name = "DIR", default_value = profiles::DIR)]
    pub profiles: PathBuf,
    /// The agent's `history.file`.
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(STATE_DIR).join(HISTORY_FILE))]
    pub history: PathBuf,
    /// File with what was learnt of each profile here.
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(STATE_DIR).join("place.json"))]
    pub memo: PathBuf,
    /// How much of the history to use: "7d", "12h".
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = ago)]
    since: u64,
    /// Length of the windows of the history; the prediction holds in nine of ten.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = span)]
    window: Duration,
    /// Predict nothing with less history than this.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = span)]
    least: Duration,
    /// Directory for Prometheus: publish and tend each write a file for node_exporter's textfile collector.
    #[arg(long, value_name = "DIR")]
    metrics: Option<PathBuf>,
}

/// All of it.
pub(super) struct Seen {
    pub profiles: Vec<Profile>,
    pub refused: Vec<Refused>,
    pub facts: Facts,
    pub horizon: Horizon,
    /// Why the node says nothing at all.
    pub none: Option<String>,
}

impl Seen {
    /// What a job of each profile would get, by what was learnt here.
    pub fn offers(&self, memo: &Memo) -> Vec<Offer> {
        let now = Instant::from_nanos(unix_ns());
        offers(&self.profiles, &self.facts, self.horizon, |name| {
            let known = memo.corrections.get(name);
            known.map_or(1.0, |known| known.now(now, &Tending::default()))
        })
    }
}

pub(super) fn read(dir: &Path) -> anyhow::Result<(Vec<Profile>, Vec<Refused>)> {
    profiles::read(dir).with_context(|| format!("cannot read {}", dir.display()))
}

impl Look {
    /// Leaves `text` as `name` for Prometheus, where that is wanted.
    pub fn leave(&self, name: &str, text: &str, said: &Said) {
        let Some(dir) = &self.metrics else {
            return;
        };
        match metrics::leave(dir, name, text) {
            Ok(()) => said.forget(),
            Err(error) => said.say(&format!("no metrics in {}: {error}", dir.display())),
        }
    }

    /// The horizon that was asked for.
    pub fn horizon(&self) -> Horizon {
        horizon(self.window, self.least)
    }

    /// Profiles, and what the history says at this moment.
    pub fn see(&self) -> anyhow::Result<Seen> {
        let (profiles, refused) = read(&self.profiles)?;
        let now = unix_ms();
        let (facts, unread) = match history::read(&self.history) {
            Ok(mut records) => {
                let from = now.saturating_sub(self.since / 1_000_000);
                records.retain(|record| record.span.end_unix_ms > from);
                (Facts::of(&records), None)
            }
            Err(error) => {
                let file = self.history.display();
                (
                    Facts::default(),
                    Some(format!("no history at {file}: {error}")),
                )
            }
        };
        let none = unread.or_else(|| facts.stale(now)).or_else(|| {
            let dir = self.profiles.display();
            profiles.is_empty().then(|| format!("no profile in {dir}"))
        });
        Ok(Seen {
            profiles,
            refused,
            facts,
            horizon: self.horizon(),
            none,
        })
    }
}

/// Says which profiles count for nothing, and why.
pub(super) fn complain(refused: &[Refused]) {
    for why in refused {
        eprintln!(
            "tidegate: {}",
            tidegate_agent::plain::line(&why.to_string())
        );
    }
}
