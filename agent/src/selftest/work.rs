//! The self-test's own GPU work, in a process of its own: `tidegate-agent --self-test-work`.
//!
//! On every GPU long kernels are kept queued that fill it: every multiprocessor has a block that spins,
//! and the first thread adds one to a counter in host memory every step of the way. What stops the
//! channel stops the counter, in mid-kernel too, and nothing else does. The kernels come one by one or
//! as a graph's. The agent itself never loads `libcuda`: a driver library in its process would be a
//! second user of the files and locks it measures, and could take it down.
//!
//! ```text
//! stdout: ready UUID ...              every counter moves; by CUDA ordinal
//! stdin:  read                        stdout: COUNTER:QUEUED ...  steps by CUDA ordinal
//! stdin:  kernels | graphs            stdout: STEPS ...           after which the counters are theirs
//! stdin:  fine ORDINAL                stdout: STEPS ...           the same; short steps on that GPU
//! stdin:  watch ORDINAL NS            stdout: watching            looks at that counter all the time, until it has
//!                                     stdout: still LAST BLIND COUNTER    stood still for so long: when it last
//!                                     moved, and how long nobody had looked then; or
//!                                     stdout: moves               it does not stand still
//! stdin:  (end)                       ends
//! stdout: error TEXT                  and ends with 1
//! ```
//!
//! When the agent dies, a launch may wait for ever on a gate that nobody opens: who reads standard input
//! then ends the process, after the preloaded library had the time to enable what is disabled.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tidegate_abi::uuid::Uuid;
use tidegate_driver::cuda::{Counter, Cuda, CudaError, Handle};
use tidegate_driver::kernels::{Kernels, Steps};
use tidegate_driver::sys::monotonic_ns;
use tidegate_driver::worker::{listen, say};

/// Steps of a kernel, and how long each takes: long enough to be caught in the middle.
pub const STEPS: u64 = 200;
const STEP_NS: u64 = 100_000;
/// Length of a kernel.
pub const KERNEL_NS: u64 = STEPS * STEP_NS;
/// A step of a kernel whose stop is timed, and how many it has.
pub const FINE_STEP_NS: u64 = 10_000;
const FINE_STEPS: u64 = KERNEL_NS / FINE_STEP_NS;
/// Kernels of a graph.
const NODES: u64 = 3;
/// Kernels kept queued, at least: the rest of what runs, and something behind it.
const QUEUED: u64 = 2;
/// A counter that moves for so long after it has begun to be watched does not stand still.
const WATCHED_NS: u64 = 1_500_000_000;
/// A turn of the loop.
const TURN: Duration = Duration::from_millis(1);
/// Longer than the library's soft landing takes.
const GRACE: Duration = Duration::from_secs(3);
/// `CU_CTX_SCHED_AUTO`
const CONTEXT_FLAGS: u32 = 0;

/// Does the work until standard input ends.
#[must_use]
pub fn run() -> ExitCode {
    match Work::start().and_then(|mut work| work.go()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Why there is no work.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("no libcuda: {0}")]
    NoDriver(String),
    #[error("libcuda has no {0}")]
    NoFunction(&'static str),
    #[error("{0} answered CUDA error {1}")]
    Cuda(&'static str, i32),
    #[error("standard input: {0}")]
    Input(#[source] std::io::Error),
}

impl From<CudaError> for WorkError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Library(why) => Self::NoDriver(why),
            CudaError::Symbol(name) => Self::NoFunction(name),
            CudaError::Call { call, code } => Self::Cuda(call, code),
        }
    }
}

struct Gpu {
    uuid: Uuid,
    context: Handle,
    stream: Handle,
    kernels: Kernels,
    steps: Steps,
    fine: Steps,
    graph: Handle,
    counter: Counter,
    /// Steps of all that was launched.
    launched: u64,
}

/// What somebody asked for on standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read,
    Launch(Launched),
    Watch { ordinal: usize, still_ns: u64 },
}

/// What is launched on the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launched {
    Kernels,
    Graphs,
    /// Kernels of short steps on one GPU.
    Fine(usize),
}

struct Work {
    cuda: Cuda,
    gpus: Vec<Gpu>,
    launched: Launched,
    asked: Receiver<Asked>,
}

