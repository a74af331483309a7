//! Nothing stays disabled, whatever becomes of a probe.
//!
//! Three lines of defence. Every pair is marked in a journal before it is disabled and cleared after it
//! was enabled (the agent's own journal, in the probe's directory). A *guardian*, a second process in
//! a session of its own that ignores every polite signal, sleeps on a pipe of the probe; when the
//! pipe ends, whyever, it enables all that is marked, then sees to it that the workers are gone. And
//! a worker enables its own channels when its input ends, which also works where the firmware lets
//! nobody else do so. The suite reads the journals again at its end.

use crate::clock;
use crate::report::{Reporter, Verdict};
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_agent::channels::journal::{self, Journal, Place, Places};
use tidegate_agent::channels::reconcile::{self, Reconciled};

/// Where the ids of a probe's workers stand, one a line.
const PIDS: &str = "pids";
/// How long the guardian tries.
const TRIES: u32 = 60;
/// How long a worker may take to end by itself.
const LINGER: Duration = Duration::from_secs(5);

/// The journal of one probe, and its guardian.
#[derive(Debug)]
pub struct Hold {
    dir: PathBuf,
    journal: Journal,
    places: RefCell<Places>,
    guardian: RefCell<Child>,
}

impl Hold {
    /// Opens the journal in `dir` and starts the guardian.
    ///
    /// # Errors
    /// When either cannot be had.
    pub fn new(dir: &Path, probe: &str) -> anyhow::Result<Self> {
        let (journal, _) = journal::open(dir).context("cannot make the journal")?;
        let places = RefCell::new(Places::without(&journal.marked()));
        let guardian = Command::new(std::env::current_exe()?)
            .arg("guardian")
            .arg(dir)
            .arg(probe)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start the guardian")?;
        Ok(Self {
            dir: dir.to_owned(),
            journal,
            places,
            guardian: RefCell::new(guardian),
        })
    }

    /// Whether the guardian is there: without it nothing may be disabled.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.guardian.borrow_mut().try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the guardian has ended ({status})"),
        }
    }

    /// A place for a pair.
    ///
    /// # Errors
    /// When the journal is full.
    pub fn place(&self, client: u32, channel: u32, instance: u32) -> anyhow::Result<Place> {
        let place = self
            .places
            .borrow_mut()
            .take()
            .context("the journal is full")?;
        self.journal.describe(place, client, channel, instance);
        Ok(place)
    }

    /// The journal.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Writes down that a worker runs.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn started(&self, pid: u32) -> anyhow::Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(PIDS))?;
        Ok(writeln!(file, "{pid}")?)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The end of its input; it then looks at the journal and goes.
        let guardian = self.guardian.get_mut();
        drop(guardian.stdin.take());
        let _ = guardian.wait();
    }
}

/// The guardian's life.
///
/// # Errors
/// When what is marked could not be enabled.
pub fn guard(dir: &Path, probe: &str) -> anyhow::Result<()> {
    stand_aside()?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let report = Reporter::new(probe);
    let mut done = release(dir)?;
    if done != Reconciled::default() {
        report.note(format!("the guardian released what was left: {done}"));
    }
    let killed = end_workers(dir);
    if killed > 0 {
        report.note(format!("the guardian ended {killed} workers"));
    }
    if done.failed > 0 {
        // What could not be enabled is gone with its worker.
        done = release(dir)?;
        report.note(format!("and when the workers had ended: {done}"));
    }
    let first = done.lines().next().unwrap_or_default();
    anyhow::ensure!(
        done.failed == 0,
        "{} channels stay disabled: {first}",
        done.failed
    );
    Ok(())
}

/// A session of its own and no polite signals: what ends the suite's process group, or stops and hangs
/// up on it, must not end who has channels to enable first.
///
/// # Errors
/// When the kernel refuses.
pub fn stand_aside() -> anyhow::Result<()> {
    nix::unistd::setsid().context("cannot make a session")?;
    let mut polite = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        polite.add(signal);
    }
    polite.thread_block().context("cannot block signals")
}

/// Enables all that the journal in `dir` marks, trying for a while.
///
/// # Errors
/// When the driver cannot be asked to the end.
pub fn release(dir: &Path) -> anyhow::Result<Reconciled> {
    let Some(journal) = journal::find(dir).context("cannot read the journal")? else {
        return Ok(Reconciled::default());
    };
    let mut all = Reconciled::default();
    for attempt in 1..=TRIES {
        let done = reconcile::enable_marked(&journal);
        all = Reconciled {
            enabled: all.enabled + done.enabled,
            gone: all.gone + done.gone,
            ..done
        };
        if !all.may_change() || attempt == TRIES {
            break;
        }
        clock::pause(Duration::from_millis(500));
    }
    Ok(all)
}

/// Sees to it that no worker of the probe in `dir` runs on; how many had to be killed.
pub fn end_workers(dir: &Path) -> usize {
    let text = std::fs::read_to_string(dir.join(PIDS)).unwrap_or_default();
    let running = |pid: &i32| {
        // Ids are given out again: only what is still this program counts.
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(14).any(|part| part == b"tidegate-probe"))
    };
    let mut pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    clock::until(LINGER, || {
        pids.retain(running);
        pids.is_empty().then_some(())
    });
    pids.retain(running);
    for pid in &pids {
        let _ = nix::sys::signal::kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    pids.len()
}

/// The suite's last look at one probe's directory: what is still marked, enabled here.
///
/// # Errors
/// When the driver cannot be asked.
pub fn last_look(dir: &Path) -> anyhow::Result<(Verdict, String)> {
    let killed = end_workers(dir);
    let done = release(dir)?;
    Ok(if done.failed > 0 {
        (Verdict::Fail, format!("channels stay disabled: {done}"))
    } else if done != Reconciled::default() || killed > 0 {
        let text = format!("had to be repaired: {done}; {killed} workers killed");
        (Verdict::Fail, text)
    } else {
        (Verdict::Pass, String::new())
    })
}
