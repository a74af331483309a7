//! Whether a channel level does what the driver says it does, tried on channels of the agent's own.
//!
//! The driver's OK is not enough: a level is used once it was seen to stop work and to let it go on
//! ([`trial`], with GPU work of a child process, [`work`]). That takes a CUDA context on every GPU, so a
//! level that was proven stays proven for this boot, driver version and set of GPUs: the run directory
//! remembers it. Where there is no work to try it on (a host without the user-mode driver, or without
//! the library to preload), the calls alone are tried and status says so.
//!
//! What fails is not used, and never remembered: the next start tries again.

mod trial;
#[allow(unsafe_code)]
pub mod work;

use crate::causes::with_causes;
use crate::config::{Level, SelfTestKind};
use crate::rm::{Driver, Gpu, RmError, Subdevice, ThrowAway};
use std::fmt;
use std::path::{Path, PathBuf};
use tidegate_abi::rm::{Branch, DisableChannels};
pub use trial::{NotPossible, Place};

/// The library's file name.
pub const LIBRARY: &str = "libtidegate.so";
/// What the run directory remembers.
const MEMORY: &str = "self-test";
/// Where the library is looked for, beside the program itself.
const LIBRARY_DIRS: [&str; 3] = ["/usr/local/lib", "/usr/lib/tidegate", "/usr/lib"];

/// What is known of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Work stopped and went on.
    Proven,
    /// The driver took the calls; what they do was not seen.
    CallsOnly,
    /// It must not be used, and why.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven => f.write_str("proven"),
            Self::CallsOnly => f.write_str("calls only"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// Where a self-test finds what it needs, and where it remembers.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Full, or the calls only.
    pub kind: SelfTestKind,
    /// The library, where configuration names it.
    pub library: Option<PathBuf>,
    /// A directory with `libcuda.so.1`, where it is not in the system's.
    pub driver_dir: Option<PathBuf>,
    /// The agent's directory.
    pub run_dir: PathBuf,
}

/// The self-test of one driver: each level is tried when it is asked about, once.
#[derive(Debug)]
pub struct SelfTest<'a> {
    driver: &'a Driver,
    setting: &'a Setting,
    levels: Vec<(Level, Outcome)>,
    summary: String,
    tried: bool,
}

/// What a self-test found, for status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In one line.
    pub summary: String,
    /// The levels that were asked about or tried with them, in order.
    pub levels: Vec<(Level, Outcome)>,
}

impl<'a> SelfTest<'a> {
    /// Knows what the run directory remembers.
    #[must_use]
    pub fn new(driver: &'a Driver, setting: &'a Setting) -> Self {
        let remembered = match setting.kind {
            SelfTestKind::Full => remembered(&setting.run_dir, &key(driver)),
            SelfTestKind::Calls => Vec::new(),
        };
        Self {
            driver,
            setting,
            summary: if remembered.is_empty() {
                String::new()
            } else {
                "remembered from an earlier start since this boot".to_owned()
            },
            levels: remembered
                .into_iter()
                .map(|level| (level, Outcome::Proven))
                .collect(),
            tried: false,
        }
    }

    /// What is known of `level`, after trying it if need be.
    pub fn outcome(&mut self, level: Level) -> Outcome {
        if level == Level::L5 {
            return Outcome::Proven;
        }
        if let Some(known) = self.known(level) {
            return known;
        }
        if self.setting.kind == SelfTestKind::Full && !self.tried {
            self.tried = true;
            self.try_all();
            if let Some(known) = self.known(level) {
                return known;
            }
        } else if self.summary.is_empty() {
            "calls only, as configured".clone_into(&mut self.summary);
        }
        let outcome = match calls(self.driver, level) {
            Ok(()) => Outcome::CallsOnly,
            Err(why) => Outcome::Failed(why),
        };
        self.levels.push((level, outcome.clone()));
        outcome
    }

    fn known(&self, level: Level) -> Option<Outcome> {
        let known = self.levels.iter().find(|(own, _)| *own == level);
        known.map(|(_, outcome)| outcome.clone())
    }

    fn try_all(&mut self) {
        let begun = crate::clock::now_ns();
        match place(self.setting)
            .and_then(|place| trial::run(self.driver, &place).map_err(|error| with_causes(&error)))
        {
            Ok(levels) => {
                let ms = (crate::clock::now_ns() - begun) / 1_000_000;
                self.summary = format!("tried on work of its own in {ms} ms");
                let proven: Vec<Level> = levels
                    .iter()
                    .filter(|(_, outcome)| *outcome == Outcome::Proven)
                    .map(|(level, _)| *level)
                    .collect();
                remember(&self.setting.run_dir, &key(self.driver), &proven);
                self.levels = levels;
            }
            Err(why) => self.summary = format!("not possible ({why}), calls only"),
        }
    }

