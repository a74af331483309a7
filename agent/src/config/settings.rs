//! Every setting, one row each: its path, when a change of it takes effect, how it is parsed, and how it is shown.
//! Nothing about a setting is written down twice.

use super::log_filter::log_filter;
use super::origin::{ConfigError, Origin};
use super::rules::show_rule;
use super::sections::{
    Config, Cooldown, FairMode, LevelChoice, LogFormat, LongGate, MethodChoice, OnAgentLoss,
    SelfTestKind, Suspects, Unproven,
};
use super::tuning::ms;
use super::users::show_users;
use super::value::{
    Named, Row, quoted, quoted_name, show_bytes, show_duration, show_part, show_rise,
};
use super::watching;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_node::kinds::{Level, Method};

/// From when a change of a setting counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// At once.
    Now,
    /// For processes that attach from then on.
    NextAttach,
    /// When the agent starts anew.
    Restart,
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Section and name.
    pub path: &'static str,
    /// From when a change of it counts.
    pub applies: Applies,
    pub(super) take: fn(&mut Config, &Row) -> Result<(), ConfigError>,
    show: fn(&Config) -> String,
}

impl Setting {
    /// Its value in `config`, as TOML.
    #[must_use]
    pub fn show(&self, config: &Config) -> String {
        (self.show)(config)
    }

    /// Whether it may be changed on the running agent, beside its files. Who is what may not, nor what may be done to
    /// online for a measurement: whoever may steer the node may not decide whom it serves.
    #[must_use]
    pub fn can_be_set(&self) -> bool {
        let of_files = ["identity.", "bench."];
        self.applies != Applies::Restart && !of_files.iter().any(|own| self.path.starts_with(own))
    }
}

/// The setting of that path.
#[must_use]
pub fn setting(path: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.path == path)
}

/// Paths of the settings, and of the keys of a rule.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    let rules = [
        "identity.rules.uid",
        "identity.rules.gid",
        "identity.rules.cgroup",
        "identity.rules.unit",
        "identity.rules.qos",
        "identity.rules.pod",
        "identity.rules.slurm_partition",
        "identity.rules.labels",
        "identity.rules.role",
        "identity.rules.weight",
        "identity.rules.class",
        "identity.rules.join",
    ];
    SETTINGS.iter().map(|setting| setting.path).chain(rules)
}

const HOUR: Duration = Duration::from_secs(3_600);
/// Any time will do.
const MAX: Duration = Duration::from_nanos(u64::MAX);

macro_rules! setting {
    ($path:literal, $applies:ident, time($($at:ident).+, $shortest:expr, $longest:expr)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.within($shortest, $longest)?;
                Ok(())
            },
            show: |config| quoted(&show_duration(config.$($at).+)),
        }
    };
    ($path:literal, $applies:ident, size($($at:ident).+)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.bytes()?;
                Ok(())
            },
            show: |config| quoted(&show_bytes(config.$($at).+)),
        }
    };
    ($path:literal, $applies:ident, rise($($at:ident).+)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.rise()?;
                Ok(())
            },
            show: |config| quoted(&show_rise(config.$($at).+)),
        }
    };
    ($path:literal, $applies:ident, promised($($at:ident).+, $shortest:expr, $longest:expr)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.promised($shortest, $longest)?;
                Ok(())
            },
            show: |config| quoted(&config.$($at).+.map_or_else(|| "off".to_owned(), show_duration)),
        }
    };
    ($path:literal, $applies:ident, count($($at:ident).+)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.count()?;
                Ok(())
            },
            show: |config| config.$($at).+.to_string(),
        }
    };
    ($path:literal, $applies:ident, named($($at:ident).+)) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: |config, row| {
                config.$($at).+ = row.named()?;
                Ok(())
            },
            show: |config| quoted_name(config.$($at).+),
        }
    };
    ($path:literal, $applies:ident, $take:expr, $show:expr) => {
        Setting {
            path: $path,
            applies: Applies::$applies,
            take: $take,
            show: $show,
        }
    };
}

