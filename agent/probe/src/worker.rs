//! The worker: a throw-away process that does on its GPU what a probe asks, lane by lane.
//!
//! It ends when its input ends, and enables its own channels first if it was told to hold any: a
//! probe that is killed while they are disabled leaves nothing behind, also where a foreign process may
//! not enable them. That path makes no CUDA call, because those may be what hangs.

use crate::actor::list;
use crate::calls::{self, Scene};
use crate::clock::now_ns;
use crate::message::{Answer, Call, Done, Op, Own, Request, Wait};
use anyhow::{Context, bail};
use std::collections::HashMap;
use std::io::BufRead;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{OnceLock, mpsc};
use tidegate_abi::rm::{self, DisableChannels, Layout, MAX_PAIRS, Nvos54};
use tidegate_driver::cuda::{Counter, Cuda, CudaError, Green, Handle, Launch};
use tidegate_driver::kernels::{Kernels, PTX, Steps};
use tidegate_driver::rm::{ControlFile, RmError};

/// `CU_CTX_SCHED_SPIN` and `CU_CTX_SCHED_BLOCKING_SYNC`.
const SCHED_SPIN: u32 = 1;
const SCHED_BLOCK: u32 = 4;
/// `CU_EVENT_DISABLE_TIMING`, and with `CU_EVENT_BLOCKING_SYNC`.
const EVENT_SPIN: u32 = 2;
const EVENT_BLOCK: u32 = 3;
/// Bytes that multiprocessors mark: more than any GPU has.
const MARKS: usize = 4096;
/// Calls in one batch of a cost: fewer than a channel's queue holds.
const BATCH: u32 = 200;

/// What the lanes share once there is a context.
struct Device {
    cuda: Cuda,
    device: i32,
    context: Handle,
    kernels: Kernels,
    progress: Counter,
}

static DEVICE: OnceLock<Device> = OnceLock::new();

/// Serves requests from standard input until it ends.
///
/// # Errors
/// When input or output break in another way.
pub fn run() -> anyhow::Result<()> {
    crate::hold::stand_aside()?;
    let mut lanes: HashMap<String, mpsc::Sender<Request>> = HashMap::new();
    let mut held: Option<Own> = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let request: Request = serde_json::from_str(&line).context("a request")?;
        match request.ops.first() {
            Some(Op::Progress) => answer(request.id, Ok(vec![progress()])),
            Some(Op::Hold { own }) => {
                held = Some(own.clone());
                answer(request.id, Ok(vec![Done::default()]));
            }
            _ => {
                let lane = lanes.entry(request.lane.clone()).or_insert_with(|| {
                    let (request_tx, request_rx) = mpsc::channel::<Request>();
                    std::thread::spawn(move || {
                        let mut lane = Lane::default();
                        for request in request_rx {
                            let (done, error) = lane.run(&request.ops);
                            let result = match error {
                                None => Ok(done),
                                Some(error) => Err((done, error)),
                            };
                            answer(request.id, result);
                        }
                    });
                    request_tx
                });
                // A lane ends only with the process.
                let _ = lane.send(request);
            }
        }
    }
    if let Some(own) = held
        && let Err(error) = set_own(false, false, &own)
    {
        // To die now would be to die disabled: the guardian gets its turn first.
        eprintln!("tidegate-probe: a worker cannot enable its channels: {error:#}");
        crate::clock::pause(std::time::Duration::from_secs(3));
    }
    // Not by returning: the driver's destructors wait for the GPU, and a lane may still hang in it.
    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
    Ok(())
}

type Outcome = Result<Vec<Done>, (Vec<Done>, anyhow::Error)>;

fn answer(id: u64, outcome: Outcome) {
    let (done, error) = match outcome {
        Ok(done) => (done, None),
        Err((done, error)) => (done, Some(format!("{error:#}"))),
    };
    let answer = Answer { id, done, error };
    if let Ok(line) = serde_json::to_string(&answer) {
        tidegate_driver::worker::say(&line);
    }
}

fn progress() -> Done {
    let value = DEVICE.get().map_or(0, |device| device.progress.value());
    Done { ns: 0, value }
}