impl Work {
    fn start() -> Result<Self, WorkError> {
        let asked = listen(GRACE, understand).map_err(WorkError::Input)?;
        let cuda = Cuda::load()?;
        let gpus = (0..cuda.count()?)
            .map(|ordinal| Gpu::open(&cuda, ordinal))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            cuda,
            gpus,
            launched: Launched::Kernels,
            asked,
        })
    }

    fn go(&mut self) -> Result<(), WorkError> {
        let mut ready = false;
        loop {
            self.feed()?;
            if !ready && self.gpus.iter().all(|gpu| gpu.counter.value() > STEPS) {
                ready = true;
                let uuids: Vec<_> = self.gpus.iter().map(|gpu| gpu.uuid.to_string()).collect();
                say(&format!("ready {}", uuids.join(" ")));
            }
            match self.asked.recv_timeout(TURN) {
                Ok(Asked::Launch(what)) => {
                    self.launched = what;
                    let launched = self.gpus.iter().map(|gpu| gpu.launched.to_string());
                    say(&launched.collect::<Vec<_>>().join(" "));
                }
                Ok(Asked::Read) => {
                    let of = |gpu: &Gpu| {
                        let value = gpu.counter.value();
                        format!("{value}:{}", gpu.launched.saturating_sub(value))
                    };
                    let values: Vec<_> = self.gpus.iter().map(of).collect();
                    say(&values.join(" "));
                }
                Ok(Asked::Watch { ordinal, still_ns }) => {
                    say("watching");
                    let seen = self.watch(ordinal, still_ns)?;
                    say(&seen);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn feed(&mut self) -> Result<(), CudaError> {
        for (ordinal, gpu) in self.gpus.iter_mut().enumerate() {
            gpu.feed(&self.cuda, self.launched, ordinal)?;
        }
        Ok(())
    }

    /// Looks at a counter until it stands still; what there is to say of it.
    fn watch(&mut self, ordinal: usize, still_ns: u64) -> Result<String, CudaError> {
        let begun = monotonic_ns();
        let Some(counter) = self.gpus.get(ordinal).map(|gpu| gpu.counter) else {
            return Ok("error there is no such GPU".to_owned());
        };
        let (mut looked, mut value) = (begun, counter.value());
        let (mut last, mut blind) = (begun, 0);
        loop {
            let (now_at, now) = (counter.value(), monotonic_ns());
            if now_at != value {
                (value, last, blind) = (now_at, now, now - looked);
            } else if now - last >= still_ns {
                return Ok(format!("still {last} {blind} {value}"));
            }
            if now - begun >= WATCHED_NS {
                return Ok("moves".to_owned());
            }
            looked = now;
            self.feed()?;
        }
    }
}

/// What a line of standard input asks for.
fn understand(line: &str) -> Asked {
    match line {
        "kernels" => Asked::Launch(Launched::Kernels),
        "graphs" => Asked::Launch(Launched::Graphs),
        _ => of_one_gpu(line).unwrap_or(Asked::Read),
    }
}

/// What a line asks for that names a GPU.
fn of_one_gpu(line: &str) -> Option<Asked> {
    let mut words = line.split(' ');
    let (word, ordinal) = (words.next()?, words.next()?.parse().ok()?);
    match word {
        "fine" => Some(Asked::Launch(Launched::Fine(ordinal))),
        "watch" => Some(Asked::Watch {
            ordinal,
            still_ns: words.next()?.parse().ok()?,
        }),
        _ => None,
    }
}

impl Gpu {
    fn open(cuda: &Cuda, ordinal: i32) -> Result<Self, CudaError> {
        let device = cuda.device(ordinal)?;
        let context = cuda.context(device, CONTEXT_FLAGS)?;
        let kernels = Kernels::load(cuda)?;
        let blocks = cuda.multiprocessors(device)?;
        let stream = cuda.stream()?;
        let counter = cuda.counter()?;
        let steps = Steps {
            counter: counter.at(),
            steps: STEPS,
            step_ns: STEP_NS,
            blocks,
        };
        let fine = Steps {
            steps: FINE_STEPS,
            step_ns: FINE_STEP_NS,
            ..steps
        };
        let graph = kernels.graph_of_steps(cuda, stream, NODES, steps)?;
        Ok(Self {
            uuid: Uuid(cuda.uuid(device)?),
            context,
            stream,
            kernels,
            steps,
            fine,
            graph,
            counter,
            launched: 0,
        })
    }

    /// Keeps the queue filled, and no fuller: a launch must never block while the channel is disabled.
    fn feed(&mut self, cuda: &Cuda, what: Launched, ordinal: usize) -> Result<(), CudaError> {
        let kernel = match what {
            Launched::Fine(timed) if timed == ordinal => self.fine,
            _ => self.steps,
        };
        let queued = QUEUED * kernel.steps;
        if self.launched >= self.counter.value() + queued {
            return Ok(());
        }
        cuda.enter(self.context)?;
        while self.launched < self.counter.value() + queued {
            if what == Launched::Graphs {
                cuda.launch_graph(self.graph, self.stream)?;
                self.launched += NODES * STEPS;
            } else {
                self.kernels.launch_steps(cuda, self.stream, kernel)?;
                self.launched += kernel.steps;
            }
        }
        Ok(())
    }
}
