//! From the layers to a checked configuration.

use super::nearest::nearest;
use super::origin::{ConfigError, Origin};
use super::sections::Config;
use super::settings::{Applies, SETTINGS, Setting, paths, setting};
use super::value::{Item, Row};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Where the file is unless `--config` says otherwise. It may be absent.
pub const FILE: &str = "/etc/tidegate/agent.toml";

/// The layers a configuration is made of, lowest first. Kept, so that it can be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The file. Files in the directory beside it that has `.d` behind its name and `.toml` behind
    /// theirs lie over it, in the order of their names.
    pub file: PathBuf,
    /// Whether the file may be absent.
    pub optional: bool,
    /// Variables; others than `TIDEGATE_SECTION__KEY` are passed over.
    pub environment: Vec<(String, String)>,
    /// Flags: how each is called, its setting and its value.
    pub flags: Vec<(String, String, String)>,
    /// What was set on the running agent: setting, value and by whom.
    pub set: Vec<(String, String, String)>,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            file: PathBuf::from(FILE),
            optional: true,
            environment: Vec::new(),
            flags: Vec::new(),
            set: Vec::new(),
        }
    }
}

/// A configuration, and where each of its values came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    origins: BTreeMap<&'static str, Origin>,
}

/// A setting whose value differs between two configurations.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which.
    pub setting: &'static Setting,
    /// Before, as TOML.
    pub old: String,
    /// After.
    pub new: String,
    /// Where the new value came from.
    pub origin: Origin,
}

impl From<Config> for Loaded {
    fn from(config: Config) -> Self {
        Self {
            config,
            origins: BTreeMap::new(),
        }
    }
}

impl Loaded {
    /// Where the value of `setting` came from.
    #[must_use]
    pub fn origin(&self, setting: &Setting) -> Origin {
        self.origins.get(setting.path).cloned().unwrap_or_default()
    }

    /// Settings that count for nothing because another one does, each with where both came from.
    ///
    /// `memory.pressure_every` overrides `[slo]` wherever somebody set it, also to its default.
    #[must_use]
    pub fn overridden(&self) -> Vec<String> {
        let slo = &self.config.slo;
        let of = |path: &'static str, is_set: bool| {
            let origin = self.origins.get(path).filter(|_| is_set)?;
            Some(format!("`{path}` ({origin})"))
        };
        let asked = [
            of("slo.ttft", slo.ttft.is_some()),
            of("slo.tpot", slo.tpot.is_some()),
        ];
        let asked: Vec<_> = asked.into_iter().flatten().collect();
        match self.origins.get("memory.pressure_every") {
            Some(origin) if !asked.is_empty() => vec![format!(
                "{} has no effect: `memory.pressure_every` ({origin}) overrides it; remove one of them",
                asked.join(" and ")
            )],
            _ => Vec::new(),
        }
    }

    /// Whether somebody set `memory.pressure_every`, be it to its default.
    #[must_use]
    pub(super) fn chose_pressure(&self) -> bool {
        self.origins.contains_key("memory.pressure_every")
    }

    /// With what takes a restart as it was in `old`.
    #[must_use]
    pub fn keeping(&self, old: &Self) -> Self {
        let mut kept = self.clone();
        for setting in SETTINGS.iter().filter(|s| s.applies == Applies::Restart) {
            let (before, origin) = (setting.show(&old.config), old.origin(setting));
            if before == setting.show(&kept.config) {
                continue;
            }
            let row = Row::of_text(setting.path.to_owned(), &before, origin.clone());
            // What was taken once is taken again.
            if (setting.take)(&mut kept.config, &row).is_ok() {
                kept.origins.insert(setting.path, origin);
            }
        }
        kept
    }

    /// What differs in `new`, in the order of [`SETTINGS`].
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let change = |setting: &'static Setting| {
            let (before, after) = (setting.show(&self.config), setting.show(&new.config));
            (before != after).then(|| Change {
                setting,
                old: before,
                new: after,
                origin: new.origin(setting),
            })
        };
        SETTINGS.iter().filter_map(change).collect()
    }
}

