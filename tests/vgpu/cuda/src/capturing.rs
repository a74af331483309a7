//! Capture of this process' streams: [`crate::capture`] behind a lock, and graphs as what it fills.
//!
//! While nothing captures, every check here is one load of [`ONGOING`].

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CAPTURE_ACTIVE, CAPTURE_NONE, CUgraph, CUgraphNode, CUresult, CUstream};

use crate::capture::{Captures, Fate, Mode, StreamInfo, Wait};
use crate::graph::{self, Graph};
use crate::handle::Pinned;
use crate::objects::context::Stream;
use crate::objects::current::{self, DefaultStream};
use crate::objects::event::Event;
use crate::objects::work::Work;
use crate::result::{CudaResult, store, store_optional};

/// `CU_STREAM_CAPTURE_STATUS_INVALIDATED`.
const CAPTURE_INVALIDATED: i32 = 2;

static CAPTURES: Mutex<Captures<Arc<Graph>>> = Mutex::new(Captures::new());
static ONGOING: AtomicUsize = AtomicUsize::new(0);
/// Whether any event was ever recorded in a capture: those stay marked when the capture is over.
static MARKED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
    /// The dependencies last handed to the application in this thread.
    static HANDED: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

fn thread() -> u64 {
    THREAD.try_with(|thread| *thread).unwrap_or(0)
}

fn captures() -> MutexGuard<'static, Captures<Arc<Graph>>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn ongoing() -> bool {
    ONGOING.load(Ordering::Acquire) != 0
}

fn changed(captures: &Captures<Arc<Graph>>) {
    ONGOING.store(captures.count(), Ordering::Release);
}

fn info(stream: &Stream) -> StreamInfo {
    StreamInfo {
        id: stream.id,
        context: stream.context.id,
        blocking: stream.is_blocking(),
        legacy: stream.is_legacy,
    }
}

/// Records `work` if `stream` captures. False: it has to run.
pub fn diverted(stream: &Stream, work: impl FnOnce() -> Work) -> CudaResult<bool> {
    if !ongoing() {
        return Ok(false);
    }
    let mut captures = captures();
    let Fate::Record(after) = captures.fate(info(stream))? else {
        return Ok(false);
    };
    let graph = captures
        .of_stream(stream.id)
        .map(|capture| Arc::clone(&capture.graph));
    let node = graph.ok_or(CUresult::ILLEGAL_STATE)?.add(work(), after);
    captures.recorded(stream.id, node);
    Ok(true)
}

/// Whether `stream` captures now.
pub fn is_capturing(stream: &Stream) -> bool {
    ongoing() && captures().of_stream(stream.id).is_some()
}

/// Before a potentially unsafe call of the calling thread.
pub fn unsafe_call() -> CudaResult {
    if !ongoing() {
        return Ok(());
    }
    let mode = MODE.try_with(Cell::get).unwrap_or_default();
    captures().unsafe_call(thread(), mode)
}

/// Before a query of or a wait for `stream`.
pub fn ask_stream(stream: &Stream) -> CudaResult {
    if !ongoing() {
        return Ok(());
    }
    captures().ask_stream(info(stream))?;
    unsafe_call()
}

/// Before a wait for the whole context with this number.
pub fn ask_context(context: u64) -> CudaResult {
    if !ongoing() {
        return Ok(());
    }
    captures().ask_context(context)?;
    unsafe_call()
}

/// Before a call that synchronises with the legacy stream of the context with this number.
pub fn use_legacy(context: u64) -> CudaResult {
    if ongoing() {
        captures().use_legacy(context)
    } else {
        Ok(())
    }
}

fn number(event: &Pinned<Event>) -> usize {
    std::ptr::from_ref(event).addr()
}

/// Before a query of or a wait for `event`.
pub fn ask_event(event: &'static Pinned<Event>) -> CudaResult {
    if MARKED.load(Ordering::Acquire) != 0 {
        captures().ask_event(number(event))?;
    }
    unsafe_call()
}

