//! Which rung of the ladder this agent uses.
//!
//! Channels are only touched with layouts that are known (the driver's branch) and after the self-test
//! has shown on channels of the agent's own that a disable stops and an enable resumes. A forced level
//! that cannot be had is an error, not another level: the operator asked for it by name.

use crate::config::{Level, LevelChoice, Method};
use crate::rm::Driver;
use std::fmt;
use tidegate_abi::rm::Branch;

/// Versions whose headers the layouts were compared with. Others of the same branch run with a note.
const TESTED: [&str; 13] = [
    "535.54.03",
    "535.288.01",
    "550.54.14",
    "550.163.01",
    "570.86.15",
    "570.211.01",
    "575.51.02",
    "575.64.05",
    "580.65.06",
    "580.95.05",
    "580.142",
    "590.48.01",
    "595.45.04",
];

/// Branches that are known by name only, with what other projects' tables say of them.
const NOT_READ: [(&str, &str); 3] = [
    (
        "610",
        "channel parameters have gained a field in their middle and UVM has lost its range groups",
    ),
    ("615", "it follows 610, whose layouts differ"),
    ("620", "it follows 610, whose layouts differ"),
];

/// How a level stops what runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// The calls.
    pub method: Method,
    /// What runs goes on to the end of its kernel.
    pub at_kernel_end: bool,
}

impl Stop {
    /// At once.
    #[must_use]
    pub const fn by(method: Method) -> Self {
        Self {
            method,
            at_kernel_end: false,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.at_kernel_end {
            ", at the end of a kernel"
        } else {
            ""
        };
        write!(f, "{}{when}", self.method)
    }
}

/// The level in force and why not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The level.
    pub level: Level,
    /// How it stops what runs.
    pub stop: Stop,
    /// Empty when nothing is to be said.
    pub note: String,
}

/// A level was forced and cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("channel level {level} cannot be used: {why}")]
pub struct Refused {
    /// The level.
    pub level: Level,
    /// Why.
    pub why: String,
}

/// What is wrong where the kernel's driver and its library are of two versions: no CUDA program starts.
#[must_use]
pub fn half_upgraded(version: &str, library: Option<&str>) -> Option<String> {
    library
        .filter(|library| *library != version && !version.is_empty())
        .map(|library| {
            format!("the kernel's driver is {version}, its library {library}: half upgraded")
        })
}

/// What is odd about the driver and the `library` beside it; empty: nothing.
#[must_use]
pub fn driver_note(driver: &Driver, library: Option<&str>) -> String {
    let mut notes: Vec<_> = driver.lacks.iter().cloned().collect();
    if driver.lacks.is_none() {
        notes.push(version_note(&driver.version));
    }
    notes.extend(half_upgraded(&driver.version, library));
    if !driver.hidden.is_empty() {
        let hidden: Vec<_> = driver.hidden.iter().map(ToString::to_string).collect();
        notes.push(format!(
            "GPUs of this machine that the agent cannot use: {}",
            hidden.join(", ")
        ));
    }
    notes.retain(|note| !note.is_empty());
    notes.join("; ")
}

/// What is odd about a driver of this version; empty: nothing.
#[must_use]
pub fn version_note(version: &str) -> String {
    match Branch::of_version(version) {
        None => {
            let branch = version.split('.').next().unwrap_or_default();
            let known = NOT_READ.iter().find(|(other, _)| *other == branch);
            let why = known.map_or_else(String::new, |(_, what)| {
                format!(" (of {branch} no layout was verified: {what})")
            });
            format!("driver {version} is of no known branch: no channel control{why}")
        }
        Some(branch) if !TESTED.contains(&version) => format!(
            "driver {version} is of the known branch {}, but not a version that was tested",
            branch.number()
        ),
        Some(_) => String::new(),
    }
}

