//! Which rung of the ladder this agent uses.
//!
//! Channels are only touched after the self-test has shown on channels of the agent's own that a disable stops and an
//! enable resumes. Of a branch whose layouts are not known, nothing that any branch has moved is used, and only what
//! the self-test has seen counts. A forced level that cannot be had is an error, not another level: the operator asked
//! for it by name.

use crate::config::{Level, LevelChoice, Method};
use crate::rm::Driver;
use std::fmt;
use tidegate_abi::rm::Layout;

/// Versions whose headers the layouts were compared with. Others of the same branch run with a note.
const TESTED: [&str; 14] = [
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
    "610.57.04",
];

/// Branches of which other projects' tables say something, but not enough.
const NOT_READ: [(&str, &str); 2] = [
    (
        "615",
        "two sources differ on the parameters of a group of channels",
    ),
    ("620", "there is one source only"),
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
    match Layout::of_version(version) {
        None => format!(
            "the driver says that its version is {version:?}, which is none: its channels are not touched"
        ),
        Some(Layout::ByAnswers) => {
            let branch = version.split('.').next().unwrap_or_default();
            let known = NOT_READ.iter().find(|(other, _)| *other == branch);
            let why = known.map_or_else(String::new, |(_, what)| format!(" (of {branch} {what})"));
            format!(
                "driver {version} is of an unknown branch{why}: it is controlled by what it answers"
            )
        }
        Some(Layout::Known(branch)) if !TESTED.contains(&version) => format!(
            "driver {version} is of the known branch {}, but not a version that was tested",
            branch.number()
        ),
        Some(Layout::Known(_)) => String::new(),
    }
}

/// What is said of a level that a driver of an unknown branch has.
const BY_ANSWERS: &str = "unknown branch, by what it answered";

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
        } else if driver.layout.is_none() {
            Err(version_note(&driver.version))
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
                        let by_answers = driver.layout == Some(Layout::ByAnswers);
                        return Ok(Choice {
                            level,
                            stop,
                            note: note(&failures, by_answers.then_some(BY_ANSWERS)),
                        });
                    }
                    Err(why) => failures.push((level, why)),
                }
            }
            Ok(Choice {
                level: Level::L5,
                stop: Stop::default(),
                note: note(&failures, None),
            })
        }
    }
}

/// Why levels were not taken, one reason once; and what else there is to say.
fn note(failures: &[(Level, String)], more: Option<&str>) -> String {
    let mut notes: Vec<String> = failures
        .chunk_by(|(_, one), (_, other)| one == other)
        .map(|those| {
            let levels: Vec<_> = those.iter().map(|(level, _)| level.to_string()).collect();
            format!("{}: {}", levels.join(", "), those[0].1)
        })
        .collect();
    notes.extend(more.map(str::to_owned));
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(version: &str) -> Driver {
        Driver {
            version: version.to_owned(),
            layout: Layout::of_version(version),
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
    fn an_unknown_branch_is_controlled_by_what_it_answered_or_not_at_all() {
        for version in ["610.57.04", "615.71.09", "620.06.00", "999.01"] {
            let known = version.starts_with("610");
            let driver = driver(version);
            assert_eq!(driver.branch().is_some(), known, "{version}");
            let proven = choose(LevelChoice::Auto, &driver, |_| Ok(Stop::default()));
            let proven = proven.expect("L1 works");
            assert_eq!(proven.level, Level::L1, "{version}");
            assert_eq!(
                proven.note == BY_ANSWERS,
                !known,
                "{version}: {}",
                proven.note
            );
            let none = choose(LevelChoice::Auto, &driver, |_| {
                Err("it stops nothing".to_owned())
            });
            let none = none.expect("L5 needs no driver");
            assert_eq!(none.level, Level::L5);
            assert!(none.note.contains("it stops nothing"), "{}", none.note);
        }
        for (version, said) in [("615.36", "(of 615 two"), ("620.70.06", "(of 620 there")] {
            let note = driver_note(&driver(version), None);
            assert!(note.contains(said), "{note}");
        }
        assert!(!driver_note(&driver("999.1"), None).contains("(of"));
    }

    #[test]
    fn what_is_no_version_never_has_its_channels_touched() {
        for none in [
            "",
            "580",
            "580.x.1",
            "unknown",
            "580.95.05.1",
            "580..05",
            "-1.2",
        ] {
            let driver = driver(none);
            let choice = choose(LevelChoice::Auto, &driver, |_| panic!("nothing is tested"));
            assert_eq!(choice.expect("L5 needs no driver").level, Level::L5);
            let forced = LevelChoice::Forced(Level::L1);
            assert!(choose(forced, &driver, |_| Ok(Stop::default())).is_err());
            assert!(
                driver_note(&driver, None).contains("which is none"),
                "{none}"
            );
        }
    }

    #[test]
    fn a_driver_that_lists_no_gpus_leaves_the_launch_gate() {
        let mut driver = driver("580.95.05");
        driver.lacks = Some("the GPUs cannot be listed: because".to_owned());
        let choice = choose(LevelChoice::Auto, &driver, |_| panic!("nothing is tested"));
        let choice = choice.expect("L5 needs no driver");
        assert_eq!(choice.level, Level::L5);
        let note = "L1, L2, L3: the GPUs cannot be listed: because";
        assert_eq!(choice.note, note, "one reason is said once");
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
