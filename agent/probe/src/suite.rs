//! Runs the probes, each in a process of its own with a guardian beside it, and writes down what they
//! say as they say it.
//!
//! A probe that takes too long is killed, as it would be by a user who lost patience; its guardian
//! cleans up, and the suite goes on when the guardian has ended too (it holds the other end of the
//! pipe). At the end the suite looks at every journal again and repairs what is left.

use crate::bench;
use crate::clock;
use crate::hold;
use crate::kernel_log::KernelLog;
use crate::link::Preload;
use crate::machine;
use crate::probes::{self, Class, Probe};
use crate::report::{Line, Verdict};
use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, Signal};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidegate_agent::config::Method;

/// Name under which the suite's own last look appears.
pub const LAST_LOOK: &str = "end";
/// File with the driver's lines of the kernel's log, in the directory for results.
pub const KERNEL_LINES: &str = "kernel-log.txt";
/// Lines of the kernel's log that are noted for one probe; the file has all.
const MOST_LINES: usize = 20;
/// A guardian gets this long after its probe.
const AFTERMATH: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ids; empty: every probe of the classes in question.
    pub only: Vec<String>,
    /// Passed on to each probe: its arguments after the id.
    pub arguments: Vec<String>,
    /// How long P4 keeps channels disabled.
    pub long: Duration,
    /// Whether class B may run.
    pub class_b: bool,
    /// Where lines go besides the caller.
    pub results: Option<PathBuf>,
    /// Directory for journals and traces; a fresh one.
    pub dir: PathBuf,
    /// Where what is more than a line goes: what the driver wrote to the kernel's log.
    pub out: Option<PathBuf>,
    /// The kernel's log.
    pub kernel_log: PathBuf,
    /// What P2m found in an earlier run.
    pub method: Option<Method>,
}

impl Plan {
    /// The probes in question, and why some of them are skipped.
    ///
    /// # Errors
    /// When an id is not one.
    fn probes(&self) -> anyhow::Result<Vec<(&'static Probe, Option<String>)>> {
        let mut chosen = Vec::new();
        for id in &self.only {
            let Some(probe) = probes::find(id) else {
                let known: Vec<&str> = probes::ALL.iter().map(|probe| probe.id).collect();
                bail!("there is no probe {id}; there are {}", known.join(", "));
            };
            chosen.push(probe);
        }
        if chosen.is_empty() {
            chosen = probes::ALL.iter().collect();
        }
        // Class B last, when all results of class A are on disk, and whatever was asked for in the order of
        // the harm it may do.
        chosen.sort_by_key(|probe| {
            let place = probes::ALL.iter().position(|one| one.id == probe.id);
            (
                probe.class == Class::B,
                place.filter(|_| probe.class == Class::B),
            )
        });
        Ok(chosen
            .into_iter()
            .map(|probe| (probe, self.objection(probe)))
            .collect())
    }

    fn objection(&self, probe: &Probe) -> Option<String> {
        let long = probe.id == "P4" && self.long > Duration::from_secs(60);
        if probe.class == Class::A && !long {
            return None;
        }
        if let Some(sandbox) = machine::sandbox() {
            return Some(format!(
                "may disturb others who share this kernel ({sandbox})"
            ));
        }
        (!self.class_b).then(|| {
            "may stall the whole node: runs only with --kernel-is-ours, where nobody else uses this kernel"
                .to_owned()
        })
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every line, in order.
    pub lines: Vec<Line>,
}

impl Outcome {
    /// Verdicts, in order.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, Verdict, &str)> {
        self.lines.iter().filter_map(|line| match line {
            Line::Verdict {
                probe,
                verdict,
                reason,
                ..
            } => Some((probe.as_str(), *verdict, reason.as_str())),
            _ => None,
        })
    }

    /// Whether nothing failed.
    #[must_use]
    pub fn good(&self) -> bool {
        self.verdicts()
            .all(|(_, verdict, _)| verdict != Verdict::Fail)
    }
}

