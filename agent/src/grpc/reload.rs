//! The configuration in force, and the way to another while the agent runs.
//!
//! There is one way, for SIGHUP, `Control.Reload` and `Control.Set` alike: read all layers again, check
//! the whole, and only then put it in force. What is refused changes nothing and is kept as the reason.
//! What counts at once goes to the control thread, the log and the sockets; what counts for newcomers
//! is read by them; of what takes a restart the old value stays in force and is named as pending.

use crate::causes::with_causes;
use crate::config::{Applies, Change, Level, Loaded, SETTINGS, Sources, setting, tunables};
use crate::grpc::crowd::Crowd;
use crate::host::logs::LogLevel;
use crate::host::notify::Notifier;
use crate::inbox::{Input, Mailbox, NodeInput};
use crate::watch::metrics::serve::Configured;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_proto::v1;
use tokio::sync::watch;

/// The configuration in force.
#[derive(Debug)]
pub struct InForce {
    state: Mutex<State>,
    running_tx: watch::Sender<Arc<Loaded>>,
    /// Chosen at the start, and kept.
    level: Level,
    mailbox: Mailbox,
    log: LogLevel,
    crowd: Arc<Crowd>,
    notifier: Arc<Notifier>,
}

#[derive(Debug)]
struct State {
    sources: Sources,
    /// In force.
    running: Arc<Loaded>,
    /// As the layers say; differs in what takes a restart.
    read: Arc<Loaded>,
    /// Why the layers were refused when they were read last; empty: they were not.
    error: String,
}

/// Why a setting cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Unknown, or a value that does not fit.
    #[error("{0}")]
    Refused(String),
    /// Not on a running agent.
    #[error("{0}")]
    NotAtRunTime(String),
}

impl InForce {
    /// `loaded` from `sources`, on an agent that has begun with it.
    #[must_use]
    pub fn new(
        sources: Sources,
        loaded: Loaded,
        level: Level,
        mailbox: Mailbox,
        log: LogLevel,
        crowd: Arc<Crowd>,
        notifier: Arc<Notifier>,
    ) -> Self {
        let loaded = Arc::new(loaded);
        Self {
            running_tx: watch::Sender::new(Arc::clone(&loaded)),
            state: Mutex::new(State {
                sources,
                running: Arc::clone(&loaded),
                read: loaded,
                error: String::new(),
            }),
            level,
            mailbox,
            log,
            crowd,
            notifier,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force whenever it is looked at.
    #[must_use]
    pub fn running(&self) -> watch::Receiver<Arc<Loaded>> {
        self.running_tx.subscribe()
    }

    /// What is in force at this moment.
    #[must_use]
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.lock().running)
    }

    /// Reads every layer again; what changed, what takes a restart too.
    ///
    /// # Errors
    /// Why the configuration is refused; the old one stays in force.
    pub fn reload(&self, who: &str) -> Result<Vec<Change>, String> {
        self.notifier.reloading();
        let mut state = self.lock();
        let sources = state.sources.clone();
        let changed = self.take(&mut state, sources);
        self.notifier.ready(if changed.is_ok() {
            "serving"
        } else {
            "serving; the configuration was refused, the old one is in force"
        });
        match &changed {
            Ok(changes) => {
                state.error.clear();
                self.audit("reloaded", format!("{}: by {who}", said(changes)));
            }
            Err(error) => {
                tracing::error!(
                    "the configuration is refused, the old one stays in force: {error}"
                );
                state.error.clone_from(error);
                self.audit("config_refused", error.clone());
            }
        }
        changed
    }