impl Sources {
    /// `file` and nothing else.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            optional: false,
            ..Self::default()
        }
    }

    /// The directory of drop-ins.
    #[must_use]
    pub fn drop_ins(&self) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".d");
        PathBuf::from(name)
    }

    /// The files that are read, in order.
    ///
    /// # Errors
    /// When the directory of drop-ins is there and cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>, ConfigError> {
        let directory = self.drop_ins();
        let read = |source| ConfigError::Read {
            path: directory.clone(),
            source,
        };
        let mut files = match std::fs::read_dir(&directory) {
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<io::Result<Vec<_>>>()
                .map_err(read)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(read(error)),
        };
        files.retain(|path| path.extension().is_some_and(|name| name == "toml"));
        files.sort();
        files.insert(0, self.file.clone());
        Ok(files)
    }

    /// Reads every layer and checks what comes out.
    ///
    /// # Errors
    /// On the first thing that is wrong, with its place.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        self.take().map_err(naming_nearest)
    }

    fn take(&self) -> Result<Loaded, ConfigError> {
        let mut loaded = Loaded::default();
        let rows = self.rows()?;
        for row in &rows {
            let setting = setting(&row.key).ok_or_else(|| row.unknown())?;
            (setting.take)(&mut loaded.config, row)?;
            loaded.origins.insert(setting.path, row.origin.clone());
        }
        loaded.check(&rows)?;
        Ok(loaded)
    }

    fn rows(&self) -> Result<Vec<Row>, ConfigError> {
        let mut rows = Vec::new();
        for (index, path) in self.files()?.into_iter().enumerate() {
            match std::fs::read_to_string(&path) {
                Ok(text) => rows.extend(rows_of_file(&path, &text)?),
                Err(error)
                    if index == 0 && self.optional && error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(ConfigError::Read { path, source }),
            }
        }
        rows.extend(self.environment.iter().filter_map(row_of_variable));
        let row = |key: &String, value: &str, origin| Row::of_text(key.clone(), value, origin);
        let flags = self.flags.iter();
        rows.extend(flags.map(|(flag, key, value)| row(key, value, Origin::Flag(flag.clone()))));
        let set = self.set.iter();
        rows.extend(set.map(|(key, value, who)| row(key, value, Origin::Set(who.clone()))));
        Ok(rows)
    }
}

impl Config {
    /// Reads `file` (which may be absent when `optional`), its drop-ins and the variables of
    /// `environment`.
    ///
    /// # Errors
    /// On the first thing that is wrong, with its place.
    pub fn load(
        file: &Path,
        optional: bool,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let sources = Sources {
            optional,
            environment: environment.into_iter().collect(),
            ..Sources::of(file)
        };
        Ok(sources.load()?.config)
    }
}

/// An unknown key with the known one that it resembles.
fn naming_nearest(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Unknown { origin, key, .. } => ConfigError::Unknown {
            near: nearest(&key, paths()),
            origin,
            key,
        },
        other => other,
    }
}

/// The variables of this process that are about settings.
#[must_use]
pub fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        let name = name
            .into_string()
            .ok()
            .filter(|name| name.starts_with("TIDEGATE_"))?;
        Some((name, value.to_string_lossy().into_owned()))
    };
    std::env::vars_os().filter_map(text).collect()
}

impl Loaded {
    /// What two settings ask of each other, once all of `rows` are taken: the first of two may
    /// contradict the default that the second replaces.
    fn check(&self, rows: &[Row]) -> Result<(), ConfigError> {
        for (low, high) in [
            ("gate.cooldown_min", "gate.cooldown_max"),
            ("memory.headroom_min", "memory.headroom_max"),
        ] {
            let config = &self.config;
            let above = match low {
                "gate.cooldown_min" => config.tuning.cooldown_min > config.tuning.cooldown_max,
                _ => config.memory.headroom_min > config.memory.headroom_max,
            };
            let mut said = rows.iter().rev();
            if above && let Some(row) = said.find(|row| row.key == low || row.key == high) {
                let value = |path| setting(path).map_or_else(String::new, |s| s.show(config));
                return Err(row.wrong(format!(
                    "{low} ({}) is above {high} ({})",
                    value(low),
                    value(high)
                )));
            }
        }
        self.check_lease(rows)
    }