/// A descriptor of this process' own control file.
fn control_file(own: &Own) -> anyhow::Result<ControlFile> {
    // SAFETY: the descriptor is this process' own, of its driver library, which keeps it open.
    let file: OwnedFd = unsafe { BorrowedFd::borrow_raw(own.fd) }.try_clone_to_owned()?;
    Ok(ControlFile::adopt(file)?)
}

/// Makes one control call and takes its time.
fn controlled(
    own: &Own,
    call: impl FnOnce(&ControlFile) -> Result<(), RmError>,
) -> anyhow::Result<Done> {
    let file = control_file(own)?;
    let start = now_ns();
    call(&file)?;
    Ok(Done {
        ns: now_ns() - start,
        value: 0,
    })
}

fn set_own(disable: bool, runlist_only: bool, own: &Own) -> anyhow::Result<Done> {
    let pairs: Vec<(u32, u32)> = own.channels.iter().map(|c| (own.client, *c)).collect();
    controlled(own, |file| {
        pairs.chunks(MAX_PAIRS).try_for_each(|pairs| {
            let mut call = DisableChannels {
                only_disable_scheduling: u8::from(runlist_only),
                ..list(pairs, disable)
            };
            file.set_channels(own.client, own.subdevice, &mut call)
        })
    })
}

/// A control by its number alone; RM's status as the value.
fn control(own: &Own, object: u32, cmd: u32, parameters: &[u8]) -> anyhow::Result<Done> {
    let mut parameters = parameters.to_vec();
    let mut call = Nvos54 {
        h_client: own.client,
        h_object: object,
        cmd,
        params: parameters.as_mut_ptr() as u64,
        params_size: u32::try_from(parameters.len())?,
        ..Nvos54::default()
    };
    let request = rm::request(rm::NV_ESC_RM_CONTROL, size_of::<Nvos54>());
    let start = now_ns();
    // SAFETY: the request number carries the struct's size; the parameters it points to are as long as it
    // says and live through the call; the descriptor is this process' own.
    let result = unsafe { libc::ioctl(own.fd, request, &raw mut call) };
    let ns = now_ns() - start;
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("the driver takes no control");
    }
    Ok(Done {
        ns,
        value: u64::from(call.status),
    })
}

/// An operation on the channels, through this process' own control file.
fn control_op(op: &Op) -> anyhow::Result<Done> {
    match op {
        Op::Channels { disable, own } => set_own(*disable, false, own),
        Op::Unlist { disable, own } => set_own(*disable, true, own),
        Op::Control {
            own,
            object,
            cmd,
            parameters,
        } => control(own, *object, *cmd, parameters),
        Op::Preempt { own, tsg } => controlled(own, |file| file.preempt(own.client, *tsg)),
        Op::Timeslice { own, tsg, us } => {
            controlled(own, |file| file.set_timeslice(own.client, *tsg, *us))
        }
        Op::Schedule { own, tsg, enable } => {
            let version = control_file(own)?.driver_version()?;
            let layout =
                Layout::of_version(&version).context("what the driver says is no version")?;
            controlled(own, |file| file.schedule(own.client, *tsg, *enable, layout))
        }
        _ => bail!("not a control of channels"),
    }
}

/// One thread's own things.
#[derive(Default)]
struct Lane {
    stream: Option<Handle>,
    scene: Option<Scene>,
    entered: bool,
}

/// Runs one driver call and takes its time.
fn timed<T>(call: impl FnOnce() -> Result<T, CudaError>) -> anyhow::Result<(u64, T)> {
    let start = now_ns();
    let value = call()?;
    Ok((now_ns() - start, value))
}

fn plain((ns, ()): (u64, ())) -> Done {
    Done { ns, value: 0 }
}

fn valued((ns, value): (u64, u64)) -> Done {
    Done { ns, value }
}