/// Picks the level. `works` tests one and says how it stops what runs, or what is wrong with it.
///
/// # Errors
/// When a forced level cannot be had.
pub fn choose(
    choice: LevelChoice,
    driver: &Driver,
    mut works: impl FnMut(Level) -> Result<Stop, String>,
) -> Result<Choice, Refused> {
    let mut check = |level: Level| {
        if level == Level::L5 {
            Ok(Stop::default())
        } else if let Some(why) = &driver.lacks {
            Err(why.clone())
        } else if driver.branch.is_none() {
            Err(format!("driver {} is of no known branch", driver.version))
        } else {
            works(level)
        }
    };
    match choice {
        LevelChoice::Forced(level) => match check(level) {
            Ok(stop) => Ok(Choice {
                level,
                stop,
                note: "forced by configuration".to_owned(),
            }),
            Err(why) => Err(Refused { level, why }),
        },
        LevelChoice::Auto => {
            let mut failures = Vec::new();
            for level in [Level::L1, Level::L2, Level::L3] {
                match check(level) {
                    Ok(stop) => {
                        return Ok(Choice {
                            level,
                            stop,
                            note: failures.join("; "),
                        });
                    }
                    Err(why) => failures.push(format!("{level}: {why}")),
                }
            }
            Ok(Choice {
                level: Level::L5,
                stop: Stop::default(),
                note: failures.join("; "),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(version: &str) -> Driver {
        Driver {
            version: version.to_owned(),
            branch: Branch::of_version(version),
            gpus: Vec::new(),
            hidden: Vec::new(),
            lacks: None,
        }
    }

    #[test]
    fn the_first_level_that_works_is_taken_and_the_others_are_accounted_for() {
        let choice = choose(LevelChoice::Auto, &driver("580.95.05"), |level| {
            if level == Level::L1 {
                Err("foreign pairs are refused".to_owned())
            } else {
                Ok(Stop::by(Method::Preempt))
            }
        });
        let choice = choice.expect("L2 works");
        assert_eq!(
            (choice.level, choice.stop.method),
            (Level::L2, Method::Preempt)
        );
        assert_eq!(choice.note, "L1: foreign pairs are refused");
    }

    #[test]
    fn an_unknown_branch_never_has_its_channels_touched() {
        let unknown = driver("610.01");
        let choice = choose(LevelChoice::Auto, &unknown, |_| panic!("nothing is tested"));
        assert_eq!(choice.expect("L5 needs no driver").level, Level::L5);
        let forced = LevelChoice::Forced(Level::L1);
        assert!(choose(forced, &unknown, |_| Ok(Stop::default())).is_err());
        assert!(driver_note(&unknown, None).contains("no known branch"));
        for (version, said) in [
            ("610.43.02", "of 610 no"),
            ("615.36", "of 615 no"),
            ("620.70.06", "of 620 no"),
        ] {
            let unknown = driver(version);
            assert_eq!(unknown.branch, None, "{version}");
            assert!(driver_note(&unknown, None).contains(said), "{version}");
        }
        assert!(!driver_note(&driver("999.1"), None).contains("verified"));
    }

    #[test]
    fn a_driver_that_lists_no_gpus_leaves_the_launch_gate() {
        let mut driver = driver("580.95.05");
        driver.lacks = Some("the GPUs cannot be listed: because".to_owned());
        let choice = choose(LevelChoice::Auto, &driver, |_| panic!("nothing is tested"));
        let choice = choice.expect("L5 needs no driver");
        assert_eq!(choice.level, Level::L5);
        assert!(choice.note.contains("because"), "{}", choice.note);
        assert!(
            choose(LevelChoice::Forced(Level::L1), &driver, |_| Ok(
                Stop::default()
            ))
            .is_err()
        );
        assert!(driver_note(&driver, None).contains("because"));
    }

    #[test]
    fn a_half_upgraded_driver_is_named_with_both_versions() {
        let note = driver_note(&driver("580.95.05"), Some("580.105.08"));
        assert!(note.contains("580.95.05, its library 580.105.08"), "{note}");
        assert_eq!(
            half_upgraded("", Some("580.105.08")),
            None,
            "no driver answers"
        );
    }

    #[test]
    fn a_known_branch_with_an_untested_version_runs_with_a_note() {
        for tested in ["580.95.05", "535.54.03", "575.64.05", "590.48.01"] {
            assert_eq!(driver_note(&driver(tested), Some(tested)), "");
        }
        let other = driver("580.159.04");
        assert!(driver_note(&other, None).contains("not a version that was tested"));
        let choice =
            choose(LevelChoice::Auto, &other, |_| Ok(Stop::default())).expect("known branch");
        assert_eq!(choice.level, Level::L1);
    }
}
