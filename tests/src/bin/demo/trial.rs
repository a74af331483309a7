//! `tidegate try`: a program of the user's own on the virtual GPU, under the library and an agent, and what the device
//! saw of it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::bail;
use tidegate_tests::figures::{self, Span};
use tidegate_tests::plan::Plan;
use tidegate_tests::{BUILT, Running, monotonic_ns};
use tidegate_text::numbers::thousands;
use tidegate_vgpu::history::{Kind, Record};

use crate::interrupt;
use crate::progress::Progress;
use crate::runs::{Program, Runs};
use crate::stand::{Device, Lane, Stand};

/// How long a program that was asked to end has for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the device has to notice that the program ended, which frees its channels.
const SETTLING: Duration = Duration::from_secs(1);
/// Said of a program that made no channel.
const NO_CHANNEL: &str = "It made no channel on the GPU, so it launched nothing. The virtual GPU has the public driver API only: a program that uses \
    libcudart, such as PyTorch, needs a real GPU.";

/// How the user's program runs.
#[derive(Debug, clap::Args)]
pub struct How {
    /// Role of the program
    #[arg(long, value_enum, default_value = "offline", requires = "program")]
    role: Role,
    /// Run nothing beside it
    #[arg(long, requires = "program")]
    alone: bool,
    /// What each kernel of the program takes, in microseconds: the virtual GPU does not compute
    #[arg(long, value_name = "N", default_value_t = 20, requires = "program")]
    kernel_us: u64,
    /// End the program with SIGTERM after this many seconds
    #[arg(long, value_name = "N", requires = "program")]
    end_after: Option<u64>,
}

/// What the program asks to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// It has the GPU whenever it wants it.
    Online,
    /// It has the GPU while online is idle.
    Offline,
}

/// A program to try, and the requests that are served beside it.
#[derive(Debug)]
pub struct Trial<'a> {
    /// How it runs.
    pub options: &'a How,
    /// The program and its arguments.
    pub program: &'a [OsString],
    /// What an online program beside it serves, over and over.
    pub plan: &'a Plan,
    /// Of the plan.
    pub length: Duration,
    /// Of the decode gaps.
    pub seed: u64,
}

/// What the device saw of the processes of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Processes that made a channel.
    processes: usize,
    /// Channels that are still there.
    channels: usize,
    /// Kernels that began.
    begun: usize,
    /// Kernels that ended.
    ended: usize,
    /// When the channels of its offline processes were disabled.
    stops: Vec<Span>,
    /// Channels that were killed for a fault.
    faults: usize,
}