    /// Sets `path` to `value` on the running agent, or takes back what was set (None); what changed.
    ///
    /// # Errors
    /// When there is no such setting, the value does not fit, or it takes a restart.
    pub fn set(&self, path: &str, value: Option<&str>, who: &str) -> Result<Vec<Change>, SetError> {
        let known = setting(path);
        if let Some(setting) = known.filter(|setting| !setting.can_be_set()) {
            let why = match setting.applies {
                Applies::Restart => "it counts from the agent's next start; write it into its file",
                _ => "it is decided by the agent's files alone; write it there and reload",
            };
            return Err(SetError::NotAtRunTime(format!(
                "`{path}` cannot be set: {why}"
            )));
        }
        let mut state = self.lock();
        let mut sources = state.sources.clone();
        sources.set.retain(|(key, _, _)| key != path);
        if let Some(value) = value {
            let row = (path.to_owned(), value.to_owned(), who.to_owned());
            sources.set.push(row);
        } else if known.is_none() || sources.set.len() == state.sources.set.len() {
            return Err(SetError::Refused(format!("`{path}` was not set")));
        }
        let changes = self.take(&mut state, sources).map_err(SetError::Refused)?;
        let value = value.map_or_else(|| "taken back".to_owned(), |value| format!("= {value}"));
        self.audit("set", format!("{path} {value}: by {who}"));
        Ok(changes)
    }

    /// Puts what `sources` say in force.
    fn take(&self, state: &mut State, sources: Sources) -> Result<Vec<Change>, String> {
        let read = sources.load().map_err(|error| with_causes(&error))?;
        let running = read.keeping(&state.running);
        let changes = state.running.changes(&read);
        self.apply(&state.running, &running);
        state.sources = sources;
        state.running = Arc::new(running);
        self.running_tx.send_replace(Arc::clone(&state.running));
        state.read = Arc::new(read);
        Ok(changes)
    }

    fn apply(&self, old: &Loaded, new: &Loaded) {
        if old.config.log.level != new.config.log.level
            && let Err(error) = self.log.configure(&new.config.log.level)
        {
            tracing::error!("cannot change the log level: {error}");
        }
        for note in new.overridden() {
            tracing::warn!("configuration: {note}");
        }
        self.crowd.set_limit(new.config.limits.connections_per_uid);
        let told = tunables(new, self.level);
        if told != tunables(old, self.level) {
            self.mailbox.put(NodeInput::Configure(Box::new(told)));
        }
    }

    /// Tells of something an operator did.
    pub fn audit(&self, kind: &'static str, text: String) {
        self.mailbox.put(Input::Audit(kind, text));
    }

    /// Every setting, for people.
    #[must_use]
    pub fn settings(&self) -> v1::GetConfigResponse {
        let state = self.lock();
        let rows = SETTINGS.iter().map(|setting| {
            let value = setting.show(&state.running.config);
            let pending = setting.show(&state.read.config);
            v1::Setting {
                path: setting.path.to_owned(),
                pending: if pending == value {
                    String::new()
                } else {
                    pending
                },
                value,
                origin: state.running.origin(setting).to_string(),
                applies: applies(setting.applies).into(),
            }
        });
        v1::GetConfigResponse {
            settings: rows.collect(),
            error: state.error.clone(),
        }
    }

    /// The file that is read, for people; a relative one as seen from where the agent runs.
    #[must_use]
    pub fn file(&self) -> String {
        let file = self.lock().sources.file.clone();
        std::path::absolute(&file)
            .unwrap_or(file)
            .display()
            .to_string()
    }
}

impl Configured for InForce {
    fn standing(&self) -> (String, Vec<String>) {
        let state = self.lock();
        let pending = state.running.changes(&state.read).into_iter();
        let pending = pending.map(|change| change.setting.path.to_owned());
        (state.error.clone(), pending.collect())
    }
}

/// As the protocol says it.
const fn applies(applies: Applies) -> v1::SettingApplies {
    match applies {
        Applies::Now => v1::SettingApplies::Now,
        Applies::NextAttach => v1::SettingApplies::NextAttach,
        Applies::Restart => v1::SettingApplies::Restart,
    }
}

/// A change as the protocol says it.
#[must_use]
pub fn change(change: &Change) -> v1::SettingChange {
    v1::SettingChange {
        path: change.setting.path.to_owned(),
        old_value: change.old.clone(),
        new_value: change.new.clone(),
        origin: change.origin.to_string(),
        applies: applies(change.setting.applies).into(),
    }
}

fn said(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nothing changed".to_owned();
    }
    let each = changes.iter().map(|change| {
        let waits = if change.setting.applies == Applies::Restart {
            " (after a restart)"
        } else {
            ""
        };
        format!("{} = {}{waits}", change.setting.path, change.new)
    });
    each.collect::<Vec<_>>().join(", ")
}