/// `event` is recorded in `stream`. True: in a capture, and nothing is to be run.
pub fn record_event(stream: &Stream, event: &'static Pinned<Event>) -> CudaResult<bool> {
    if !ongoing() {
        if MARKED.load(Ordering::Acquire) != 0 {
            captures().forget_event(number(event));
        }
        return Ok(false);
    }
    let captured = captures().record_event(info(stream), number(event))?;
    if captured {
        MARKED.store(1, Ordering::Release);
    }
    Ok(captured)
}

/// `event` is destroyed.
pub fn forget_event(event: &'static Pinned<Event>) {
    if MARKED.load(Ordering::Acquire) != 0 {
        captures().forget_event(number(event));
    }
}

/// `stream` waits for `event`. True: in a capture, and nothing is to be run.
pub fn wait_event(stream: &Stream, event: &'static Pinned<Event>, ever: bool) -> CudaResult<bool> {
    if !ongoing() && MARKED.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    let wait = captures().wait_event(info(stream), number(event), ever)?;
    Ok(wait == Wait::Captured)
}

/// `stream` is destroyed.
pub fn destroy_stream(stream: &Stream) {
    if ongoing() {
        let mut captures = captures();
        captures.destroy_stream(stream.id);
        changed(&captures);
    }
}

fn named(handle: CUstream, default: DefaultStream) -> CudaResult<&'static Pinned<Stream>> {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { current::stream(handle, default) }
}

/// `cuStreamBeginCapture` of CUDA 10.0.
pub fn begin_v1(default: DefaultStream, handle: CUstream) -> CudaResult {
    begin(default, handle, 0)
}

/// `cuStreamBeginCapture_v2`.
pub fn begin(default: DefaultStream, handle: CUstream, mode: i32) -> CudaResult {
    let stream = named(handle, default)?;
    let mode = Mode::of(mode)?;
    let graph = Graph::new();
    let mut captures = captures();
    let begun = captures.begin(info(stream), mode, thread(), Arc::clone(&graph), Vec::new());
    changed(&captures);
    drop(captures);
    begun.or_else(|error| graph.destroy().and(Err(error)))
}

/// `cuStreamBeginCaptureToGraph`.
pub fn begin_to_graph(
    default: DefaultStream,
    handle: CUstream,
    graph: CUgraph,
    after: *const CUgraphNode,
    _data: *const c_void,
    count: usize,
    mode: i32,
) -> CudaResult {
    let stream = named(handle, default)?;
    let mode = Mode::of(mode)?;
    let graph = graph::named(graph)?;
    let after = graph::numbers(&graph, after, count)?;
    let mut captures = captures();
    let begun = captures.begin(info(stream), mode, thread(), graph, after);
    changed(&captures);
    begun
}

/// `cuStreamEndCapture`.
pub fn end(default: DefaultStream, handle: CUstream, out: *mut CUgraph) -> CudaResult {
    let stream = named(handle, default)?;
    let mut captures = captures();
    let ended = captures.end(stream.id, thread());
    changed(&captures);
    drop(captures);
    let (handle, result) = match ended {
        Ok(graph) => (graph.handle(), Ok(())),
        Err((error, None)) => return Err(error),
        Err((error, Some(graph))) => {
            // A graph that the application made is destroyed by the application.
            (std::ptr::null_mut(), graph.destroy().and(Err(error)))
        }
    };
    // SAFETY: `out` is the caller's place for a graph.
    unsafe { store(out, handle)? };
    result
}