impl Trial<'_> {
    /// Runs the program to its end; its exit code, as a shell gives it.
    ///
    /// # Errors
    /// When device, agent or the program beside it do not come up, or the program cannot be started.
    pub fn run(&self, progress: &mut Progress) -> anyhow::Result<ExitCode> {
        let kernels = format!("kernel_us={}", self.options.kernel_us);
        let mut stand = Stand::new(Device::Virtual, &["--set", &kernels])?;
        stand.start_agent(None)?;
        let beside = self.beside(&mut stand, progress)?;
        let Some((first, arguments)) = self.program.split_first() else {
            bail!("no program is named");
        };
        let mut command = self.command(&stand, first)?;
        command.args(arguments);
        progress.done(&self.said(&stand));
        let from_ns = monotonic_ns();
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                eprintln!("tidegate: cannot start {}: {error}", first.display());
                let absent = error.kind() == std::io::ErrorKind::NotFound;
                return Ok(ExitCode::from(if absent { 127 } else { 126 }));
            }
        };
        let status = self.until_ended(child)?;
        let span = Span {
            from_ns,
            to_ns: monotonic_ns(),
        };
        let other = beside.as_ref().map(|program| program.process.pid());
        let not_its: BTreeSet<u32> = other.into_iter().chain(stand.agent()).collect();
        let offline = match self.options.role {
            Role::Offline => None,
            Role::Online => other,
        };
        let end = monotonic_ns() + SETTLING.as_nanos() as u64;
        let seen = loop {
            let seen = seen(stand.history()?, &not_its, offline, span);
            if seen.channels == 0 || monotonic_ns() >= end {
                break seen;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        eprint!("{}", text(&seen, self.options.role, other.is_some(), span));
        Ok(code(status))
    }

    /// What runs beside the program: of the other role.
    fn beside(
        &self,
        stand: &mut Stand,
        progress: &mut Progress,
    ) -> anyhow::Result<Option<Program>> {
        if self.options.alone {
            return Ok(None);
        }
        let mut runs = Runs {
            stand,
            plan: self.plan,
            length: self.length,
            seed: self.seed,
            progress,
        };
        let program = match self.options.role {
            Role::Offline => runs.start_for_ever()?,
            Role::Online => runs.start_offline(Lane::Preloaded("offline"))?,
        };
        Ok(Some(program))
    }

    /// The program with this process' own input and output, and with what its environment had already.
    fn command(&self, stand: &Stand, program: &OsStr) -> anyhow::Result<Command> {
        let role = match self.options.role {
            Role::Online => "online",
            Role::Offline => "offline",
        };
        let mut command = stand.command(program.as_ref(), Lane::Preloaded(role))?;
        if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty()) {
            let paths = [BUILT.as_os_str().to_owned(), paths].join(OsStr::new(":"));
            command.env("LD_LIBRARY_PATH", paths);
        }
        match std::env::var_os("TIDEGATE_JOB") {
            Some(job) => command.env("TIDEGATE_JOB", job),
            None if self.options.role == Role::Offline => command.env("TIDEGATE_JOB", "try"),
            None => &mut command,
        };
        command.env_remove("TIDEGATE_TESTS_BUILT");
        command
            .stdin(Stdio::inherit())
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    /// What is said before the program starts.
    fn said(&self, stand: &Stand) -> String {
        let (role, other) = match self.options.role {
            Role::Offline => ("offline", "an online server with requests"),
            Role::Online => ("online", "an offline job"),
        };
        let beside = if self.options.alone {
            "alone".to_owned()
        } else {
            format!("beside {other}")
        };
        format!(
            "VIRTUAL GPU: no hardware. The program runs on it {role}, {beside}. A kernel takes {} us, and computes \
             nothing.\nWhile it runs: TIDEGATE_RUN_DIR={} tidegate top",
            self.options.kernel_us,
            stand.run_dir().display()
        )
    }

    /// Waits for the program. Who interrupts this process interrupts the program, and is shown what there was.
    fn until_ended(&self, child: std::process::Child) -> anyhow::Result<ExitStatus> {
        let mut program = Running::of("the program", child);
        let limit = self.options.end_after.map(Duration::from_secs);
        let start = monotonic_ns();
        let since = |at: u64| Duration::from_nanos(monotonic_ns().saturating_sub(at));
        let mut asked = None;
        loop {
            if let Some(status) = program.child.try_wait()? {
                return Ok(status);
            }
            // After the first time nothing but the end of the program or of the patience ends this.
            let interrupted = interrupt::pause(Duration::from_millis(10)).is_err();
            let late = limit.is_some_and(|limit| since(start) >= limit);
            match asked {
                None if interrupted || late => {
                    program.signal(libc::SIGTERM);
                    asked = Some(monotonic_ns());
                }
                Some(at) if since(at) >= PATIENCE => {
                    eprintln!("tidegate: the program does not end on SIGTERM; it is killed");
                    program.child.kill()?;
                    return Ok(program.child.wait()?);
                }
                Some(_) => std::thread::sleep(Duration::from_millis(10)),
                None => {}
            }
        }
    }
}

