//! What every probe is given: the driver, a directory, options, and ways to workers.

use crate::hold::Hold;
use crate::link::{Preload, Worker};
use crate::message::{Op, Wait};
use crate::report::{Reporter, Verdict};
use crate::subject::{Subject, Way};
use anyhow::Context;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_agent::config::Method;
use tidegate_driver::rm::{self, Driver};
use tidegate_driver::stop_and_resume::{Counters, Seen, Terms, Work, stop_and_resume};

/// The worker's kernel makes a step this often.
pub const STEP_NS: u64 = 20_000;
/// How long nothing may move to count as stopped.
pub const STILL: Duration = Duration::from_millis(50);
/// How soon a kernel must have moved again.
pub const SOON: Duration = Duration::from_secs(5);

/// File in the run's directory that names the first method that P2m saw to hold.
const METHOD: &str = "method";

/// How thorough a run is, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// CUDA ordinal.
    pub ordinal: i32,
    /// Fewer repetitions and shorter waits, to see that it works at all.
    pub quick: bool,
    /// How long P4 keeps channels disabled.
    pub long: Duration,
    /// Preload library and driver of the workers.
    pub preload: Preload,
    /// Where results other than lines go (the golden trace).
    pub out: Option<PathBuf>,
    /// The kernel's log.
    pub kernel_log: PathBuf,
}

impl Options {
    /// Repetitions: `full`, or a tenth in a quick run.
    #[must_use]
    pub const fn times(&self, full: u32) -> u32 {
        if self.quick { full / 10 } else { full }
    }
}

/// How a probe ends.
pub type Ending = (Verdict, String);

/// It holds.
#[must_use]
pub const fn pass() -> Ending {
    (Verdict::Pass, String::new())
}

/// It does not.
#[must_use]
pub fn fail(reason: impl Into<String>) -> Ending {
    (Verdict::Fail, reason.into())
}

/// It was not tried.
#[must_use]
pub fn skip(reason: impl Into<String>) -> Ending {
    (Verdict::Skip, reason.into())
}

/// Has the probes of the run in `dir` stop their subjects by `method`.
///
/// # Errors
/// When it cannot be written down.
pub fn note_method(dir: &Path, method: Method) -> anyhow::Result<()> {
    std::fs::write(dir.join(METHOD), method.name()).context("cannot write down the method")
}

/// One probe's surroundings.
#[derive(Debug)]
pub struct Bench {
    /// Where its lines go.
    pub report: Reporter,
    /// How thorough.
    pub options: Options,
    /// Its directory.
    pub dir: PathBuf,
    /// Asked at its first use: most probes need no RM client of their own.
    driver: OnceCell<Driver>,
    hold: Hold,
    method: Method,
}

