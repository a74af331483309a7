//! Whether a channel level does what the driver says it does, tried on channels of the agent's own.
//!
//! The driver's OK is not enough: a level is used once it was seen to stop work and to let it go on, by
//! the first of the methods that does ([`trial`], with GPU work of a child process, [`work`]). That takes a
//! CUDA context on every GPU, so a level that was proven stays proven for this boot, driver version and
//! set of GPUs: the run directory remembers it with its method. Where there is no work to try it on (a host without the user-mode driver, or without
//! the library to preload), the calls alone are tried and status says so.
//!
//! What fails is not used, and never remembered: the next start tries again.
//!
//! Of a driver whose layouts nobody knows, nothing counts but a stop that was seen, and before that the driver must
//! have shown that it tells the size of a list of channels from any other.

mod calls;
mod child;
mod place;
mod trial;
mod verdict;
pub mod work;

use crate::causes::with_causes;
use crate::config::{Level, Method, MethodChoice, SelfTestKind};
use crate::rm::{Driver, Subdevice};
pub use calls::calls;
pub use place::{LIBRARY, NotPossible, Place, find_library};
use std::path::{Path, PathBuf};
use tidegate_abi::uuid::Uuid;
pub use verdict::{Held, Outcome, Report, Tried};

/// What the run directory remembers.
const MEMORY: &str = "self-test";
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
    /// Which methods may be used.
    pub methods: MethodChoice,
}

/// The self-test of one driver: each level is tried when it is asked about, once.
#[derive(Debug)]
pub struct SelfTest<'a> {
    driver: &'a Driver,
    setting: &'a Setting,
    levels: Vec<Tried>,
    summary: String,
    tried: bool,
    /// Whether a driver whose layouts are not known takes one size only.
    answers: Option<Result<(), String>>,
}

impl<'a> SelfTest<'a> {
    /// Knows what the run directory remembers.
    #[must_use]
    pub fn new(driver: &'a Driver, setting: &'a Setting) -> Self {
        let remembered = match setting.kind {
            SelfTestKind::Full => remembered(&setting.run_dir, &key(driver, setting.methods)),
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
            levels: remembered,
            tried: false,
            answers: None,
        }
    }

    /// What is known of `level`, after trying it if need be.
    pub fn outcome(&mut self, level: Level) -> Outcome {
        if level == Level::L5 {
            return Outcome::CallsOnly(Method::default());
        }
        if let Some(known) = self.known(level) {
            return known;
        }
        if let Err(why) = self.answers() {
            return Outcome::Failed(why);
        }
        if self.setting.kind == SelfTestKind::Full && !self.tried {
            self.tried = true;
            self.try_all();
            if let Some(known) = self.known(level) {
                return known;
            }
        } else if self.summary.is_empty() {
            "not run, as configured: the agent only checked that the driver accepts the calls"
                .clone_into(&mut self.summary);
        }
        let outcome = calls(self.driver, level, self.setting.methods);
        self.levels.push(Tried {
            level,
            outcome: outcome.clone(),
            methods: Vec::new(),
        });
        outcome
    }

    /// Whether a driver whose layouts are not known answers so that what it stops can be told from its answers.
    fn answers(&mut self) -> Result<(), String> {
        if self.driver.branch().is_some() {
            return Ok(());
        }
        let driver = self.driver;
        let asked = self.answers.get_or_insert_with(|| {
            let mut gpus = driver.gpus.iter().enumerate();
            gpus.try_for_each(|(index, gpu)| {
                let own = Subdevice::open(gpu).map_err(|error| with_causes(&error));
                own.and_then(|own| own.takes_one_size())
                    .map_err(|why| format!("GPU {index}: {why}"))
            })
        });
        asked.clone()
    }

    fn known(&self, level: Level) -> Option<Outcome> {
        let known = self.levels.iter().find(|tried| tried.level == level);
        known.map(|tried| tried.outcome.clone())
    }

    fn try_all(&mut self) {
        let begun = crate::clock::now_ns();
        match place(self.setting).and_then(|place| {
            let tried = trial::run(self.driver, &place, self.setting.methods);
            tried.map_err(|error| with_causes(&error))
        }) {
            Ok(levels) => {
                let ms = (crate::clock::now_ns() - begun) / 1_000_000;
                self.summary = format!("tried on work of its own in {ms} ms");
                let key = key(self.driver, self.setting.methods);
                remember(&self.setting.run_dir, &key, &levels);
                self.levels = levels;
            }
            Err(why) => {
                self.summary = format!(
                    "not possible ({why}): the agent only checked that the driver accepts the calls"
                )
            }
        }
    }

