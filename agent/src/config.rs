//! What an operator can set: file and environment, checked once into a [`Config`] that cannot be wrong.
//!
//! A setting has one dotted path (`gate.cooldown`). The file is read into (path, line, value) rows,
//! the environment (`TIDEGATE_GATE__COOLDOWN=5ms`) adds rows behind them, and `Config::apply` takes
//! each row: the last one wins, a path it does not know is an error that names the path and the line.
//! Durations carry their unit in the value ("2ms"), so that no reader has to guess it.

mod tuning;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use tuning::Tuning;

/// Where the file is unless `--config` says otherwise. It may be absent.
pub const FILE: &str = "/etc/tidegate/agent.toml";

/// Everything the agent can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `node.run_dir`: sockets, lock, journal. A tmpfs.
    pub run_dir: PathBuf,
    /// `[identity]`
    pub identity: Identity,
    /// `[gate]`
    pub gate: Gate,
    /// `channel.level`: one level, or the best that works.
    pub level: LevelChoice,
    /// `channel.unproven`: whose an RM client is when its process shows no control file.
    pub unproven: Unproven,
    /// `channel.prove_every`: how often each RM client is proven again while nothing is disabled; after
    /// every disable it is anyway. Bounds how long a client may be gone before that is noticed.
    pub prove_every: Duration,
    /// `channel.self_test`: how a level is tried before it is used.
    pub self_test: SelfTestKind,
    /// `channel.library`: the preloaded library, for the self-test; else beside the agent or in the
    /// system's library directories.
    pub library: Option<PathBuf>,
    /// `[memory]`
    pub memory: Memory,
    /// `[agent_loss]`
    pub agent_loss: AgentLoss,
    /// `[limits]`
    pub limits: Limits,
    /// Times and counts of all sections.
    pub tuning: Tuning,
    /// `[log]`
    pub log: Log,
}

/// `[identity]`: which process is what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `trust_env_uids`: processes of these users may name either role by `TIDEGATE_ROLE`. A number,
    /// or "self" for the agent's own user.
    pub trust_env_uids: Vec<u32>,
    /// `rules`, in order; the first that matches decides. Nothing matches: ignore.
    pub rules: Vec<Rule>,
}

/// `[[identity.rules]]`. Every condition that is given must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// User of the process.
    pub uid: Option<u32>,
    /// The cgroup is this one or below it.
    pub cgroup: Option<String>,
    /// What such a process is.
    pub role: Role,
}

/// What a process is to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its activity closes the gate.
    Online,
    /// The gate closes on it.
    Offline,
    /// Neither.
    Ignore,
}

/// `[gate]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// `cooldown`: "learn" (2 x the longest decode gap), or a fixed time.
    pub cooldown: Cooldown,
    /// `max_gated`: a job gated this long without a turn is reported. Below vLLM's 300 s.
    pub max_gated: Duration,
    /// `long_gate`: what then.
    pub long_gate: LongGate,
    /// `breathe`: length of one turn under `long_gate = "breathe"`.
    pub breathe: Duration,
    /// `busy_suspect`: an online process busy this long without a launch is named in status.
    pub busy_suspect: Duration,
    /// `suspects`: whether such a process still keeps the gate closed.
    pub suspects: Suspects,
}

/// `[memory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `pool_mib`: memory of each GPU that online and offline share, MiB; by default it is not shared,
    /// and every process keeps what it has.
    pub pool_mib: u32,
    /// `pressure_every`: how often on average an online engine may run out of headroom.
    pub pressure_every: Duration,
    /// `headroom_min_mib`: least memory mapped beyond an online engine's use.
    pub headroom_min_mib: u32,
    /// `headroom_max_mib`: most.
    pub headroom_max_mib: u32,
    /// `step_mib`: what the headroom loses at a time.
    pub step_mib: u32,
    /// `reclaim_deadline`: longest time a reclaim may take before online does without.
    pub reclaim_deadline: Duration,
    /// `restore_interval`: memory is given back to an offline job at most this often.
    pub restore_interval: Duration,
}