/// Whether the suite was asked to end.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn interrupted() -> bool {
    INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Turns Ctrl-C and a polite kill into a flag: the probe at hand is ended and cleaned up after.
fn listen_for_signals() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let flag = Arc::clone(INTERRUPTED.get_or_init(Arc::default));
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Runs the plan; `show` is given each line as it comes.
///
/// # Errors
/// When the plan makes no sense or results cannot be written. A probe that breaks is a result.
pub fn run(plan: &Plan, mut show: impl FnMut(&Line)) -> anyhow::Result<Outcome> {
    let probes = plan.probes()?;
    listen_for_signals()?;
    std::fs::create_dir_all(&plan.dir)
        .with_context(|| format!("cannot make {}", plan.dir.display()))?;
    if let Some(method) = plan.method {
        bench::note_method(&plan.dir, method)?;
    }
    let mut file = match &plan.results {
        Some(path) => Some(
            std::fs::File::create(path)
                .with_context(|| format!("cannot make {}", path.display()))?,
        ),
        None => None,
    };
    let mut outcome = Outcome::default();
    let mut put = |line: Line| -> anyhow::Result<()> {
        if let Some(file) = &mut file {
            writeln!(file, "{}", serde_json::to_string(&line)?).context("cannot write results")?;
        }
        show(&line);
        outcome.lines.push(line);
        Ok(())
    };
    put(Line::Machine(Box::new(machine::describe())))?;
    let mut beside = Beside::new(plan);
    if let Err(error) = &beside.log {
        let text = format!("the kernel log cannot be read here: {error}");
        put(Line::Note {
            probe: LAST_LOOK.to_owned(),
            text,
        })?;
    }
    let mut dirs = Vec::new();
    for (probe, objection) in probes {
        let objection = objection.or_else(|| interrupted().then(|| "interrupted".to_owned()));
        if let Some(reason) = objection {
            put(verdict(probe.id, Verdict::Skip, reason, 0.0))?;
            continue;
        }
        let dir = plan.dir.join(probe.id);
        std::fs::create_dir_all(&dir)?;
        dirs.push(dir.clone());
        one(plan, probe, &dir, &mut put)?;
        for line in beside.lines(probe.id)? {
            put(line)?;
        }
    }
    let start = clock::now_ns();
    let mut wrong = Vec::new();
    for dir in dirs {
        match hold::last_look(&dir) {
            Ok((Verdict::Pass, _)) => {}
            Ok((_, what)) => wrong.push(format!("{}: {what}", dir.display())),
            Err(error) => wrong.push(format!("{}: {error:#}", dir.display())),
        }
    }
    let seconds = (clock::now_ns() - start) as f64 / 1e9;
    let (state, reason) = if wrong.is_empty() {
        (Verdict::Pass, "nothing is left disabled".to_owned())
    } else {
        (Verdict::Fail, wrong.join("; "))
    };
    put(verdict(LAST_LOOK, state, reason, seconds))?;
    Ok(outcome)
}

fn verdict(probe: &str, verdict: Verdict, reason: impl Into<String>, seconds: f64) -> Line {
    Line::Verdict {
        probe: probe.to_owned(),
        verdict,
        reason: reason.into(),
        seconds,
        guesses: Vec::new(),
    }
}

/// The kernel's log beside the probes: each one's lines are noted under its name.
struct Beside {
    log: std::io::Result<KernelLog>,
    out: Option<PathBuf>,
}

impl Beside {
    fn new(plan: &Plan) -> Self {
        Self {
            log: KernelLog::open(&plan.kernel_log),
            out: plan.out.as_ref().map(|dir| dir.join(KERNEL_LINES)),
        }
    }

    /// What the driver wrote while `probe` ran.
    fn lines(&mut self, probe: &str) -> anyhow::Result<Vec<Line>> {
        let Ok(log) = &mut self.log else {
            return Ok(Vec::new());
        };
        let said = log.driver_lines();
        if let Some(path) = &self.out
            && !said.is_empty()
        {
            let mut file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            for line in &said {
                writeln!(file, "{probe} {line}")?;
            }
        }
        let note = |text: String| Line::Note {
            probe: probe.to_owned(),
            text,
        };
        let rest = said.len().saturating_sub(MOST_LINES);
        let mut notes: Vec<Line> = said
            .into_iter()
            .take(MOST_LINES)
            .map(|line| note(format!("kernel log: {line}")))
            .collect();
        if rest > 0 {
            notes.push(note(format!("kernel log: {rest} more lines of the driver")));
        }
        Ok(notes)
    }
}

