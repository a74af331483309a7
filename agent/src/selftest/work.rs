//! The self-test's own GPU work, in a process of its own: `tidegate-agent --self-test-work`.
//!
//! On every GPU long kernels are kept queued that fill it: every multiprocessor has a block that spins,
//! and the first thread adds one to a counter in host memory every step of the way. What stops the
//! channel stops the counter, in mid-kernel too, and nothing else does. The kernels come one by one or
//! as a graph's. The agent itself never loads `libcuda`: a driver library in its process would be a
//! second user of the files and locks it measures, and could take it down.
//!
//! ```text
//! stdout: ready                       every counter moves
//! stdin:  read                        stdout: COUNTER:QUEUED ...  steps by CUDA ordinal
//! stdin:  kernels | graphs            stdout: STEPS ...           after which the counters are theirs
//! stdin:  (end)                       ends
//! stdout: error TEXT                  and ends with 1
//! ```
//!
//! When the agent dies, a launch may wait for ever on a gate that nobody opens: who reads standard input
//! then ends the process, after the preloaded library had the time to enable what is disabled.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tidegate_driver::cuda::{Counter, Cuda, CudaError, Handle};
use tidegate_driver::kernels::{Kernels, Steps};
use tidegate_driver::worker::{listen, say};

/// Steps of a kernel, and how long each takes: long enough to be caught in the middle.
pub const STEPS: u64 = 200;
const STEP_NS: u64 = 100_000;
/// Length of a kernel.
pub const KERNEL_NS: u64 = STEPS * STEP_NS;
/// Kernels of a graph.
const NODES: u64 = 3;
/// Steps kept queued, at least: the rest of what runs, and something behind it.
const QUEUED: u64 = 2 * STEPS;
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
    context: Handle,
    stream: Handle,
    kernels: Kernels,
    steps: Steps,
    graph: Handle,
    counter: Counter,
    /// Steps of all that was launched.
    launched: u64,
}

/// What somebody asked for on standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Read,
    Launch { graphs: bool },
}

struct Work {
    cuda: Cuda,
    gpus: Vec<Gpu>,
    graphs: bool,
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
            graphs: false,
            asked,
        })
    }

    fn go(&mut self) -> Result<(), WorkError> {
        let mut ready = false;
        loop {
            for gpu in &mut self.gpus {
                gpu.feed(&self.cuda, self.graphs)?;
            }
            if !ready && self.gpus.iter().all(|gpu| gpu.counter.value() > STEPS) {
                ready = true;
                say("ready");
            }
            match self.asked.recv_timeout(TURN) {
                Ok(Asked::Launch { graphs }) => {
                    self.graphs = graphs;
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
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// What a line of standard input asks for.
fn understand(line: &str) -> Asked {
    match line {
        "kernels" => Asked::Launch { graphs: false },
        "graphs" => Asked::Launch { graphs: true },
        _ => Asked::Read,
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
        let graph = kernels.graph_of_steps(cuda, stream, NODES, steps)?;
        Ok(Self {
            context,
            stream,
            kernels,
            steps,
            graph,
            counter,
            launched: 0,
        })
    }

    /// Keeps the queue filled, and no fuller: a launch must never block while the channel is disabled.
    fn feed(&mut self, cuda: &Cuda, graphs: bool) -> Result<(), CudaError> {
        if self.launched >= self.counter.value() + QUEUED {
            return Ok(());
        }
        cuda.enter(self.context)?;
        while self.launched < self.counter.value() + QUEUED {
            if graphs {
                cuda.launch_graph(self.graph, self.stream)?;
                self.launched += NODES * STEPS;
            } else {
                self.kernels.launch_steps(cuda, self.stream, self.steps)?;
                self.launched += STEPS;
            }
        }
        Ok(())
    }
}
