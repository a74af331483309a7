//! Instances: graphs that can be launched.
//!
//! An instance is the nodes in an order that respects every dependency; a launch gives them to one
//! stream in that order under one launch number. An instance launched again waits for its launch
//! before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream};
use tidegate_vgpu::ring::Entry;

use crate::capturing;
use crate::channel::Point;
use crate::graph::named;
use crate::handle::{Pinned, Table};
use crate::objects::context::{Engine, Stream};
use crate::objects::current::{self, DefaultStream};
use crate::objects::work::Work;
use crate::result::{CudaResult, store, store_optional};

static INSTANCES: Table<Instance> = Table::new();

/// An executable graph.
pub struct Instance {
    parts: Mutex<Vec<(usize, Work)>>,
    last: Mutex<Option<Point>>,
    flags: u64,
}

impl Instance {
    fn parts(&self) -> MutexGuard<'_, Vec<(usize, Work)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the work of a node by its number in the graph the instance was made from.
    pub fn set_work(&self, number: usize, work: Work) -> CudaResult {
        let mut parts = self.parts();
        let part = parts.iter_mut().find(|(n, _)| *n == number);
        let (_, old) = part.ok_or(CUresult::INVALID_VALUE)?;
        if std::mem::discriminant(old) != std::mem::discriminant(&work) {
            return Err(CUresult::INVALID_VALUE);
        }
        *old = work;
        Ok(())
    }

    /// Gives all parts to `stream`.
    fn launch(&self, stream: &'static Pinned<Stream>) -> CudaResult {
        static LAUNCHES: AtomicU64 = AtomicU64::new(1);
        // The top bit tells graph launches from the channels' own numbers.
        let number = 1 << 63 | LAUNCHES.fetch_add(1, Ordering::Relaxed);
        let parts = self.parts();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(point) = *last {
            stream.submit_wait(point)?;
        }
        let mut point = None;
        run(
            parts.iter().map(|(_, work)| work),
            stream,
            number,
            &mut point,
        )?;
        if point.is_some() {
            *last = point;
        }
        Ok(())
    }
}

/// Gives `parts` to `stream`, entries for the compute engine in one piece.
fn run<'a>(
    parts: impl Iterator<Item = &'a Work>,
    stream: &'static Pinned<Stream>,
    launch: u64,
    point: &mut Option<Point>,
) -> CudaResult {
    let mut together: Vec<Entry> = Vec::new();
    let flush = |together: &mut Vec<Entry>, point: &mut Option<Point>| {
        if !together.is_empty() {
            *point = Some(stream.submit(Engine::Compute, together)?);
            together.clear();
        }
        Ok(())
    };
    for work in parts {
        match work {
            Work::Kernel(kernel) => together.push(kernel.entry(launch)),
            Work::Child(works) => {
                flush(&mut together, point)?;
                run(works.iter(), stream, launch, point)?;
            }
            other => {
                flush(&mut together, point)?;
                *point = other.run(stream, launch)?.or(*point);
            }
        }
    }
    flush(&mut together, point)
}

fn instantiate_graph(graph: CUgraph, flags: u64) -> CudaResult<CUgraphExec> {
    let parts = named(graph)?.ordered()?;
    Ok(INSTANCES.add(Arc::new(Instance {
        parts: Mutex::new(parts),
        last: Mutex::new(None),
        flags,
    })))
}

/// The instance an application names.
pub fn instance(exec: CUgraphExec) -> CudaResult<Arc<Instance>> {
    INSTANCES.get(exec).map_err(|_| CUresult::INVALID_VALUE)
}

/// `cuGraphInstantiateWithFlags`.
pub fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CudaResult {
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `out` is the caller's place for an instance, not null.
    unsafe { store(out, instantiate_graph(graph, flags)?) }
}

