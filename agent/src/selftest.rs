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
mod memory;
mod place;
mod trial;
mod verdict;
pub mod work;

use crate::causes::with_causes;
use crate::config::{Level, Method, MethodChoice, SelfTestKind};
use crate::rm::{Driver, Subdevice};
pub use calls::calls;
pub use place::{LIBRARY, NotPossible, Place, find_library};
use std::path::PathBuf;
use tidegate_abi::uuid::Uuid;
pub use verdict::{Held, Outcome, Report, Spread, Times, Tried};

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
    times: Vec<Times>,
    summary: String,
    tried: bool,
    /// Whether a driver whose layouts are not known takes one size only.
    answers: Option<Result<(), String>>,
}

impl<'a> SelfTest<'a> {
    /// Knows what the run directory remembers.
    #[must_use]
    pub fn new(driver: &'a Driver, setting: &'a Setting) -> Self {
        let (remembered, times) = match setting.kind {
            SelfTestKind::Full => {
                memory::remembered(&setting.run_dir, &key(driver, setting.methods))
            }
            SelfTestKind::Calls => (Vec::new(), Vec::new()),
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
            times,
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
            Ok((levels, times)) => {
                let ms = (crate::clock::now_ns() - begun) / 1_000_000;
                self.summary = format!("tried on work of its own in {ms} ms");
                let key = key(self.driver, self.setting.methods);
                memory::remember(&self.setting.run_dir, &key, &levels, &times);
                self.levels = levels;
                self.times = times;
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
            times: self.times,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::level::Stop;

    fn tried(level: Level, methods: &[(Method, Held)]) -> Tried {
        Tried::of(level, methods.to_vec())
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