    /// What was found so far.
    #[must_use]
    pub fn report(self) -> Report {
        let mut levels = self.levels;
        levels.sort_by_key(|(level, _)| *level);
        Report {
            summary: self.summary,
            levels,
        }
    }
}

/// Finds what the work needs; what is missing otherwise.
fn place(setting: &Setting) -> Result<Place, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = exe.with_file_name("tidegate-agent");
    if !program.exists() {
        return Err(format!("{} is not there", program.display()));
    }
    let library = match &setting.library {
        Some(named) if !named.exists() => return Err(format!("no {}", named.display())),
        Some(named) => named.clone(),
        None => {
            find_library().ok_or_else(|| format!("no {LIBRARY}; name it in channel.library"))?
        }
    };
    Ok(Place {
        program,
        library,
        driver_dir: setting.driver_dir.clone(),
        run_dir: setting.run_dir.clone(),
    })
}

/// The library: beside this program, or where packages put it.
#[must_use]
pub fn find_library() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok();
    let own = exe.as_deref().and_then(Path::parent).map(Path::to_owned);
    let mut dirs = own.into_iter().chain(LIBRARY_DIRS.map(PathBuf::from));
    dirs.find_map(|dir| Some(dir.join(LIBRARY)).filter(|path| path.exists()))
}

/// Names everything a proof rests on.
fn key(driver: &Driver) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let gpus: Vec<_> = driver
        .gpus
        .iter()
        .map(|gpu| crate::rm::uuid_text(&gpu.uuid))
        .collect();
    format!(
        "{} driver {} agent {} {}",
        boot.trim(),
        driver.version,
        env!("CARGO_PKG_VERSION"),
        gpus.join(" ")
    )
}

/// The levels proven under `key`.
fn remembered(run_dir: &Path, key: &str) -> Vec<Level> {
    let text = std::fs::read_to_string(run_dir.join(MEMORY)).unwrap_or_default();
    let Some((own, levels)) = text.trim_end().split_once('\n') else {
        return Vec::new();
    };
    if own != key {
        return Vec::new();
    }
    [Level::L1, Level::L2, Level::L3]
        .into_iter()
        .filter(|level| levels.split(' ').any(|word| word == level.to_string()))
        .collect()
}

fn remember(run_dir: &Path, key: &str, proven: &[Level]) {
    let levels: Vec<_> = proven.iter().map(Level::to_string).collect();
    let fresh = run_dir.join(format!("{MEMORY}.new"));
    let written = std::fs::write(&fresh, format!("{key}\n{}\n", levels.join(" ")))
        .and_then(|()| std::fs::rename(&fresh, run_dir.join(MEMORY)));
    if let Err(error) = written {
        tracing::warn!(%error, "the self-test's result is not remembered");
    }
}

/// Tries the calls of `level` on a channel without work, on every GPU.
///
/// Two clients on two files: one makes a channel, the other names it. So L1 is tried exactly as it will
/// be used, with a pair that is foreign to the caller, and a firmware that refuses foreign pairs is
/// found before any process depends on it. L2 and L3 are the same call by the owner. The channel must
/// also answer to a second disable and a second enable, because orders are repeated.
///
/// # Errors
/// With a text for status.
pub fn calls(driver: &Driver, level: Level) -> Result<(), String> {
    let branch = driver.branch.ok_or("the driver's branch is not known")?;
    for (index, gpu) in driver.gpus.iter().enumerate() {
        calls_on(gpu, branch, level).map_err(|error| format!("GPU {index}: {error}"))?;
    }
    Ok(())
}

fn calls_on(gpu: &Gpu, branch: Branch, level: Level) -> Result<(), RmError> {
    let owner = ThrowAway::new(gpu, branch)?;
    let other = Subdevice::open(gpu)?;
    for disable in [true, true, false, false] {
        let mut call = DisableChannels {
            disable: u8::from(disable),
            num_channels: 1,
            ..DisableChannels::default()
        };
        call.h_client_list[0] = owner.client();
        call.h_channel_list[0] = owner.channel;
        match level {
            Level::L1 => other.set_channels(&mut call)?,
            Level::L2 | Level::L3 => owner.set_own(&mut call)?,
            Level::L5 => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_proven_is_remembered_for_the_same_boot_driver_and_gpus_only() {
        let dir = std::env::temp_dir().join(format!("tidegate-self-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        assert!(remembered(&dir, "a driver 580").is_empty());
        remember(&dir, "a driver 580", &[Level::L1, Level::L3]);
        assert_eq!(remembered(&dir, "a driver 580"), [Level::L1, Level::L3]);
        assert!(remembered(&dir, "a driver 590").is_empty());
        std::fs::write(dir.join(MEMORY), b"garbage").expect("writable");
        assert!(remembered(&dir, "a driver 580").is_empty());
    }
}
