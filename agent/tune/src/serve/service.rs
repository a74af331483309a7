//! What a server knows.

use super::jobs::Jobs;
use super::keys::Keys;
use super::link::Link;
use super::quota::{Over, Spent};
use super::shared::{complain, lock};
use super::store::Store;
use crate::clock::unix_seconds;
use crate::files::{self, FileError};
use std::path::PathBuf;
use std::sync::Mutex;

/// A server.
#[derive(Debug)]
pub struct Service {
    /// Who may use it.
    pub keys: Keys,
    /// The way to the engine.
    pub link: Link,
    /// Uploaded files.
    pub store: Store,
    /// The jobs.
    pub jobs: Jobs,
    spent: Mutex<Spent>,
    state: PathBuf,
}

impl Service {
    /// What a server before this one left, and the way to the engine.
    pub fn open(keys: Keys, engine: PathBuf, state: PathBuf) -> Result<Self, FileError> {
        files::make_folder(&state)?;
        let spent = files::read_json(&state.join("spent.json"))?.unwrap_or_default();
        Ok(Self {
            keys,
            link: Link::new(engine),
            store: Store::open(&state.join("files"))?,
            jobs: Jobs::open(&state.join("jobs"))?,
            spent: Mutex::new(spent),
            state,
        })
    }

    /// Whether an owner may learn more today.
    pub fn quota(&self, owner: &str) -> Result<(), Over> {
        let limit = self
            .keys
            .named(owner)
            .and_then(|owner| owner.tokens_per_day);
        lock(&self.spent).check(owner, limit, unix_seconds())
    }

    /// Counts what an owner learnt.
    pub fn spend(&self, owner: &str, tokens: u64) {
        let spent = {
            let mut spent = lock(&self.spent);
            spent.add(owner, tokens, unix_seconds());
            spent.clone()
        };
        complain(files::write_json(&self.state.join("spent.json"), &spent));
    }
}