/// Every setting, in the order of its sections.
pub static SETTINGS: [Setting; 58] = [
    setting!(
        "node.run_dir",
        Restart,
        |config, row| {
            config.run_dir = PathBuf::from(row.path()?);
            Ok(())
        },
        |config| quoted(&config.run_dir.to_string_lossy())
    ),
    setting!(
        "identity.trust_env_uids",
        NextAttach,
        |config, row| {
            config.identity.trust_env_uids = row.uids()?;
            Ok(())
        },
        |config| format!("{:?}", config.identity.trust_env_uids)
    ),
    setting!(
        "identity.labels",
        NextAttach,
        |config, row| {
            config.identity.labels = PathBuf::from(row.path()?);
            Ok(())
        },
        |config| quoted(&config.identity.labels.to_string_lossy())
    ),
    setting!(
        "identity.pod_logs",
        NextAttach,
        |config, row| {
            config.identity.pod_logs = PathBuf::from(row.path()?);
            Ok(())
        },
        |config| quoted(&config.identity.pod_logs.to_string_lossy())
    ),
    setting!(
        "identity.rules",
        NextAttach,
        |config, row| {
            // Those of the files stand one behind the other; any other layer replaces them all.
            if !matches!(row.origin, Origin::File { .. }) {
                config.identity.rules.clear();
            }
            config.identity.rules.extend(row.rules()?);
            Ok(())
        },
        |config| {
            let rules: Vec<_> = config.identity.rules.iter().map(show_rule).collect();
            format!("[{}]", rules.join(", "))
        }
    ),
    setting!(
        "gate.cooldown",
        Now,
        |config, row| {
            config.gate.cooldown = match row.text("\"learn\" or a time such as \"5ms\"")? {
                "learn" => Cooldown::Learn,
                _ => Cooldown::Fixed(row.duration()?),
            };
            Ok(())
        },
        |config| match config.gate.cooldown {
            Cooldown::Learn => quoted("learn"),
            Cooldown::Fixed(time) => quoted(&show_duration(time)),
        }
    ),
    setting!(
        "gate.cooldown_min",
        Now,
        time(tuning.cooldown_min, Duration::ZERO, ms(10_000))
    ),
    setting!(
        "gate.cooldown_max",
        Now,
        time(tuning.cooldown_max, ms(1), ms(60_000))
    ),
    setting!(
        "gate.cooldown_window",
        Now,
        time(tuning.cooldown_window, ms(1_000), HOUR)
    ),
    setting!(
        "gate.max_gated",
        Now,
        time(gate.max_gated, Duration::ZERO, MAX)
    ),
    setting!("gate.long_gate", Now, named(gate.long_gate)),
    setting!("gate.breathe", Now, time(gate.breathe, Duration::ZERO, MAX)),
    setting!(
        "gate.busy_suspect",
        NextAttach,
        time(gate.busy_suspect, Duration::ZERO, MAX)
    ),
    setting!("gate.suspects", Now, named(gate.suspects)),
    // A prober's round takes up to a millisecond, and its process may be kept from running.
    setting!(
        "gate.frozen_after",
        Now,
        time(tuning.frozen_after, ms(200), HOUR)
    ),
    setting!(
        "gate.start_hold",
        Restart,
        time(tuning.start_hold, Duration::ZERO, ms(60_000))
    ),
    // What the library can keep.
    setting!(
        "gate.probe_interval",
        NextAttach,
        time(tuning.probe_interval, Duration::from_micros(200), ms(1))
    ),
    setting!("channel.level", Restart, named(level)),
    setting!("channel.method", Restart, named(method)),
    setting!("channel.unproven", Restart, named(unproven)),
    setting!(
        "channel.prove_every",
        Now,
        time(prove_every, Duration::ZERO, MAX)
    ),
    setting!("channel.self_test", Restart, named(self_test)),
    setting!(
        "channel.library",
        Restart,
        |config, row| {
            let path = row.text("a path")?;
            config.library = Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
        |config| quoted(
            &config
                .library
                .as_deref()
                .unwrap_or_else(|| "".as_ref())
                .to_string_lossy()
        )
    ),
    setting!(
        "channel.stall_after",
        Now,
        time(tuning.stall_after, ms(5), ms(10_000))
    ),
    setting!(
        "channel.answer_within",
        Now,
        time(tuning.answer_within, ms(5), ms(10_000))
    ),
    // A program sits in the driver meanwhile.
    setting!(
        "channel.schedule_hold",
        NextAttach,
        time(tuning.schedule_hold, ms(10), ms(10_000))
    ),
    setting!(
        "channel.cpu_latency",
        Restart,
        promised(tuning.cpu_latency, Duration::ZERO, ms(2))
    ),
    setting!(
        "channel.disable_retries",
        Now,
        count(tuning.disable_retries)
    ),
    setting!("fair.mode", Now, named(fair.mode)),
    // A swap takes about 0.6 ms of it on the virtual GPU.
    setting!("fair.turn", Now, time(fair.turn, ms(10), ms(10_000))),
    setting!("fair.slots", Now, count(fair.slots)),
    setting!(
        "fair.users",
        Now,
        |config, row| {
            let users = row.users()?;
            // Those of the files lie one over the other; any other layer replaces them all.
            if !matches!(row.origin, Origin::File { .. }) {
                config.fair.users.clear();
            }
            config.fair.users.extend(users);
            Ok(())
        },
        |config| show_users(&config.fair.users)
    ),
    setting!("slo.ttft", Now, rise(slo.ttft)),
    setting!("slo.tpot", Now, rise(slo.tpot)),
    // An iteration of a small model takes a millisecond.
    setting!("lease.tpot", Now, promised(lease.tpot, ms(1), ms(10_000))),
    setting!("lease.ttft", Now, promised(lease.ttft, ms(1), HOUR)),
    setting!(
        "lease.margin",
        Now,
        |config, row| {
            config.lease.margin = row.part()?;
            Ok(())
        },
        |config| quoted(&show_part(config.lease.margin))
    ),
    // A trainer hears of its lease and answers within a tenth of that on an idle core.
    setting!(
        "lease.grace",
        Now,
        time(lease.grace, Duration::from_micros(100), ms(1_000))
    ),
    // Online's users pay for it meanwhile.
    setting!("bench.ungated", Now, time(ungated, Duration::ZERO, HOUR)),
    setting!("memory.pool", Restart, size(memory.pool)),
    setting!(
        "memory.pressure_every",
        Now,
        time(memory.pressure_every, Duration::ZERO, MAX)
    ),
    setting!("memory.headroom_min", Now, size(memory.headroom_min)),
    setting!("memory.headroom_max", Now, size(memory.headroom_max)),
    setting!("memory.step", Now, size(memory.step)),
    setting!(
        "memory.reclaim_deadline",
        Now,
        time(memory.reclaim_deadline, Duration::ZERO, MAX)
    ),
    setting!(
        "memory.restore_interval",
        Now,
        time(memory.restore_interval, Duration::ZERO, MAX)
    ),
    setting!("agent_loss.action", NextAttach, named(agent_loss.action)),
    setting!(
        "agent_loss.max_hold",
        NextAttach,
        time(agent_loss.max_hold, Duration::ZERO, MAX)
    ),
    setting!(
        "limits.connections_per_uid",
        Now,
        count(limits.connections_per_uid)
    ),
    setting!(
        "limits.rings_per_second",
        Now,
        count(limits.rings_per_second)
    ),
    setting!(
        "limits.messages_per_second",
        NextAttach,
        count(tuning.messages_per_second)
    ),
    // A busy machine may keep a process from answering for longer than this without anything wrong.
    setting!(
        "limits.keep_alive",
        Restart,
        time(tuning.keep_alive, ms(100), ms(60_000))
    ),
    setting!(
        "metrics.listen",
        Restart,
        |config, row| {
            config.watching.metrics = watching::listen(row)?;
            Ok(())
        },
        |config| quoted(&watching::show_listen(&config.watching))
    ),
    setting!(
        "history.file",
        Restart,
        |config, row| {
            config.watching.history = watching::kept(row)?;
            Ok(())
        },
        |config| quoted(&watching::show_kept(&config.watching))
    ),
    setting!(
        "history.size",
        Restart,
        |config, row| {
            config.watching.history_size = watching::size(row)?;
            Ok(())
        },
        |config| quoted(&show_bytes(config.watching.history_size))
    ),
    setting!(
        "history.every",
        Restart,
        time(watching.history_every, ms(1_000), HOUR)
    ),
    setting!("log.format", Restart, named(log.format)),
    setting!(
        "log.level",
        Now,
        |config, row| {
            let level = row.text("a level, such as \"info\"")?;
            log_filter(level).map_err(|error| row.wrong(error.to_string()))?;
            level.clone_into(&mut config.log.level);
            Ok(())
        },
        |config| quoted(&config.log.level)
    ),
];

impl Named for LongGate {
    const NAMES: &'static [(&'static str, Self)] =
        &[("hold", Self::Hold), ("breathe", Self::Breathe)];
}