fn one(
    plan: &Plan,
    probe: &Probe,
    dir: &Path,
    put: &mut impl FnMut(Line) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let start = clock::now_ns();
    let mut child = Command::new(std::env::current_exe()?)
        .arg("one")
        .arg(probe.id)
        .arg(dir)
        .args(&plan.arguments)
        // Its end is the probe's sign that the suite is gone.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C is for the suite to pass on.
        .process_group(0)
        .spawn()
        .context("cannot start a probe")?;
    let out = child.stdout.take().context("a probe's output")?;
    let (line_tx, line_rx) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if line_tx.send(line).is_err() {
                break;
            }
        }
    });
    let limit = probe.limit(plan.long);
    let mut end = start + clock::nanos(limit);
    let mut killed: Option<String> = None;
    let mut decided = false;
    loop {
        match line_rx.recv_timeout(Duration::from_millis(50)) {
            Ok(text) => {
                let line: Line = serde_json::from_str(&text)
                    .with_context(|| format!("{} said {text:?}", probe.id))?;
                decided |= matches!(line, Line::Verdict { .. });
                put(line)?;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let late = clock::now_ns() >= end;
                match &killed {
                    None if interrupted() => killed = Some("interrupted".to_owned()),
                    None if late => killed = Some(format!("not done in {limit:?}")),
                    // The guardian hangs too: the last look tries once more.
                    Some(_) if late => break,
                    _ => continue,
                }
                let _ = child.kill();
                end = clock::now_ns() + clock::nanos(AFTERMATH);
            }
        }
    }
    // The pipe is closed: the probe and its guardian are gone, or as good as gone.
    let status = clock::until(Duration::from_secs(2), || child.try_wait().ok().flatten());
    if !decided {
        let seconds = (clock::now_ns() - start) as f64 / 1e9;
        let reason = killed.unwrap_or_else(|| format!("the probe broke ({})", describe(status)));
        put(verdict(probe.id, Verdict::Fail, reason, seconds))?;
    }
    Ok(())
}

fn describe(status: Option<std::process::ExitStatus>) -> String {
    status.map_or_else(|| "it hangs in the kernel".to_owned(), |s| s.to_string())
}

/// Ends this probe with the suite, however that ended: its standard input ends then.
pub fn end_with_the_suite() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        // Not politely: destructors of the driver wait for the GPU. The guardian does the rest.
        let _ = nix::sys::signal::raise(Signal::SIGKILL);
    });
}

/// Where the workers' preload library and driver are: the library beside this program, where packages put it, or as
/// said; the virtual GPU's driver beside its shim.
///
/// # Errors
/// When a link cannot be made.
pub fn preload(library: Option<&Path>, scratch: &Path) -> anyhow::Result<Preload> {
    let library = match library {
        Some(library) if !library.exists() => bail!("{} is not there", library.display()),
        Some(library) => Some(library.to_owned()),
        None => tidegate_agent::selftest::find_library(),
    };
    let mut driver = None;
    if machine::is_virtual() {
        let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let built = std::env::split_paths(&preloaded)
            .map(|shim| shim.with_file_name("libcuda.so"))
            .find(|path| path.exists())
            .context("no libcuda.so of the virtual GPU beside its shim")?;
        let dir = scratch.join("driver");
        std::fs::create_dir_all(&dir)?;
        match std::os::unix::fs::symlink(built, dir.join("libcuda.so.1")) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error.into());
            }
            _ => driver = Some(dir),
        }
    }
    let mps = None;
    Ok(Preload {
        library,
        driver,
        mps,
        variables: Vec::new(),
    })
}
