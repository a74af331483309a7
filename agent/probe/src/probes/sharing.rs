//! P15: two ways of sharing a GPU that are not ours, and what the gate is worth under them.
//!
//! A green context brings channels of its own: the gate must hold those too, and where a graph that was
//! recorded outside it runs decides whether an engine with graphs can be confined at all. A client of
//! MPS may have no channels of its own: then nothing can be disabled for it alone.

use crate::bench::{Bench, Ending, STEP_NS, fail, pass, skip};
use crate::clock::nanos;
use crate::link::{Preload, Worker};
use crate::message::{Op, Wait};
use anyhow::Context;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Lane whose stream is the green context's.
const GREEN: &str = "green";
/// How long each block of `tg_sms` stays, so that all multiprocessors get one.
const STAY: Duration = Duration::from_millis(1);
/// Long enough for a gate to shut and open in it, also on a slow machine.
const LONG: Duration = Duration::from_secs(10);
const DAEMON: &str = "nvidia-cuda-mps-control";

pub(super) fn green(bench: &Bench) -> anyhow::Result<Ending> {
    let way = bench.best_way()?;
    let mut worker = bench.worker("green", Wait::Spin)?;
    let total = match worker.one(Op::Multiprocessors) {
        Ok(done) => u32::try_from(done.value)?,
        Err(error) => return Ok(skip(format!("no green contexts here: {error:#}"))),
    };
    let before = worker.trace.channels().len();
    let made = worker.call(GREEN, vec![Op::Green { least: total / 4 }])?;
    let made = made.first().copied().context("an empty answer")?;
    worker.trace.read()?;
    let after = worker.trace.channels().len();
    let mut ran_on = |lane: &str, graph: bool| -> anyhow::Result<u64> {
        let ns = nanos(STAY);
        let blocks = 2 * total;
        let done = worker.call(lane, vec![Op::Sms { blocks, ns, graph }])?;
        Ok(done.first().context("an empty answer")?.value)
    };
    let plain = ran_on("main", false)?;
    let confined = ran_on(GREEN, false)?;
    let recorded = ran_on(GREEN, true)?;
    let report = &bench.report;
    report.micros("making a green context", made.ns);
    report.figure("channels without a green context", before as f64, "");
    report.figure("channels with one", after as f64, "");
    report.figure("SMs of the device", f64::from(total), "");
    report.figure("SMs of the green context", made.value as f64, "");
    report.figure("SMs a kernel ran on outside it", plain as f64, "");
    report.figure("SMs a kernel ran on in it", confined as f64, "");
    report.figure(
        "SMs a graph recorded outside ran on in it",
        recorded as f64,
        "",
    );
    report.note(if recorded > made.value {
        "a graph keeps the multiprocessors of the context it was recorded in"
    } else {
        "a graph is confined to the green context it is launched in"
    });
    let mut subject = bench.adopt(worker, way)?;
    let (steps, launch) = long_kernel();
    let from = subject.worker.progress()?;
    subject.worker.call(GREEN, vec![launch])?;
    subject.launched += steps;
    subject.worker.moved(from, crate::bench::SOON)?;
    if let Some(wrong) = bench.stops_and_resumes(&mut subject, LONG, 1)? {
        return Ok(fail(format!("a kernel of a green context: {wrong}")));
    }
    Ok(if confined > made.value {
        fail(format!(
            "a kernel of a green context of {} SMs ran on {confined}",
            made.value
        ))
    } else {
        pass()
    })
}

/// A kernel of [`LONG`], and its steps.
fn long_kernel() -> (u64, Op) {
    let steps = nanos(LONG) / STEP_NS;
    let launch = Op::Steps {
        steps,
        step_ns: STEP_NS,
        blocks: 1,
    };
    (steps, launch)
}

pub(super) fn mps(bench: &Bench) -> anyhow::Result<Ending> {
    let Some(daemon) = in_path(DAEMON) else {
        return Ok(skip(format!("no {DAEMON} in PATH")));
    };
    let way = bench.best_way()?;
    let server = Server::start(&daemon, &bench.dir.join("mps"))?;
    let preload = Preload {
        mps: Some(server.pipes.clone()),
        ..bench.options.preload.clone()
    };
    let client = |name: &str| -> anyhow::Result<Worker> {
        let mut worker = bench.bare_worker(name, &preload)?;
        worker.context(bench.options.ordinal, Wait::Spin)?;
        Ok(worker)
    };
    let (first, mut second) = (client("client")?, client("other")?);
    let own = first.trace.channels().len();
    bench.report.figure("channels of a client", own as f64, "");
    if own == 0 {
        bench
            .report
            .note("the work of all clients is on the server's channels: none can be gated alone");
        return Ok(pass());
    }
    let mut first = bench.adopt(first, way)?;
    let (steps, launch) = long_kernel();
    let from = first.worker.progress()?;
    first.worker.call("work", vec![launch.clone()])?;
    first.launched += steps;
    first.worker.moved(from, crate::bench::SOON)?;
    let from = second.progress()?;
    second.call("work", vec![launch])?;
    second.moved(from, crate::bench::SOON)?;
    let disable = first.set(true)?;
    let moved = first.worker.progress_over(crate::bench::STILL)?;
    let from = second.progress()?;
    let others = second.moved(from, crate::bench::SOON);
    first.set(false)?;
    bench.report.micros("disabling a client", disable);
    let from = first.worker.progress()?;
    let resumed = first.worker.moved(from, crate::bench::SOON);
    Ok(match (moved, others, resumed) {
        (0, Ok(_), Ok(_)) => pass(),
        (0, Err(error), _) => fail(format!("the other client stopped too: {error}")),
        (0, _, Err(error)) => fail(format!("the client did not go on: {error}")),
        (moved, ..) => fail(format!(
            "the client made {moved} steps in {:?} while disabled",
            crate::bench::STILL
        )),
    })
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// An MPS daemon of our own, beside any that runs. It is told to quit when this value goes, and also
/// when this process is killed: a shell waits for the end of a pipe of which we hold the other end.
struct Server {
    pipes: PathBuf,
    shell: Child,
}

impl Server {
    fn start(daemon: &Path, dir: &Path) -> anyhow::Result<Self> {
        let pipes = dir.join("pipes");
        std::fs::create_dir_all(&pipes)?;
        let mut shell = Command::new("sh")
            .arg("-c")
            // Who was to hear that it is up may be gone: the pipe without a reader must not end the shell.
            .arg(
                "\"$0\" -d && (trap '' PIPE; echo up && cat > /dev/null); \
                 echo quit -t 5 | \"$0\" > /dev/null",
            )
            .arg(daemon)
            .env("CUDA_MPS_PIPE_DIRECTORY", &pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a shell for the MPS daemon")?;
        let mut said = String::new();
        let out = shell.stdout.take().context("the shell's output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said)?;
        if said.trim() != "up" {
            let _ = shell.wait();
            anyhow::bail!("{} -d did not start", daemon.display());
        }
        Ok(Self { pipes, shell })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut input) = self.shell.stdin.take() {
            let _ = input.flush();
        }
        let _ = self.shell.wait();
    }
}
