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

use crossbeam_channel::{Receiver, RecvTimeoutError};
use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `tg_steps(counter, steps, step_ns)`: every thread spins `steps` times on the global timer; the first
/// adds one after each.
const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry tg_steps(.param .u64 counter, .param .u64 steps, .param .u64 step_ns)
{
    .reg .u64 %a, %b, %c, %d, %e, %f, %n;
    .reg .u32 %x, %y;
    .reg .pred %p, %q, %r;
    ld.param.u64 %e, [counter];
    ld.param.u64 %n, [steps];
    ld.param.u64 %a, [step_ns];
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %tid.x;
    or.b32 %x, %x, %y;
    setp.eq.u32 %q, %x, 0;
NEXT:
    setp.eq.u64 %r, %n, 0;
    @%r bra DONE;
    mov.u64 %b, %globaltimer;
SPIN:
    mov.u64 %c, %globaltimer;
    sub.u64 %d, %c, %b;
    setp.lt.u64 %p, %d, %a;
    @%p bra SPIN;
    @!%q bra STEP;
    ld.volatile.global.u64 %f, [%e];
    add.u64 %f, %f, 1;
    st.volatile.global.u64 [%e], %f;
STEP:
    sub.u64 %n, %n, 1;
    bra NEXT;
DONE:
    ret;
}
";
/// Steps of a kernel, and how long each takes: long enough to be caught in the middle.
pub const STEPS: u64 = 200;
const STEP_NS: u64 = 100_000;
/// Length of a kernel.
pub const KERNEL_NS: u64 = STEPS * STEP_NS;
/// Kernels of a graph.
const NODES: u64 = 3;
/// Steps kept queued, at least: the rest of what runs, and something behind it.
const QUEUED: u64 = 2 * STEPS;
/// Threads of a block; there is a block for each multiprocessor.
const THREADS: c_uint = 256;
/// A turn of the loop.
const TURN: Duration = Duration::from_millis(1);
/// Longer than the library's soft landing takes.
const GRACE: Duration = Duration::from_secs(3);
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`
const HOST_FLAGS: c_uint = 0x01 | 0x02;
/// `CU_STREAM_NON_BLOCKING`
const STREAM_FLAGS: c_uint = 1;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSORS: c_int = 16;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
const CAPTURE_MODE: c_uint = 1;

type Handle = *mut c_void;
type CudaResult = c_int;

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

/// One line at once; who does not read it is gone, and standard input will tell.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Why there is no work.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("no libcuda: {0}")]
    NoDriver(#[source] libloading::Error),
    #[error("libcuda has no {0}")]
    NoFunction(&'static str),
    #[error("{0} answered CUDA error {1}")]
    Cuda(&'static str, CudaResult),
    #[error("standard input: {0}")]
    Input(#[source] std::io::Error),
}

/// The functions used, by the names under which the library exports them.
struct Cuda {
    launch: Launch,
    launch_graph: unsafe extern "C" fn(Handle, Handle) -> CudaResult,
    set_current: unsafe extern "C" fn(Handle) -> CudaResult,
    /// Last: the functions live in it.
    library: Library,
}

type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CudaResult;

struct Gpu {
    context: Handle,
    stream: Handle,
    steps: Handle,
    graph: Handle,
    blocks: c_uint,
    /// As the host sees it.
    counter: &'static AtomicU64,
    /// As the GPU does.
    counter_at: u64,
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

fn function<T: Copy>(library: &Library, name: &'static str) -> Result<T, WorkError> {
    // SAFETY: the callers below give each name the type that the driver API documents for it.
    let found: Result<Symbol<'_, T>, _> = unsafe { library.get(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| WorkError::NoFunction(name))
}

fn checked(what: &'static str, result: CudaResult) -> Result<(), WorkError> {
    if result == 0 {
        Ok(())
    } else {
        Err(WorkError::Cuda(what, result))
    }
}

impl Work {
    fn start() -> Result<Self, WorkError> {
        let asked = listen()?;
        // SAFETY: the vendor's library may run initialisers in this process, which exists for it.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(WorkError::NoDriver)?;
        let init: unsafe extern "C" fn(c_uint) -> CudaResult = function(&library, "cuInit")?;
        let count_of: unsafe extern "C" fn(*mut c_int) -> CudaResult =
            function(&library, "cuDeviceGetCount")?;
        let mut count = 0;
        // SAFETY: no pointers, and then a live one.
        unsafe {
            checked("cuInit", init(0))?;
            checked("cuDeviceGetCount", count_of(&raw mut count))?;
        }
        let cuda = Cuda {
            launch: function(&library, "cuLaunchKernel")?,
            launch_graph: function(&library, "cuGraphLaunch")?,
            set_current: function(&library, "cuCtxSetCurrent")?,
            library,
        };
        let gpus = (0..count)
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
            if !ready && self.gpus.iter().all(|gpu| gpu.value() > STEPS) {
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
                        let value = gpu.value();
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

/// Passes on each line of standard input; after its end the process has a grace to end.
fn listen() -> Result<Receiver<Asked>, WorkError> {
    let (line_tx, line_rx) = crossbeam_channel::unbounded();
    let run = move || {
        for line in std::io::stdin().lock().lines() {
            let asked = match line.as_deref() {
                Ok("kernels") => Asked::Launch { graphs: false },
                Ok("graphs") => Asked::Launch { graphs: true },
                Ok(_) => Asked::Read,
                Err(_) => break,
            };
            if line_tx.send(asked).is_err() {
                break;
            }
        }
        drop(line_tx);
        std::thread::sleep(GRACE);
        // SAFETY: ends the process at once; nothing of it is of use to anybody any more.
        unsafe { libc::_exit(1) };
    };
    std::thread::Builder::new()
        .spawn(run)
        .map_err(WorkError::Input)?;
    Ok(line_rx)
}

impl Gpu {
    fn open(cuda: &Cuda, ordinal: c_int) -> Result<Self, WorkError> {
        let library = &cuda.library;
        let device_of: unsafe extern "C" fn(*mut c_int, c_int) -> CudaResult =
            function(library, "cuDeviceGet")?;
        let retain: unsafe extern "C" fn(*mut Handle, c_int) -> CudaResult =
            function(library, "cuDevicePrimaryCtxRetain")?;
        let load: unsafe extern "C" fn(*mut Handle, *const c_char) -> CudaResult =
            function(library, "cuModuleLoadData")?;
        let kernel: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> CudaResult =
            function(library, "cuModuleGetFunction")?;
        let stream_of: unsafe extern "C" fn(*mut Handle, c_uint) -> CudaResult =
            function(library, "cuStreamCreate")?;
        let attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> CudaResult =
            function(library, "cuDeviceGetAttribute")?;
        let host: unsafe extern "C" fn(*mut Handle, usize, c_uint) -> CudaResult =
            function(library, "cuMemHostAlloc")?;
        let seen_by_gpu: unsafe extern "C" fn(*mut u64, Handle, c_uint) -> CudaResult =
            function(library, "cuMemHostGetDevicePointer_v2")?;
        let null = std::ptr::null_mut();
        let (mut device, mut counter_at, mut blocks) = (0, 0, 1);
        let (mut context, mut module, mut steps, mut stream, mut counter) =
            (null, null, null, null, null);
        // SAFETY: every pointer is live for its call, strings are C strings, and the host memory is
        // as long as asked for, aligned to a page and never freed.
        let counter = unsafe {
            checked("cuDeviceGet", device_of(&raw mut device, ordinal))?;
            checked("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
            checked("cuCtxSetCurrent", (cuda.set_current)(context))?;
            checked("cuModuleLoadData", load(&raw mut module, PTX.as_ptr()))?;
            let name = c"tg_steps".as_ptr();
            checked("cuModuleGetFunction", kernel(&raw mut steps, module, name))?;
            checked(
                "cuDeviceGetAttribute",
                attribute(&raw mut blocks, MULTIPROCESSORS, device),
            )?;
            checked("cuStreamCreate", stream_of(&raw mut stream, STREAM_FLAGS))?;
            checked("cuMemHostAlloc", host(&raw mut counter, 8, HOST_FLAGS))?;
            let counter = &*counter.cast::<AtomicU64>();
            counter.store(0, Ordering::Relaxed);
            let at = std::ptr::from_ref(counter).cast_mut().cast();
            checked(
                "cuMemHostGetDevicePointer",
                seen_by_gpu(&raw mut counter_at, at, 0),
            )?;
            counter
        };
        let mut gpu = Self {
            context,
            stream,
            steps,
            graph: null,
            blocks: c_uint::try_from(blocks).unwrap_or(1).max(1),
            counter,
            counter_at,
            launched: 0,
        };
        gpu.graph = gpu.record(cuda)?;
        Ok(gpu)
    }

    /// A graph of kernels in a row.
    fn record(&self, cuda: &Cuda) -> Result<Handle, WorkError> {
        let library = &cuda.library;
        let begin: unsafe extern "C" fn(Handle, c_uint) -> CudaResult =
            function(library, "cuStreamBeginCapture_v2")?;
        let end: unsafe extern "C" fn(Handle, *mut Handle) -> CudaResult =
            function(library, "cuStreamEndCapture")?;
        let instantiate: unsafe extern "C" fn(*mut Handle, Handle, u64) -> CudaResult =
            function(library, "cuGraphInstantiateWithFlags")?;
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a stream of the current context; every pointer is live for its call.
        unsafe {
            checked("cuStreamBeginCapture", begin(self.stream, CAPTURE_MODE))?;
            for _ in 0..NODES {
                self.launch(cuda)?;
            }
            checked("cuStreamEndCapture", end(self.stream, &raw mut graph))?;
            let made = instantiate(&raw mut exec, graph, 0);
            checked("cuGraphInstantiateWithFlags", made)?;
        }
        Ok(exec)
    }

    /// One kernel on the stream.
    fn launch(&self, cuda: &Cuda) -> Result<(), WorkError> {
        let (mut at, mut steps, mut ns) = (self.counter_at, STEPS, STEP_NS);
        let mut arguments: [*mut c_void; 3] = [
            (&raw mut at).cast(),
            (&raw mut steps).cast(),
            (&raw mut ns).cast(),
        ];
        let none = std::ptr::null_mut();
        // SAFETY: the kernel takes these three, which the driver copies before it returns.
        let result = unsafe {
            (cuda.launch)(
                self.steps,
                self.blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.stream,
                arguments.as_mut_ptr(),
                none,
            )
        };
        checked("cuLaunchKernel", result)
    }

    fn value(&self) -> u64 {
        self.counter.load(Ordering::Acquire)
    }

    /// Keeps the queue filled, and no fuller: a launch must never block while the channel is disabled.
    fn feed(&mut self, cuda: &Cuda, graphs: bool) -> Result<(), WorkError> {
        if self.launched >= self.value() + QUEUED {
            return Ok(());
        }
        // SAFETY: a context of this process.
        checked("cuCtxSetCurrent", unsafe {
            (cuda.set_current)(self.context)
        })?;
        while self.launched < self.value() + QUEUED {
            if graphs {
                // SAFETY: a graph and a stream of this context.
                let result = unsafe { (cuda.launch_graph)(self.graph, self.stream) };
                checked("cuGraphLaunch", result)?;
                self.launched += NODES * STEPS;
            } else {
                self.launch(cuda)?;
                self.launched += STEPS;
            }
        }
        Ok(())
    }
}