impl Bench {
    /// Starts the guardian.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(report: Reporter, dir: PathBuf, options: Options) -> anyhow::Result<Self> {
        let hold = Hold::new(&dir, report.probe())?;
        let known = dir
            .parent()
            .and_then(|run| std::fs::read_to_string(run.join(METHOD)).ok());
        let method = known.and_then(|name| Method::from_name(name.trim()));
        let method = method.unwrap_or_default();
        if method != Method::default() {
            report.note(format!("stops by {method}, as P2m found"));
        }
        Ok(Self {
            report,
            options,
            dir,
            driver: OnceCell::new(),
            hold,
            method,
        })
    }

    /// How probes stop their subjects here: as P2m found, else by a disable alone.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Has the probes that follow in this run stop their subjects by `method`.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn found_method(&self, method: Method) -> anyhow::Result<()> {
        self.report.note(format!("the first that holds: {method}"));
        note_method(self.dir.parent().unwrap_or(&self.dir), method)
    }

    /// The driver and its GPUs, by RM calls of this process.
    ///
    /// # Errors
    /// When it does not answer them.
    pub fn driver(&self) -> anyhow::Result<&Driver> {
        if let Some(driver) = self.driver.get() {
            return Ok(driver);
        }
        let driver = rm::enumerate()?;
        Ok(self.driver.get_or_init(|| driver))
    }

    /// A worker without a context.
    ///
    /// # Errors
    /// When it does not start.
    pub fn bare_worker(&self, name: &str, preload: &Preload) -> anyhow::Result<Worker> {
        self.hold.check()?;
        let worker = Worker::start(&self.dir, name, preload)?;
        self.hold.started(worker.pid())?;
        Ok(worker)
    }

    /// A worker with a context whose driver calls are traced.
    ///
    /// # Errors
    /// When it does not start or CUDA refuses.
    pub fn worker(&self, name: &str, wait: Wait) -> anyhow::Result<Worker> {
        let mut worker = self.bare_worker(name, &self.options.preload)?;
        worker.context(self.options.ordinal, wait)?;
        Ok(worker)
    }

    /// A worker whose channels can be set by `way`.
    ///
    /// # Errors
    /// As [`Self::worker`] and [`Subject::new`].
    pub fn subject(&self, name: &str, wait: Wait, way: Way) -> anyhow::Result<Subject<'_>> {
        self.adopt(self.worker(name, wait)?, way)
    }

    /// Makes a worker a subject.
    ///
    /// # Errors
    /// As [`Subject::new`].
    pub fn adopt(&self, worker: Worker, way: Way) -> anyhow::Result<Subject<'_>> {
        self.adopt_by(worker, way, self.method)
    }

    /// As [`Self::adopt`], stopped by `method`, whatever P2m found.
    ///
    /// # Errors
    /// As [`Subject::new`].
    pub fn adopt_by(
        &self,
        worker: Worker,
        way: Way,
        method: Method,
    ) -> anyhow::Result<Subject<'_>> {
        Subject::new(worker, &self.hold, || self.driver(), (way, method))
    }

    /// The first way by which channels can be disabled here and enabled again, tried on a throw-away
    /// worker.
    ///
    /// # Errors
    /// When none works; with what each said.
    pub fn best_way(&self) -> anyhow::Result<Way> {
        let mut said = Vec::new();
        for way in [Way::Foreign, Way::OwnersFile, Way::Inside] {
            let tried = self
                .subject(&format!("try-{}", way.level()), Wait::Spin, way)
                .and_then(|mut subject| {
                    subject.set(true)?;
                    subject.set(false)
                });
            match tried {
                Ok(_) => {
                    for text in said {
                        self.report.note(text);
                    }
                    return Ok(way);
                }
                Err(error) => said.push(format!("{}: {error:#}", way.level())),
            }
        }
        anyhow::bail!("channels cannot be disabled here: {}", said.join("; "))
    }

    /// A subject by the best way, its long kernel running on lane `work`.
    ///
    /// # Errors
    /// As [`Self::best_way`] and [`Self::subject`].
    pub fn running(&self, name: &str, kernel: Duration) -> anyhow::Result<Subject<'_>> {
        let way = self.best_way()?;
        let mut subject = self.subject(name, Wait::Spin, way)?;
        self.spin(&mut subject, kernel, 1)?;
        Ok(subject)
    }

    fn launch(
        &self,
        subject: &mut Subject<'_>,
        kernel: Duration,
        blocks: u32,
    ) -> anyhow::Result<()> {
        let steps = crate::clock::nanos(kernel) / STEP_NS;
        let launch = Op::Steps {
            steps,
            step_ns: STEP_NS,
            blocks,
        };
        subject.worker.call("work", vec![launch])?;
        subject.launched += steps;
        Ok(())
    }

    /// Starts a kernel of that length and waits until it moves.
    ///
    /// # Errors
    /// When it does not.
    pub fn spin(
        &self,
        subject: &mut Subject<'_>,
        kernel: Duration,
        blocks: u32,
    ) -> anyhow::Result<()> {
        let before = subject.worker.progress()?;
        self.launch(subject, kernel, blocks)?;
        subject.worker.moved(before, SOON)?;
        Ok(())
    }

    /// Queues another kernel behind what runs when less than `least` is left of it.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn keep_busy(
        &self,
        subject: &mut Subject<'_>,
        least: Duration,
        kernel: Duration,
        blocks: u32,
    ) -> anyhow::Result<()> {
        let left = subject.launched.saturating_sub(subject.worker.progress()?);
        if left * STEP_NS < crate::clock::nanos(least) {
            self.launch(subject, kernel, blocks)?;
        }
        Ok(())
    }

    /// Disables, sees that nothing moves for [`STILL`], enables, sees that it moves again; what is wrong
    /// otherwise. A kernel that ends while a slow call is on its way is launched again, once.
    ///
    /// # Errors
    /// When the worker is gone or a call refused.
    pub fn stops_and_resumes(
        &self,
        subject: &mut Subject<'_>,
        kernel: Duration,
        blocks: u32,
    ) -> anyhow::Result<Option<String>> {
        let mut ended = false;
        loop {
            let mut timed = Timed {
                subject,
                disable_ns: 0,
                enable_ns: 0,
                may_have_ended: !ended,
            };
            let seen = stop_and_resume(&mut timed, &TERMS);
            if let Ok(Seen::WentOn { .. } | Seen::Ended) = seen {
                timed.set(false)?;
            }
            let Timed {
                disable_ns,
                enable_ns,
                ..
            } = timed;
            if seen.is_ok() || !subject.is_disabled() {
                self.report.micros("first disable", disable_ns);
                self.report.micros("first enable", enable_ns);
            }
            return match seen {
                Ok(Seen::Held { .. }) => Ok(None),
                Ok(Seen::WentOn { steps, .. }) => Ok(Some(format!(
                    "the kernel made {steps} steps in {STILL:?} while disabled"
                ))),
                Ok(Seen::Stuck { .. }) => Ok(Some(format!(
                    "the kernel did not go on: no progress in {SOON:?}"
                ))),
                Ok(Seen::Ended) => {
                    ended = true;
                    self.report
                        .note("the kernel had ended when the disable returned: once more");
                    self.spin(subject, kernel, blocks)?;
                    continue;
                }
                Err(error) if !subject.is_disabled() => {
                    Ok(Some(format!("the kernel did not go on: {error}")))
                }
                Err(error) => Err(error),
            };
        }
    }
}

/// What a subject has to keep to.
const TERMS: Terms = Terms {
    orders: 1,
    settle: Duration::ZERO,
    still: STILL,
    kernel: None,
    resume: SOON,
};

/// A subject, and how long the orders to it took.
struct Timed<'a, 'b> {
    subject: &'a mut Subject<'b>,
    disable_ns: u64,
    enable_ns: u64,
    may_have_ended: bool,
}

impl Counters for Timed<'_, '_> {
    type Error = anyhow::Error;

    fn counters(&mut self) -> anyhow::Result<Vec<u64>> {
        self.subject.worker.counters()
    }

    fn pass(&mut self, time: Duration) {
        self.subject.worker.pass(time);
    }

    fn look_again(&mut self) {
        self.subject.worker.look_again();
    }
}

impl Work for Timed<'_, '_> {
    fn set(&mut self, disable: bool) -> anyhow::Result<()> {
        let ns = self.subject.set(disable)?;
        if disable {
            self.disable_ns = ns;
        } else {
            self.enable_ns = ns;
        }
        Ok(())
    }

    fn has_ended(&mut self, counters: &[u64]) -> bool {
        self.may_have_ended && counters.iter().all(|steps| *steps >= self.subject.launched)
    }
}