impl Named for FairMode {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("turns", Self::Turns),
        ("together", Self::Together),
        ("slices", Self::Slices),
    ];
}

impl Named for Suspects {
    const NAMES: &'static [(&'static str, Self)] =
        &[("busy", Self::Busy), ("ignore", Self::Ignore)];
}

impl Named for LevelChoice {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("L1", Self::Forced(Level::L1)),
        ("L2", Self::Forced(Level::L2)),
        ("L3", Self::Forced(Level::L3)),
        ("L5", Self::Forced(Level::L5)),
    ];
}

impl Named for MethodChoice {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        (Method::Disable.name(), Self::Forced(Method::Disable)),
        (Method::Restart.name(), Self::Forced(Method::Restart)),
        (Method::Preempt.name(), Self::Forced(Method::Preempt)),
        (
            Method::PreemptFirst.name(),
            Self::Forced(Method::PreemptFirst),
        ),
    ];
}

impl Named for Unproven {
    const NAMES: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("first_claim", Self::FirstClaim)];
}

impl Named for SelfTestKind {
    const NAMES: &'static [(&'static str, Self)] = &[("full", Self::Full), ("calls", Self::Calls)];
}

impl Named for OnAgentLoss {
    const NAMES: &'static [(&'static str, Self)] = &[("hold", Self::Hold), ("run", Self::Run)];
}

impl Named for LogFormat {
    const NAMES: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}