/// `gate.cooldown`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooldown {
    /// "learn"
    Learn,
    /// e.g. "5ms"
    Fixed(Duration),
}

/// `gate.long_gate`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongGate {
    /// "hold": stay closed.
    Hold,
    /// "breathe": one turn in the longest idle gap seen.
    Breathe,
}

/// `gate.suspects`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// "busy"
    Busy,
    /// "ignore"
    Ignore,
}

/// A rung of the ladder of channel control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The agent's own RM client names foreign pairs.
    L1,
    /// The agent calls through the owner's control file.
    L2,
    /// The job's own library calls.
    L3,
    /// Launches wait in the library; no channel is touched.
    L5,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::L5 => "L5",
        })
    }
}

/// `channel.level`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChoice {
    /// "auto": the first of L1, L2, L3, L5 that passes the self-test.
    Auto,
    /// This one or none.
    Forced(Level),
}

/// `channel.unproven`. A process in a sandbox that cannot pass files (gVisor) proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unproven {
    /// "refuse": its channels are not managed, its launches wait instead.
    Refuse,
    /// "first_claim": it belongs to the first live process that reported it. Any process may then have
    /// channels disabled that it does not own: only where all processes trust each other.
    FirstClaim,
}

/// `channel.self_test`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTestKind {
    /// "full": on GPU work of a child process, once per boot and driver. Takes a CUDA context on every
    /// GPU for that time.
    Full,
    /// "calls": whether the driver takes the calls.
    Calls,
}

/// `[agent_loss]`: what offline processes do when the agent is gone and does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLoss {
    /// `action`
    pub action: OnAgentLoss,
    /// `max_hold`: after this long they run all the same and say so; "0s": never.
    pub max_hold: Duration,
}

/// `agent_loss.action`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAgentLoss {
    /// "hold": launches wait for an agent.
    Hold,
    /// "run": launches pass.
    Run,
}

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `connections_per_uid` on hook.sock, the agent's own user apart.
    pub connections_per_uid: usize,
    /// `rings_per_second`: a client that rings more often loses its page. A library that keeps its
    /// probing interval cannot exceed 10 000.
    pub rings_per_second: u32,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `format`
    pub format: LogFormat,
    /// `level`: as `tracing` filters read it.
    pub level: String,
}

/// `log.format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// "text"
    Text,
    /// "json", one object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            run_dir: PathBuf::from(tidegate_proto::RUN_DIR),
            identity: Identity::default(),
            gate: Gate {
                cooldown: Cooldown::Learn,
                max_gated: Duration::from_secs(240),
                long_gate: LongGate::Hold,
                breathe: Duration::from_millis(20),
                busy_suspect: Duration::from_secs(5),
                suspects: Suspects::Busy,
            },
            level: LevelChoice::Auto,
            unproven: Unproven::Refuse,
            prove_every: Duration::from_secs(1),
            self_test: SelfTestKind::Full,
            library: None,
            agent_loss: AgentLoss {
                action: OnAgentLoss::Hold,
                max_hold: Duration::ZERO,
            },
            limits: Limits {
                connections_per_uid: 1024,
                rings_per_second: 50_000,
            },
            memory: Memory {
                pool_mib: 0,
                pressure_every: Duration::from_secs(30),
                headroom_min_mib: 64,
                headroom_max_mib: 16 << 10,
                step_mib: 2,
                reclaim_deadline: Duration::from_millis(20),
                restore_interval: Duration::from_secs(1),
            },
            tuning: Tuning::default(),
            log: Log {
                format: LogFormat::Text,
                level: "info".to_owned(),
            },
        }
    }
}