/// What the device saw since `span` began of all processes but those in `not_its`. Stopped are they, or the process
/// `offline` beside them.
fn seen(history: &[Record], not_its: &BTreeSet<u32>, offline: Option<u32>, span: Span) -> Seen {
    let its = |pid: u32| !not_its.contains(&pid);
    let later = |record: &&Record| record.at_ns >= span.from_ns && its(record.pid);
    let count = |kind: Kind| {
        let records = history.iter().filter(later);
        records.filter(|record| record.kind == kind).count()
    };
    let processes: BTreeSet<u32> = history
        .iter()
        .filter(later)
        .filter(|record| record.kind == Kind::ChannelUp)
        .map(|record| record.pid)
        .collect();
    let stops = match offline {
        Some(offline) => figures::stops(history, |pid| pid == offline, span),
        None => figures::stops(history, its, span),
    };
    Seen {
        processes: processes.len(),
        channels: count(Kind::ChannelUp).saturating_sub(count(Kind::ChannelDown)),
        begun: count(Kind::KernelStart),
        ended: count(Kind::KernelEnd),
        stops,
        faults: count(Kind::Fault),
    }
}

/// What is said after the program ended.
fn text(seen: &Seen, role: Role, beside: bool, span: Span) -> String {
    let seconds = span.length().as_secs_f64();
    let mut text = format!("\nVIRTUAL GPU, what it saw of the program in {seconds:.1} s:\n");
    if seen.processes == 0 {
        let _ = writeln!(text, "  {NO_CHANNEL}");
        return text;
    }
    let mut row = |name: &str, said: String| {
        let _ = writeln!(text, "  {name:<11}{said}");
    };
    row("processes", seen.processes.to_string());
    let [begun, ended] = [seen.begun, seen.ended].map(|count| thousands(count as f64));
    row(
        "launches",
        format!("{begun} kernels began, {ended} of them ended"),
    );
    let closed: Duration = seen.stops.iter().map(Span::length).sum();
    let longest = seen.stops.iter().map(Span::length).max();
    let of = match role {
        Role::Offline => "the program's channels were disabled",
        Role::Online => "the offline job's channels were disabled for it",
    };
    row(
        "gates",
        match longest {
            None if beside => format!("{of} 0 times"),
            None => "nothing ran beside it that a gate could be for".to_owned(),
            Some(longest) => format!(
                "{of} {} times, for {:.1} s in all, at most {:.0} ms at once",
                seen.stops.len(),
                closed.as_secs_f64(),
                1e3 * longest.as_secs_f64()
            ),
        },
    );
    if seen.faults > 0 {
        row("faults", format!("{} channels were killed", seen.faults));
    }
    text
}

/// As a shell gives it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::span;

    const PROGRAM: u32 = 30;
    const BESIDE: u32 = 10;

    fn record(at_ms: u64, kind: Kind, pid: u32) -> Record {
        Record {
            pid,
            ..Record::new(at_ms * 1_000_000, kind)
        }
    }

    /// P-OPERATE-29: what others did is not the program's.
    #[test]
    fn only_what_the_program_did_since_it_began_is_told() {
        let not_its = BTreeSet::from([BESIDE]);
        let history = [
            record(5, Kind::KernelStart, PROGRAM),
            record(11, Kind::ChannelUp, PROGRAM),
            record(12, Kind::KernelStart, PROGRAM),
            record(12, Kind::KernelStart, BESIDE),
            record(13, Kind::DisableBegin, PROGRAM),
            record(18, Kind::EnableEnd, PROGRAM),
            record(19, Kind::KernelEnd, PROGRAM),
            record(20, Kind::DisableBegin, BESIDE),
            record(30, Kind::DisableBegin, PROGRAM),
        ];
        let offline = seen(&history, &not_its, None, span(10, 40));
        let stops = vec![span(13, 18), span(30, 40)];
        let all = Seen {
            processes: 1,
            channels: 1,
            begun: 1,
            ended: 1,
            stops,
            faults: 0,
        };
        assert_eq!(offline, all);
        let online = seen(&history, &not_its, Some(BESIDE), span(10, 40));
        assert_eq!(online.stops, [span(20, 40)]);

        let said = text(&all, Role::Offline, true, span(10, 40));
        assert!(said.contains("VIRTUAL GPU"), "{said}");
        assert!(said.contains("1 kernels began, 1 of them ended"), "{said}");
        assert!(
            said.contains("disabled 2 times, for 0.0 s in all, at most 10 ms"),
            "{said}"
        );
        let none = text(&Seen::default(), Role::Offline, true, span(10, 40));
        assert!(none.contains("launched nothing") && none.contains("libcudart"));
    }
}
