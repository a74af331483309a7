//! The self-test's own GPU work, in a process of its own: `tidegate-agent --self-test-work`.
//!
//! On every GPU a few short kernels are kept queued, each of which adds one to a counter in host
//! memory. What stops the channel stops the counter, and nothing else does. The agent itself never
//! loads `libcuda`: a driver library in its process would be a second user of the files and locks it
//! measures, and could take it down.
//!
//! ```text
//! stdout: ready                       every counter moves
//! stdin:  read                        stdout: COUNTER:QUEUED ...  by CUDA ordinal
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

/// `tg_count(counter, ns, tag)`: one thread spins on the global timer, then adds one.
const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry tg_count(.param .u64 counter, .param .u64 ns, .param .u64 tag)
{
    .reg .u64 %a, %b, %c, %d, %e, %f;
    .reg .pred %p;
    ld.param.u64 %e, [counter];
    ld.param.u64 %a, [ns];
    mov.u64 %b, %globaltimer;
SPIN:
    mov.u64 %c, %globaltimer;
    sub.u64 %d, %c, %b;
    setp.lt.u64 %p, %d, %a;
    @%p bra SPIN;
    ld.global.u64 %f, [%e];
    add.u64 %f, %f, 1;
    st.global.u64 [%e], %f;
    ret;
}
";
/// Length of a kernel.
const KERNEL_NS: u64 = 100_000;
/// Kernels kept queued: enough to outlast a turn of the loop below.
const QUEUED: u64 = 64;
/// A turn of the loop.
const TURN: Duration = Duration::from_millis(1);
/// Longer than the library's soft landing takes.
const GRACE: Duration = Duration::from_secs(3);
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`
const HOST_FLAGS: c_uint = 0x01 | 0x02;
/// `CU_STREAM_NON_BLOCKING`
const STREAM_FLAGS: c_uint = 1;

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
    count: Handle,
    /// As the host sees it.
    counter: &'static AtomicU64,
    /// As the GPU does.
    counter_at: u64,
    launched: u64,
}

struct Work {
    cuda: Cuda,
    gpus: Vec<Gpu>,
    asked: Receiver<()>,
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
            set_current: function(&library, "cuCtxSetCurrent")?,
            library,
        };
        let gpus = (0..count)
            .map(|ordinal| Gpu::open(&cuda, ordinal))
            .collect::<Result<_, _>>()?;
        Ok(Self { cuda, gpus, asked })
    }

    fn go(&mut self) -> Result<(), WorkError> {
        let mut ready = false;
        loop {
            for gpu in &mut self.gpus {
                gpu.feed(&self.cuda)?;
            }
            if !ready && self.gpus.iter().all(|gpu| gpu.value() > QUEUED) {
                ready = true;
                say("ready");
            }
            match self.asked.recv_timeout(TURN) {
                Ok(()) => {
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
fn listen() -> Result<Receiver<()>, WorkError> {
    let (line_tx, line_rx) = crossbeam_channel::unbounded();
    let run = move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || line_tx.send(()).is_err() {
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
        let host: unsafe extern "C" fn(*mut Handle, usize, c_uint) -> CudaResult =
            function(library, "cuMemHostAlloc")?;
        let seen_by_gpu: unsafe extern "C" fn(*mut u64, Handle, c_uint) -> CudaResult =
            function(library, "cuMemHostGetDevicePointer_v2")?;
        let null = std::ptr::null_mut();
        let (mut device, mut counter_at) = (0, 0);
        let (mut context, mut module, mut count, mut stream, mut counter) =
            (null, null, null, null, null);
        // SAFETY: every pointer is live for its call, strings are C strings, and the host memory is
        // as long as asked for, aligned to a page and never freed.
        let counter = unsafe {
            checked("cuDeviceGet", device_of(&raw mut device, ordinal))?;
            checked("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
            checked("cuCtxSetCurrent", (cuda.set_current)(context))?;
            checked("cuModuleLoadData", load(&raw mut module, PTX.as_ptr()))?;
            let name = c"tg_count".as_ptr();
            checked("cuModuleGetFunction", kernel(&raw mut count, module, name))?;
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
        Ok(Self {
            context,
            stream,
            count,
            counter,
            counter_at,
            launched: 0,
        })
    }

    fn value(&self) -> u64 {
        self.counter.load(Ordering::Acquire)
    }

    /// Keeps the queue filled, and no fuller: a launch must never block while the channel is disabled.
    fn feed(&mut self, cuda: &Cuda) -> Result<(), WorkError> {
        if self.launched >= self.value() + QUEUED {
            return Ok(());
        }
        // SAFETY: a context of this process.
        checked("cuCtxSetCurrent", unsafe {
            (cuda.set_current)(self.context)
        })?;
        while self.launched < self.value() + QUEUED {
            let (mut at, mut ns, mut tag) = (self.counter_at, KERNEL_NS, self.launched);
            let mut arguments: [*mut c_void; 3] = [
                (&raw mut at).cast(),
                (&raw mut ns).cast(),
                (&raw mut tag).cast(),
            ];
            let none = std::ptr::null_mut();
            // SAFETY: the kernel takes these three, which the driver copies before it returns.
            let result = unsafe {
                (cuda.launch)(
                    self.count,
                    1,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    self.stream,
                    arguments.as_mut_ptr(),
                    none,
                )
            };
            checked("cuLaunchKernel", result)?;
            self.launched += 1;
        }
        Ok(())
    }
}