/// Every path there is; arrays of tables without their index.
const PATHS: [&str; 29] = [
    "node.run_dir",
    "identity.trust_env_uids",
    "identity.rules.uid",
    "identity.rules.cgroup",
    "identity.rules.role",
    "gate.cooldown",
    "gate.max_gated",
    "gate.long_gate",
    "gate.breathe",
    "gate.busy_suspect",
    "gate.suspects",
    "channel.level",
    "channel.unproven",
    "channel.prove_every",
    "channel.self_test",
    "channel.library",
    "memory.pool_mib",
    "memory.pressure_every",
    "memory.headroom_min_mib",
    "memory.headroom_max_mib",
    "memory.step_mib",
    "memory.reclaim_deadline",
    "memory.restore_interval",
    "agent_loss.action",
    "agent_loss.max_hold",
    "limits.connections_per_uid",
    "limits.rings_per_second",
    "log.format",
    "log.level",
];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the file.
    File {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// A variable.
    Environment(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
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

/// One setting as found.
#[derive(Debug)]
struct Row {
    key: String,
    origin: Origin,
    value: toml::Value,
}

impl Config {
    /// Reads `file` (which may be absent when `optional`) and the variables of `environment`.
    ///
    /// # Errors
    /// On the first thing that is wrong, with its place.
    pub fn load(
        file: &Path,
        optional: bool,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut rows = match std::fs::read_to_string(file) {
            Ok(text) => rows_of_file(file, &text)?,
            Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => {
                return Err(ConfigError::Read {
                    path: file.to_owned(),
                    source,
                });
            }
        };
        rows.extend(environment.into_iter().filter_map(row_of_variable));
        let mut config = Self::default();
        for row in rows {
            config.apply(&row)?;
            let Tuning {
                cooldown_min,
                cooldown_max,
                ..
            } = config.tuning;
            if row.key.starts_with("gate.cooldown_") && cooldown_min > cooldown_max {
                return Err(row.wrong(format!(
                    "gate.cooldown_min ({cooldown_min:?}) is above gate.cooldown_max ({cooldown_max:?})"
                )));
            }
        }
        Ok(config)
    }

    fn apply(&mut self, row: &Row) -> Result<(), ConfigError> {
        match row.key.as_str() {
            "node.run_dir" => self.run_dir = PathBuf::from(row.text("an absolute path")?),
            "identity.trust_env_uids" => self.identity.trust_env_uids = row.uids()?,
            "identity.rules" => self.identity.rules = row.rules()?,
            "gate.cooldown" => {
                self.gate.cooldown = match row.text("\"learn\" or a time such as \"5ms\"")? {
                    "learn" => Cooldown::Learn,
                    _ => Cooldown::Fixed(row.duration()?),
                }
            }
            "gate.max_gated" => self.gate.max_gated = row.duration()?,
            "gate.long_gate" => {
                self.gate.long_gate =
                    row.one_of(&[("hold", LongGate::Hold), ("breathe", LongGate::Breathe)])?;
            }
            "gate.breathe" => self.gate.breathe = row.duration()?,
            "gate.busy_suspect" => self.gate.busy_suspect = row.duration()?,
            "gate.suspects" => {
                self.gate.suspects =
                    row.one_of(&[("busy", Suspects::Busy), ("ignore", Suspects::Ignore)])?;
            }
            "channel.level" => {
                self.level = row.one_of(&[
                    ("auto", LevelChoice::Auto),
                    ("L1", LevelChoice::Forced(Level::L1)),
                    ("L2", LevelChoice::Forced(Level::L2)),
                    ("L3", LevelChoice::Forced(Level::L3)),
                    ("L5", LevelChoice::Forced(Level::L5)),
                ])?;
            }
            "channel.unproven" => {
                self.unproven = row.one_of(&[
                    ("refuse", Unproven::Refuse),
                    ("first_claim", Unproven::FirstClaim),
                ])?;
            }
            "channel.prove_every" => self.prove_every = row.duration()?,
            "channel.self_test" => {
                self.self_test =
                    row.one_of(&[("full", SelfTestKind::Full), ("calls", SelfTestKind::Calls)])?;
            }
            "channel.library" => self.library = Some(PathBuf::from(row.text("a path")?)),
            "agent_loss.action" => {
                self.agent_loss.action =
                    row.one_of(&[("hold", OnAgentLoss::Hold), ("run", OnAgentLoss::Run)])?;
            }
            "agent_loss.max_hold" => self.agent_loss.max_hold = row.duration()?,
            "limits.connections_per_uid" => self.limits.connections_per_uid = row.count()?,
            "memory.pool_mib" => self.memory.pool_mib = row.count()?,
            "memory.pressure_every" => self.memory.pressure_every = row.duration()?,
            "memory.headroom_min_mib" => self.memory.headroom_min_mib = row.count()?,
            "memory.headroom_max_mib" => self.memory.headroom_max_mib = row.count()?,
            "memory.step_mib" => self.memory.step_mib = row.count()?,
            "memory.reclaim_deadline" => self.memory.reclaim_deadline = row.duration()?,
            "memory.restore_interval" => self.memory.restore_interval = row.duration()?,
            "limits.rings_per_second" => self.limits.rings_per_second = row.count()?,
            "log.format" => {
                self.log.format =
                    row.one_of(&[("text", LogFormat::Text), ("json", LogFormat::Json)])?;
            }
            "log.level" => row.text("a level")?.clone_into(&mut self.log.level),
            _ if tuning::apply(&mut self.tuning, row)? => {}
            _ => return Err(row.unknown(&row.key)),
        }
        Ok(())
    }
}

impl Row {
    fn wrong(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.clone(),
            key: self.key.clone(),
            message: message.into(),
        }
    }

    fn unknown(&self, key: &str) -> ConfigError {
        ConfigError::Unknown {
            origin: self.origin.clone(),
            key: key.to_owned(),
            near: nearest(key),
        }
    }

    fn text(&self, expected: &str) -> Result<&str, ConfigError> {
        self.value
            .as_str()
            .ok_or_else(|| self.wrong(format!("expected {expected}, in quotes")))
    }

    fn duration(&self) -> Result<Duration, ConfigError> {
        let text = self.text("a time such as \"5ms\"")?;
        duration(text).ok_or_else(|| {
            self.wrong(format!(
                "`{text}` is not a time: a number and one of ns, us, ms, s, min"
            ))
        })
    }

    fn count<T: TryFrom<i64>>(&self) -> Result<T, ConfigError> {
        let number = self
            .value
            .as_integer()
            .ok_or_else(|| self.wrong("expected a number"))?;
        T::try_from(number)
            .ok()
            .filter(|_| number > 0)
            .ok_or_else(|| self.wrong("expected a number above 0"))
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let names = || {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        };
        let text = self.value.as_str().ok_or_else(|| self.wrong(names()))?;
        choices
            .iter()
            .find(|(name, _)| *name == text)
            .map(|&(_, choice)| choice)
            .ok_or_else(|| self.wrong(format!("`{text}`: {}", names())))
    }

    fn uids(&self) -> Result<Vec<u32>, ConfigError> {
        let expected = "expected a list of user ids or \"self\"";
        let list = self.value.as_array().ok_or_else(|| self.wrong(expected))?;
        list.iter()
            .map(|value| match value {
                toml::Value::String(text) if text == "self" => {
                    Ok(nix::unistd::Uid::effective().as_raw())
                }
                toml::Value::Integer(uid) => u32::try_from(*uid).map_err(|_| self.wrong(expected)),
                _ => Err(self.wrong(expected)),
            })
            .collect()
    }

    fn rules(&self) -> Result<Vec<Rule>, ConfigError> {
        let expected = "expected [[identity.rules]] tables";
        let list = self.value.as_array().ok_or_else(|| self.wrong(expected))?;
        list.iter()
            .map(|value| self.rule(value.as_table().ok_or_else(|| self.wrong(expected))?))
            .collect()
    }

    fn rule(&self, table: &toml::Table) -> Result<Rule, ConfigError> {
        let mut rule = Rule {
            uid: None,
            cgroup: None,
            role: Role::Ignore,
        };
        let mut role = None;
        for (name, value) in table {
            let inner = Self {
                key: format!("{}.{name}", self.key),
                origin: self.origin.clone(),
                value: value.clone(),
            };
            match name.as_str() {
                "uid" => {
                    let uid = value.as_integer().and_then(|uid| u32::try_from(uid).ok());
                    rule.uid = Some(uid.ok_or_else(|| inner.wrong("expected a user id"))?);
                }
                "cgroup" => {
                    let path = inner.text("a cgroup path")?;
                    if !path.starts_with('/') {
                        return Err(inner.wrong("a cgroup path begins with /"));
                    }
                    rule.cgroup = Some(path.trim_end_matches('/').to_owned());
                }
                "role" => {
                    role = Some(inner.one_of(&[
                        ("online", Role::Online),
                        ("offline", Role::Offline),
                        ("ignore", Role::Ignore),
                    ])?);
                }
                _ => return Err(inner.unknown(&inner.key)),
            }
        }
        rule.role = role.ok_or_else(|| self.wrong("a rule needs a role"))?;
        if rule.uid.is_none() && rule.cgroup.is_none() {
            return Err(self.wrong("a rule needs a uid or a cgroup"));
        }
        Ok(rule)
    }
}

fn rows_of_file(path: &Path, text: &str) -> Result<Vec<Row>, ConfigError> {
    let origin = |at: usize| Origin::File {
        path: path.to_owned(),
        line: 1 + text[..at.min(text.len())].matches('\n').count(),
    };
    let document = toml::de::DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        origin: origin(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    // The values by their plain form, the lines from the spanned one.
    let plain: toml::Table =
        text.parse()
            .map_err(|error: toml::de::Error| ConfigError::Syntax {
                origin: origin(error.span().map_or(0, |span| span.start)),
                message: error.message().to_owned(),
            })?;
    let mut rows = Vec::new();
    for (section, inner) in document.get_ref() {
        let name = section.get_ref().as_ref();
        let line = origin(section.span().start);
        let Some(toml::Value::Table(values)) = plain.get(name) else {
            return Err(ConfigError::Unknown {
                origin: line,
                key: name.to_owned(),
                near: nearest(name),
            });
        };
        if !PATHS
            .iter()
            .any(|path| path.split('.').next() == Some(name))
        {
            return Err(ConfigError::Unknown {
                origin: line,
                key: name.to_owned(),
                near: nearest(name),
            });
        }
        let toml::de::DeValue::Table(spanned) = inner.get_ref() else {
            continue;
        };
        for (key, _) in spanned {
            if let Some(value) = values.get(key.get_ref().as_ref()) {
                rows.push(Row {
                    key: format!("{name}.{}", key.get_ref()),
                    origin: origin(key.span().start),
                    value: value.clone(),
                });
            }
        }
    }
    Ok(rows)
}

fn row_of_variable((name, text): (String, String)) -> Option<Row> {
    let (section, key) = name.strip_prefix("TIDEGATE_")?.split_once("__")?;
    // As a TOML value if it is one (a list, a number, a quoted text), else as the text itself.
    let value = format!("value = {text}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.clone()));
    Some(Row {
        key: format!("{}.{}", section.to_lowercase(), key.to_lowercase()),
        origin: Origin::Environment(name),
        value,
    })
}

/// "2ms" and the like.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim_start() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        _ => return None,
    };
    Some(Duration::from_nanos(number.checked_mul(unit)?))
}

/// The known path that differs least from `key`, if it differs little.
fn nearest(key: &str) -> Option<&'static str> {
    PATHS
        .into_iter()
        .chain(tuning::paths())
        .map(|path| (distance(key, path), path))
        .min()
        .filter(|&(distance, path)| distance <= 1 + path.len() / 4)
        .map(|(_, path)| path)
}