impl Lane {
    fn run(&mut self, ops: &[Op]) -> (Vec<Done>, Option<anyhow::Error>) {
        let mut done = Vec::new();
        for op in ops {
            match self.one(op) {
                Ok(one) => done.push(one),
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    fn one(&mut self, op: &Op) -> anyhow::Result<Done> {
        match op {
            Op::Context { ordinal, wait } => return self.context(*ordinal, *wait),
            Op::Progress | Op::Hold { .. } => bail!("not an operation of a lane"),
            Op::Channels { .. }
            | Op::Unlist { .. }
            | Op::Control { .. }
            | Op::Preempt { .. }
            | Op::Timeslice { .. }
            | Op::Schedule { .. } => return control_op(op),
            _ => {}
        }
        let device = DEVICE.get().context("no context yet")?;
        let cuda = &device.cuda;
        if !self.entered {
            cuda.enter(device.context)?;
            self.entered = true;
        }
        let stream = match self.stream {
            Some(stream) => stream,
            None => *self.stream.insert(cuda.stream()?),
        };
        Ok(match op {
            Op::Stream => valued(timed(|| cuda.stream().map(|stream| stream as u64))?),
            Op::DestroyStream => {
                self.stream = None;
                plain(timed(|| cuda.destroy_stream(stream))?)
            }
            Op::Green { least } => {
                let (ns, (stream, sms)) = timed(|| Green::load()?.stream(device.device, *least))?;
                self.stream = Some(stream);
                let value = u64::from(sms);
                Done { ns, value }
            }
            Op::Multiprocessors => {
                let (ns, count) = timed(|| Green::load()?.multiprocessors(device.device))?;
                let value = u64::from(count);
                Done { ns, value }
            }
            Op::Reset
            | Op::Steps { .. }
            | Op::Count { .. }
            | Op::Spin { .. }
            | Op::WaitStream
            | Op::WaitEvent { .. }
            | Op::WaitContext
            | Op::Sms { .. }
            | Op::Module
            | Op::Graph { .. }
            | Op::Latency { .. }
            | Op::Cost { .. } => device.work_op(stream, op)?,
            Op::Contexts { more } => device.contexts(*more)?,
            Op::Scene | Op::Prepare { .. } | Op::Make { .. } => self.scene_op(device, op)?,
            Op::Alloc { .. }
            | Op::Free { .. }
            | Op::AllocHost { .. }
            | Op::FreeHost { .. }
            | Op::CopyToHost { .. }
            | Op::Fill { .. }
            | Op::CountNonZero { .. }
            | Op::Reserve { .. }
            | Op::Unreserve { .. }
            | Op::Create { .. }
            | Op::Map { .. }
            | Op::Access { .. }
            | Op::Unmap { .. }
            | Op::Release { .. }
            | Op::MemoryFree => device.memory_op(op)?,
            Op::Context { .. }
            | Op::Channels { .. }
            | Op::Unlist { .. }
            | Op::Control { .. }
            | Op::Preempt { .. }
            | Op::Timeslice { .. }
            | Op::Schedule { .. }
            | Op::Progress
            | Op::Hold { .. } => bail!("answered above"),
        })
    }

    /// Makes the scene in which the table's calls are tried, or tries one.
    fn scene_op(&mut self, device: &Device, op: &Op) -> anyhow::Result<Done> {
        let cuda = &device.cuda;
        match op {
            Op::Prepare {
                row,
                steps,
                step_ns,
            } => {
                let scene = self.scene.as_mut().context("no scene yet")?;
                let row = calls::find(row).context("no such row")?;
                Ok(plain(timed(|| scene.prepare(cuda, row, *steps, *step_ns))?))
            }
            Op::Make { row } => {
                let scene = self.scene.as_mut().context("no scene yet")?;
                let row = calls::find(row).context("no such row")?;
                let ns = scene.make(cuda, row)?;
                Ok(Done { ns, value: 0 })
            }
            _ => {
                let place = (device.device, device.context);
                let scene = Scene::new(cuda, place, device.kernels, device.progress.at())?;
                self.scene = Some(scene);
                Ok(Done::default())
            }
        }
    }

    fn context(&mut self, ordinal: i32, wait: Wait) -> anyhow::Result<Done> {
        let cuda = Cuda::load()?;
        let device = cuda.device(ordinal)?;
        let flags = match wait {
            Wait::Spin => SCHED_SPIN,
            Wait::Block => SCHED_BLOCK,
        };
        let (ns, context) = timed(|| cuda.context(device, flags))?;
        let kernels = Kernels::load(&cuda)?;
        let progress = cuda.counter()?;
        let (_, total) = cuda.memory()?;
        let fresh = Device {
            cuda,
            device,
            context,
            kernels,
            progress,
        };
        if DEVICE.set(fresh).is_err() {
            bail!("a worker has one context");
        }
        self.entered = true;
        Ok(Done { ns, value: total })
    }
}

impl Device {
    fn spin<'a>(&self, arguments: &'a [u64]) -> Launch<'a> {
        Launch {
            function: self.kernels.spin,
            blocks: 1,
            threads: 1,
            arguments,
        }
    }

    fn steps(&self, steps: u64, step_ns: u64, blocks: u32) -> Steps {
        Steps {
            counter: self.progress.at(),
            steps,
            step_ns,
            blocks,
        }
    }

    fn contexts(&self, more: u32) -> anyhow::Result<Done> {
        let (cuda, device) = (&self.cuda, self.device);
        let made = timed(|| (0..more).try_for_each(|_| cuda.further_context(device).map(|_| ())))?;
        cuda.enter(self.context)?;
        Ok(Done {
            ns: made.0,
            value: u64::from(more),
        })
    }

    /// What a stream is given to do, or is waited for.
    fn work_op(&self, stream: Handle, op: &Op) -> anyhow::Result<Done> {
        let cuda = &self.cuda;
        Ok(match op {
            Op::Reset => plain(timed(|| cuda.reset(self.device))?),
            Op::Steps {
                steps,
                step_ns,
                blocks,
            } => {
                let steps = self.steps(*steps, *step_ns, *blocks);
                plain(timed(|| self.kernels.launch_steps(cuda, stream, steps))?)
            }
            Op::Count { kernels, ns } => plain(timed(|| {
                let launch = Launch {
                    function: self.kernels.count,
                    blocks: 1,
                    threads: 1,
                    arguments: &[self.progress.at(), *ns, 0],
                };
                (0..*kernels).try_for_each(|_| cuda.launch(stream, launch))
            })?),
            Op::Spin { ns } => plain(timed(|| cuda.launch(stream, self.spin(&[*ns, 0])))?),
            Op::WaitStream => plain(timed(|| cuda.wait_stream(stream))?),
            Op::WaitEvent { wait } => {
                let event = cuda.event(match wait {
                    Wait::Spin => EVENT_SPIN,
                    Wait::Block => EVENT_BLOCK,
                })?;
                cuda.record(event, stream)?;
                plain(timed(|| cuda.wait_event(event))?)
            }
            Op::WaitContext => plain(timed(|| cuda.synchronize())?),
            Op::Sms { blocks, ns, graph } => self.sms(stream, *blocks, *ns, *graph)?,
            Op::Module => plain(timed(|| cuda.module(PTX).map(|_| ()))?),
            Op::Graph {
                kernels,
                steps,
                step_ns,
                blocks,
            } => {
                let steps = self.steps(*steps, *step_ns, *blocks);
                let recorder = cuda.stream()?;
                let exec = self
                    .kernels
                    .graph_of_steps(cuda, recorder, *kernels, steps)?;
                plain(timed(|| cuda.launch_graph(exec, stream))?)
            }
            Op::Latency {
                kernels,
                ns,
                gap_ns,
            } => self.latency(stream, *kernels, *ns, *gap_ns)?,
            Op::Cost { call, batches } => self.cost(stream, *call, *batches)?,
            _ => bail!("not work of a stream"),
        })
    }

    /// An operation on memory.
    fn memory_op(&self, op: &Op) -> anyhow::Result<Done> {
        let cuda = &self.cuda;
        Ok(match op {
            Op::Alloc { bytes } => valued(timed(|| cuda.alloc(*bytes))?),
            Op::Free { at } => plain(timed(|| cuda.free(*at))?),
            Op::AllocHost { bytes } => valued(timed(|| cuda.alloc_host(*bytes))?),
            Op::FreeHost { at } => plain(timed(|| cuda.free_host(*at))?),
            Op::CopyToHost { at, bytes } => {
                let mut to = vec![0; usize::try_from(*bytes)?];
                plain(timed(|| cuda.copy_to_host(&mut to, *at))?)
            }
            Op::Fill { at, bytes, byte } => plain(timed(|| {
                cuda.fill(*at, *byte, *bytes)?;
                cuda.synchronize()
            })?),
            Op::CountNonZero { at, bytes } => {
                let mut to = vec![0; usize::try_from(*bytes)?];
                let (ns, ()) = timed(|| cuda.copy_to_host(&mut to, *at))?;
                let value = to.iter().filter(|byte| **byte != 0).count() as u64;
                Done { ns, value }
            }
            Op::Reserve { bytes } => valued(timed(|| cuda.reserve(*bytes))?),
            Op::Unreserve { at, bytes } => plain(timed(|| cuda.unreserve(*at, *bytes))?),
            Op::Create { bytes } => valued(timed(|| cuda.create(self.device, *bytes))?),
            Op::Map { at, bytes, handle } => plain(timed(|| cuda.map(*at, *bytes, *handle))?),
            Op::Access { at, bytes } => plain(timed(|| cuda.access(self.device, *at, *bytes))?),
            Op::Unmap { at, bytes } => plain(timed(|| cuda.unmap(*at, *bytes))?),
            Op::Release { handle } => plain(timed(|| cuda.release(*handle))?),
            Op::MemoryFree => valued(timed(|| cuda.memory().map(|(free, _)| free))?),
            _ => bail!("not of memory"),
        })
    }

    /// Multiprocessors on which the blocks of a kernel run.
    fn sms(&self, stream: Handle, blocks: u32, stay_ns: u64, graph: bool) -> anyhow::Result<Done> {
        let cuda = &self.cuda;
        let seen_at = cuda.alloc_host(MARKS as u64)?;
        let marks = || {
            // SAFETY: pinned memory of that size from the line above, which nobody frees before we do;
            // the device writes to it only while the kernel below runs.
            unsafe { std::slice::from_raw_parts_mut(seen_at as *mut u8, MARKS) }
        };
        marks().fill(0);
        let launch = Launch {
            function: self.kernels.sms,
            blocks,
            threads: 1024,
            arguments: &[seen_at, stay_ns],
        };
        let (ns, ()) = timed(|| {
            if graph {
                let recorder = cuda.stream()?;
                let exec = cuda.graph(recorder, || cuda.launch(recorder, launch))?;
                cuda.launch_graph(exec, stream)?;
            } else {
                cuda.launch(stream, launch)?;
            }
            cuda.wait_stream(stream)
        })?;
        let value = marks().iter().filter(|mark| **mark != 0).count() as u64;
        cuda.free_host(seen_at)?;
        Ok(Done { ns, value })
    }

    /// Median and maximum of launching a kernel of `length_ns` and waiting for it.
    fn latency(
        &self,
        stream: Handle,
        kernels: u32,
        length_ns: u64,
        gap_ns: u64,
    ) -> anyhow::Result<Done> {
        let arguments = [length_ns, 0];
        let mut all = Vec::new();
        for _ in 0..kernels {
            if gap_ns > 0 {
                crate::clock::pause(std::time::Duration::from_nanos(gap_ns));
            }
            let (ns, ()) = timed(|| {
                self.cuda.launch(stream, self.spin(&arguments))?;
                self.cuda.wait_stream(stream)
            })?;
            all.push(ns);
        }
        all.sort_unstable();
        Ok(Done {
            ns: all.get(all.len() / 2).copied().unwrap_or(0),
            value: all.last().copied().unwrap_or(0),
        })
    }

    fn cost(&self, stream: Handle, call: Call, batches: u32) -> anyhow::Result<Done> {
        let cuda = &self.cuda;
        let empty = self.spin(&[0, 0]);
        let event = cuda.event(EVENT_SPIN)?;
        cuda.record(event, stream)?;
        let graph = cuda.graph(stream, || {
            (0..8).try_for_each(|_| cuda.launch(stream, empty))
        })?;
        cuda.wait_stream(stream)?;
        let mut costs = Vec::new();
        // One batch more, which pays for what is done once.
        for batch in 0..=batches {
            let (ns, ()) = timed(|| {
                (0..BATCH).try_for_each(|_| match call {
                    Call::Launch => cuda.launch(stream, empty),
                    Call::GraphLaunch => cuda.launch_graph(graph, stream),
                    Call::EventRecord => cuda.record(event, stream),
                    Call::EventQuery => cuda.query_event(event).map(|_| ()),
                    Call::StreamQuery => cuda.query_stream(stream).map(|_| ()),
                })
            })?;
            cuda.wait_stream(stream)?;
            if batch > 0 {
                costs.push(ns * 1_000 / u64::from(BATCH));
            }
        }
        costs.sort_unstable();
        Ok(Done {
            ns: 0,
            value: costs.get(costs.len() / 2).copied().unwrap_or(0),
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}