/// The status of `stream`, the number of its capture, and its graph.
fn status(stream: &Stream) -> CudaResult<(i32, u64, CUgraph)> {
    let none = (CAPTURE_NONE, 0, std::ptr::null_mut());
    if !ongoing() {
        return Ok(none);
    }
    let captures = captures();
    if stream.is_legacy && captures.legacy_would_break(stream.context.id) {
        return Err(CUresult::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(captures.of_stream(stream.id).map_or(none, |capture| {
        let status = if capture.invalidated {
            CAPTURE_INVALIDATED
        } else {
            CAPTURE_ACTIVE
        };
        (status, capture.id, capture.graph.handle())
    }))
}

/// `cuStreamIsCapturing`.
pub fn query(default: DefaultStream, handle: CUstream, out: *mut i32) -> CudaResult {
    let (status, ..) = status(named(handle, default)?)?;
    // SAFETY: `out` is the caller's place for the status.
    unsafe { store(out, status) }
}

/// `cuStreamGetCaptureInfo` of CUDA 10.1.
pub fn capture_info_v1(
    default: DefaultStream,
    handle: CUstream,
    out: *mut i32,
    id: *mut u64,
) -> CudaResult {
    let (status, number, _) = status(named(handle, default)?)?;
    // SAFETY: the first is the caller's place, the second too or null.
    unsafe {
        store(out, status)?;
        store_optional(id, number);
    }
    Ok(())
}

/// `cuStreamGetCaptureInfo_v2`.
pub fn capture_info_v2(
    default: DefaultStream,
    handle: CUstream,
    out: *mut i32,
    id: *mut u64,
    graph: *mut CUgraph,
    after: *mut *const CUgraphNode,
    count: *mut usize,
) -> CudaResult {
    let stream = named(handle, default)?;
    let (status, number, graph_handle) = status(stream)?;
    // SAFETY: the first is the caller's place, the others too or null.
    unsafe {
        store(out, status)?;
        if status == CAPTURE_NONE {
            return Ok(());
        }
        store_optional(id, number);
        store_optional(graph, graph_handle);
    }
    let captures = captures();
    let frontier = captures.frontier(stream.id).unwrap_or_default();
    let of = captures.of_stream(stream.id).map(|capture| &capture.graph);
    let handles = of.map(|graph| frontier.iter().map(|n| graph.node_handle(*n)).collect());
    let handles: Vec<CUgraphNode> = handles.unwrap_or_default();
    HANDED.with_borrow_mut(|handed| {
        *handed = handles;
        // SAFETY: both are null or the caller's places; the array lives until the next such call.
        unsafe {
            store_optional(after, handed.as_ptr());
            store_optional(count, handed.len());
        }
    });
    Ok(())
}

/// `cuStreamGetCaptureInfo_v3`: edges have no data.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn capture_info_v3(
    default: DefaultStream,
    handle: CUstream,
    out: *mut i32,
    id: *mut u64,
    graph: *mut CUgraph,
    after: *mut *const CUgraphNode,
    data: *mut *const c_void,
    count: *mut usize,
) -> CudaResult {
    // SAFETY: `data` is null or the caller's place for a pointer.
    unsafe { store_optional(data, std::ptr::null()) };
    capture_info_v2(default, handle, out, id, graph, after, count)
}

/// `cuStreamUpdateCaptureDependencies`: flag 1 replaces the set, 0 adds to it.
pub fn update_dependencies(
    default: DefaultStream,
    handle: CUstream,
    nodes: *const CUgraphNode,
    count: usize,
    flags: u32,
) -> CudaResult {
    let stream = named(handle, default)?;
    let mut captures = captures();
    let capture = captures
        .of_stream(stream.id)
        .ok_or(CUresult::ILLEGAL_STATE)?;
    let numbers = graph::numbers(&Arc::clone(&capture.graph), nodes, count)?;
    captures.set_frontier(stream.id, &numbers, flags & 1 == 0)
}

/// `cuStreamUpdateCaptureDependencies_v2`.
pub fn update_dependencies_v2(
    default: DefaultStream,
    handle: CUstream,
    nodes: *const CUgraphNode,
    _data: *const c_void,
    count: usize,
    flags: u32,
) -> CudaResult {
    update_dependencies(default, handle, nodes, count, flags)
}

/// `cuThreadExchangeStreamCaptureMode`.
pub fn exchange_mode(mode: *mut i32) -> CudaResult {
    if mode.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller's place for a mode, not null.
    let fresh = Mode::of(unsafe { *mode })?;
    let old = MODE
        .try_with(|cell| cell.replace(fresh))
        .unwrap_or_default();
    // SAFETY: as above.
    unsafe { store(mode, old as i32) }
}