    /// What was found so far.
    #[must_use]
    pub fn report(self) -> Report {
        let mut levels = self.levels;
        levels.sort_by_key(|tried| tried.level);
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

/// Names everything a proof rests on.
fn key(driver: &Driver, methods: MethodChoice) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let gpus: Vec<_> = driver
        .gpus
        .iter()
        .map(|gpu| Uuid(gpu.uuid).to_string())
        .collect();
    format!(
        "{} driver {} agent {} methods {methods:?} {}",
        boot.trim(),
        driver.version,
        env!("CARGO_PKG_VERSION"),
        gpus.join(" ")
    )
}

/// What was proven under `key`: a line a level, with the methods and what became of each.
fn remembered(run_dir: &Path, key: &str) -> Vec<Tried> {
    let text = std::fs::read_to_string(run_dir.join(MEMORY)).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some(key) {
        return Vec::new();
    }
    let read = |line: &str| {
        let mut words = line.split('\t');
        let level = words.next()?;
        let level = [Level::L1, Level::L2, Level::L3]
            .into_iter()
            .find(|known| known.to_string() == level)?;
        let methods = words.map(|word| {
            let mut parts = word.splitn(3, '|');
            let method = Method::from_name(parts.next()?)?;
            let (name, why) = (parts.next()?, parts.next()?.to_owned());
            let known = [
                Held::Stops,
                Held::AtKernelEnd,
                Held::NotTried(why.clone()),
                Held::Failed(why),
            ];
            let held = known.into_iter().find(|held| held.name() == name)?;
            Some((method, held))
        });
        let tried = Tried::of(level, methods.collect::<Option<Vec<_>>>()?);
        matches!(tried.outcome, Outcome::Proven(_)).then_some(tried)
    };
    lines.map_while(read).collect()
}

fn remember(run_dir: &Path, key: &str, levels: &[Tried]) {
    let proven = levels
        .iter()
        .filter(|tried| matches!(tried.outcome, Outcome::Proven(_)));
    let mut text = format!("{key}\n");
    for tried in proven {
        text.push_str(&tried.level.to_string());
        for (method, held) in &tried.methods {
            let why = match held {
                Held::Stops | Held::AtKernelEnd => "",
                Held::NotTried(why) | Held::Failed(why) => why,
            };
            let why = why.replace(['\t', '\n', '|'], " ");
            text.push_str(&format!("\t{method}|{}|{why}", held.name()));
        }
        text.push('\n');
    }
    let fresh = run_dir.join(format!("{MEMORY}.new"));
    let written =
        std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, run_dir.join(MEMORY)));
    if let Err(error) = written {
        tracing::warn!(%error, "the self-test's result is not remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::level::Stop;

    fn tried(level: Level, methods: &[(Method, Held)]) -> Tried {
        Tried::of(level, methods.to_vec())
    }

    #[test]
    fn what_was_proven_is_remembered_for_the_same_boot_driver_and_gpus_only() {
        let dir = std::env::temp_dir().join(format!("tidegate-self-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        assert!(remembered(&dir, "a driver 580").is_empty());
        let failed = Held::Failed("work goes | on".to_owned());
        let levels = [
            tried(Level::L1, &[(Method::Disable, failed.clone())]),
            tried(
                Level::L2,
                &[(Method::Disable, failed), (Method::Restart, Held::Stops)],
            ),
            tried(Level::L3, &[(Method::Disable, Held::AtKernelEnd)]),
        ];
        remember(&dir, "a driver 580", &levels);
        let known = remembered(&dir, "a driver 580");
        let summary: Vec<_> = known
            .iter()
            .map(|tried| format!("{} {}", tried.level, tried.outcome))
            .collect();
        assert_eq!(
            summary,
            [
                "L2 proven by disable+restart",
                "L3 proven by disable, at the end of a kernel"
            ]
        );
        assert_eq!(known[0].why_not_better(), "disable: work goes   on");
        assert!(remembered(&dir, "a driver 590").is_empty());
        std::fs::write(dir.join(MEMORY), b"garbage").expect("writable");
        assert!(remembered(&dir, "a driver 580").is_empty());
    }

    #[test]
    fn the_first_method_that_stops_work_at_once_is_kept_before_one_that_is_late() {
        let late = (Method::Disable, Held::AtKernelEnd);
        let prompt = (Method::Preempt, Held::Stops);
        let of = |methods: &[(Method, Held)]| tried(Level::L2, methods).outcome;
        assert_eq!(
            of(&[late.clone(), prompt]),
            Outcome::Proven(Stop::by(Method::Preempt))
        );
        let kept = tried(Level::L2, &[late]);
        assert!(kept.outcome.stop().is_ok_and(|stop| stop.at_kernel_end));
        assert!(kept.why_not_better().contains("no memory is taken"));
        // What could not be tried has not failed.
        let lacks = Held::NotTried("no channel".to_owned());
        let untried = of(&[(Method::Restart, lacks)]);
        assert_eq!(untried, Outcome::NotTried("no channel".to_owned()));
    }
}