/// `cuGraphInstantiate` of CUDA 10 and 11, with its log.
pub fn instantiate_v1(
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut u8,
    log_bytes: usize,
) -> CudaResult {
    // SAFETY: both are null or the caller's places, the log with `log_bytes` bytes.
    unsafe {
        store_optional(error, std::ptr::null_mut());
        if log_bytes > 0 {
            store_optional(log, 0);
        }
    }
    instantiate(out, graph, 0)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub struct InstantiateParams {
    flags: u64,
    upload_stream: CUstream,
    error_node: CUgraphNode,
    result: i32,
}

/// `cuGraphInstantiateWithParams`.
pub fn instantiate_with_params(
    _default: DefaultStream,
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut InstantiateParams,
) -> CudaResult {
    if params.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    let flags = unsafe { (*params).flags };
    let made = instantiate(out, graph, flags);
    // SAFETY: as above; 0 is success, 1 an error.
    unsafe {
        (*params).error_node = std::ptr::null_mut();
        (*params).result = i32::from(made.is_err());
    }
    made
}

/// `cuGraphExecDestroy`: a running launch goes on.
pub fn exec_destroy(exec: CUgraphExec) -> CudaResult {
    INSTANCES
        .remove(exec)
        .map(|_| ())
        .map_err(|_| CUresult::INVALID_VALUE)
}

/// `cuGraphExecGetFlags`.
pub fn exec_flags(exec: CUgraphExec, out: *mut u64) -> CudaResult {
    // SAFETY: `out` is the caller's place for the flags.
    unsafe { store(out, instance(exec)?.flags) }
}

/// `cuGraphLaunch`. In a capturing stream the graph becomes a child node.
pub fn launch(default: DefaultStream, exec: CUgraphExec, stream: CUstream) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    let stream = unsafe { current::stream(stream, default)? };
    let instance = instance(exec)?;
    let child = || {
        Work::Child(
            instance
                .parts()
                .iter()
                .map(|(_, work)| work.clone())
                .collect(),
        )
    };
    if capturing::diverted(stream, child)? {
        return Ok(());
    }
    instance.launch(stream)
}

/// `cuGraphUpload`: nothing has to be moved.
pub fn upload(default: DefaultStream, exec: CUgraphExec, stream: CUstream) -> CudaResult {
    // SAFETY: a stream handle of the application, by the API's contract.
    unsafe { current::stream(stream, default)? };
    instance(exec).map(|_| ())
}

/// Whether `graph` has the same nodes in the same order as `instance`, and if so, its work.
fn update(exec: CUgraphExec, graph: CUgraph) -> CudaResult<bool> {
    let instance = instance(exec)?;
    let fresh = named(graph)?.ordered()?;
    let mut parts = instance.parts();
    let same = parts.len() == fresh.len()
        && parts
            .iter()
            .zip(&fresh)
            .all(|((_, old), (_, new))| std::mem::discriminant(old) == std::mem::discriminant(new));
    if same {
        for ((_, old), (_, new)) in parts.iter_mut().zip(fresh) {
            *old = new;
        }
    }
    Ok(same)
}

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`.
const TOPOLOGY_CHANGED: i32 = 2;

/// `cuGraphExecUpdate`.
pub fn exec_update(
    exec: CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    result: *mut i32,
) -> CudaResult {
    let same = update(exec, graph)?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        store_optional(error, std::ptr::null_mut());
        store_optional(result, if same { 0 } else { TOPOLOGY_CHANGED });
    }
    if same {
        Ok(())
    } else {
        Err(crate::result::code::GRAPH_EXEC_UPDATE_FAILURE)
    }
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct UpdateInfo {
    result: i32,
    error_node: CUgraphNode,
    error_from_node: CUgraphNode,
}

/// `cuGraphExecUpdate_v2`.
pub fn exec_update_v2(exec: CUgraphExec, graph: CUgraph, info: *mut UpdateInfo) -> CudaResult {
    let same = update(exec, graph)?;
    let answer = UpdateInfo {
        result: if same { 0 } else { TOPOLOGY_CHANGED },
        error_node: std::ptr::null_mut(),
        error_from_node: std::ptr::null_mut(),
    };
    // SAFETY: `info` is null or the caller's struct.
    unsafe { store_optional(info, answer) };
    if same {
        Ok(())
    } else {
        Err(crate::result::code::GRAPH_EXEC_UPDATE_FAILURE)
    }
}