    /// A promise is of both times, and what a lease may overrun is not longer than what it is kept for.
    fn check_lease(&self, rows: &[Row]) -> Result<(), ConfigError> {
        let lease = &self.config.lease;
        let last = |keys: &[&str]| {
            let mut said = rows.iter().rev();
            said.find(|row| keys.contains(&row.key.as_str()))
        };
        let value = |path| setting(path).map_or_else(String::new, |s| s.show(&self.config));
        if lease.tpot.is_some()
            && lease.ttft.is_none()
            && let Some(row) = last(&["lease.tpot", "lease.ttft"])
        {
            return Err(row.wrong(format!(
                "lease.tpot is {} and lease.ttft is {}: leases need both; set lease.ttft to the time to first token \
                 that online promises, or lease.tpot to \"off\"",
                value("lease.tpot"),
                value("lease.ttft"),
            )));
        }
        if lease.tpot.is_some_and(|tpot| lease.grace > tpot)
            && let Some(row) = last(&["lease.tpot", "lease.grace"])
        {
            return Err(row.wrong(format!(
                "lease.grace ({}) is above lease.tpot ({}): one lease that overruns would break the promise",
                value("lease.grace"),
                value("lease.tpot"),
            )));
        }
        Ok(())
    }
}

fn rows_of_file(path: &Path, text: &str) -> Result<Vec<Row>, ConfigError> {
    let origin = |at: usize| Origin::File {
        path: path.to_owned(),
        line: 1 + text.as_bytes()[..at.min(text.len())]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count(),
    };
    let syntax = |error: toml::de::Error| ConfigError::Syntax {
        origin: origin(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    };
    let document = toml::de::DeTable::parse(text).map_err(syntax)?;
    // The values by their plain form, the lines from the spanned one.
    let plain: toml::Table = text.parse().map_err(syntax)?;
    let mut rows = Vec::new();
    for (section, inner) in document.get_ref() {
        let name = section.get_ref().as_ref();
        let is_section = |setting: &Setting| setting.path.split('.').next() == Some(name);
        let (toml::de::DeValue::Table(spanned), Some(toml::Value::Table(values))) =
            (inner.get_ref(), plain.get(name))
        else {
            return Err(ConfigError::unknown(origin(section.span().start), name));
        };
        if !SETTINGS.iter().any(is_section) {
            return Err(ConfigError::unknown(origin(section.span().start), name));
        }
        for (key, value) in spanned {
            let Some(plain) = values.get(key.get_ref().as_ref()) else {
                continue;
            };
            rows.push(Row {
                key: format!("{name}.{}", key.get_ref()),
                origin: origin(key.span().start),
                value: plain.clone(),
                items: items(value.get_ref(), &origin),
            });
        }
    }
    Ok(rows)
}

/// Where the tables of an array, or of a table, stand.
fn items(value: &toml::de::DeValue<'_>, origin: &impl Fn(usize) -> Origin) -> Vec<Item> {
    let item = |name: &str, at: usize, value: &toml::de::DeValue<'_>| Item {
        name: name.to_owned(),
        origin: origin(at),
        keys: match value {
            toml::de::DeValue::Table(table) => table
                .iter()
                .map(|(key, _)| (key.get_ref().to_string(), origin(key.span().start)))
                .collect(),
            _ => BTreeMap::new(),
        },
    };
    match value {
        toml::de::DeValue::Array(list) => list
            .iter()
            .map(|value| item("", value.span().start, value.get_ref()))
            .collect(),
        toml::de::DeValue::Table(table) => table
            .iter()
            .map(|(key, value)| item(key.get_ref(), key.span().start, value.get_ref()))
            .collect(),
        _ => Vec::new(),
    }
}

fn row_of_variable((name, text): &(String, String)) -> Option<Row> {
    let (section, key) = name.strip_prefix("TIDEGATE_")?.split_once("__")?;
    let path = format!("{}.{}", section.to_lowercase(), key.to_lowercase());
    Some(Row::of_text(path, text, Origin::Environment(name.clone())))
}

#[cfg(test)]
mod tests;