/// Edits that turn `a` into `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
        let dir = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let name = text
            .bytes()
            .fold(7_u64, |sum, b| sum.wrapping_mul(31) + u64::from(b));
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, text).expect("writable");
        let environment = environment
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()));
        Config::load(&file, false, environment).map_err(|error| {
            error
                .to_string()
                .replace(&format!("{}", file.display()), "FILE")
        })
    }

    #[test]
    fn an_absent_file_is_the_default() {
        let config = Config::load(Path::new("/nonexistent/agent.toml"), true, []);
        assert_eq!(config.expect("optional"), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_path_and_line() {
        assert_eq!(
            load("[gate]\n\ncooldwon = \"5ms\"\n", &[]),
            Err("FILE:3: unknown key `gate.cooldwon`; did you mean `gate.cooldown`?".to_owned())
        );
        assert_eq!(
            load("[gates]\n", &[]),
            Err("FILE:1: unknown key `gates`".to_owned())
        );
        assert_eq!(
            load(
                "[identity]\n[[identity.rules]]\nuid = 1\nroll = \"online\"\n",
                &[]
            ),
            Err(
                "FILE:2: unknown key `identity.rules.roll`; did you mean `identity.rules.role`?"
                    .to_owned()
            )
        );
        assert_eq!(
            load("", &[("TIDEGATE_GATE__QUX", "1")]),
            Err("environment variable TIDEGATE_GATE__QUX: unknown key `gate.qux`".to_owned())
        );
    }

    #[test]
    fn a_value_without_its_unit_is_refused() {
        assert_eq!(
            load("[gate]\nmax_gated = \"240\"\n", &[]),
            Err(
                "FILE:2: `gate.max_gated`: `240` is not a time: a number and one of ns, us, ms, s, min"
                    .to_owned()
            )
        );
        assert_eq!(
            load("[gate]\nmax_gated = 240\n", &[]),
            Err("FILE:2: `gate.max_gated`: expected a time such as \"5ms\", in quotes".to_owned())
        );
    }

    #[test]
    fn broken_toml_is_refused_with_its_line() {
        let error = load("[gate]\ncooldown = \n", &[]).expect_err("not TOML");
        assert!(error.starts_with("FILE:2: "), "{error}");
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let config = load(
            "[gate]\ncooldown = \"5ms\"\n[identity]\ntrust_env_uids = [7]\n",
            &[
                ("TIDEGATE_GATE__COOLDOWN", "9ms"),
                ("TIDEGATE_CHANNEL__LEVEL", "L3"),
                ("TIDEGATE_IDENTITY__TRUST_ENV_UIDS", "[8, \"self\"]"),
                ("TIDEGATE_ROLE", "online"),
            ],
        )
        .expect("valid");
        assert_eq!(
            config.gate.cooldown,
            Cooldown::Fixed(Duration::from_millis(9))
        );
        assert_eq!(config.level, LevelChoice::Forced(Level::L3));
        let own = nix::unistd::Uid::effective().as_raw();
        assert_eq!(config.identity.trust_env_uids, [8, own]);
    }

    #[test]
    fn rules_keep_their_order_and_need_a_condition_and_a_role() {
        let text = "[[identity.rules]]\ncgroup = \"/online.slice/\"\nrole = \"online\"\n\
                    [[identity.rules]]\nuid = 1000\nrole = \"offline\"\n";
        let rules = load(text, &[]).expect("valid").identity.rules;
        assert_eq!(rules[0].cgroup.as_deref(), Some("/online.slice"));
        assert_eq!((rules[1].uid, rules[1].role), (Some(1000), Role::Offline));
        assert!(load("[[identity.rules]]\nrole = \"online\"\n", &[]).is_err());
        assert!(load("[[identity.rules]]\nuid = 1\n", &[]).is_err());
    }

    #[test]
    fn every_documented_path_is_known() {
        for path in PATHS.into_iter().chain(tuning::paths()) {
            let (section, key) = path.rsplit_once('.').expect("dotted");
            let text = if section == "identity.rules" {
                format!("[[{section}]]\n{key} = false\n")
            } else {
                format!("[{section}]\n{key} = false\n")
            };
            let error = load(&text, &[]).expect_err("no setting is a boolean");
            assert!(!error.contains("unknown key"), "{error}");
        }
    }
}
