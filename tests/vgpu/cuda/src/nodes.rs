//! Nodes made by hand: the `cuGraphAdd*Node` family, and reading and changing what they hold.

use std::ffi::c_void;
use std::sync::Arc;

use tidegate_abi::cuda::{
    CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUkernel, CUresult,
};

use crate::copy::Memcpy3d;
use crate::graph::{Graph, named, node_named, numbers};
use crate::handle::Pinned;
use crate::instance::instance;
use crate::launch;
use crate::objects::function::{self, Function};
use crate::objects::sms::Sms;
use crate::objects::transfer::Fill;
use crate::objects::work::{self, Kernel, Work};
use crate::objects::{current, event};
use crate::result::{CudaResult, store};

/// Adds a node with an application's dependencies.
fn add(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    work: impl FnOnce() -> CudaResult<Work>,
) -> CudaResult {
    let graph = named(graph)?;
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let after = numbers(&graph, after, count)?;
    let number = graph.add(work()?, after);
    // SAFETY: `out` is the caller's place for a node, not null.
    unsafe { store(out, graph.node_handle(number)) }
}

fn read<T: Copy>(at: *const T) -> CudaResult<T> {
    if at.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application's struct, not null.
    Ok(unsafe { at.read_unaligned() })
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`, which is the beginning of the second version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelParamsV1 {
    function: CUfunction,
    dims: [u32; 6],
    shared: u32,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}
const _: () = assert!(size_of::<KernelParamsV1>() == 56);

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelParams {
    v1: KernelParamsV1,
    kernel: CUkernel,
    context: CUcontext,
}
const _: () = assert!(size_of::<KernelParams>() == 72);

impl KernelParamsV1 {
    fn work(&self, function: &'static Pinned<Function>) -> CudaResult<Work> {
        let sms = current::context().map_or(Sms::ALL, |context| context.sms);
        let (dims, params) = (self.dims, self.params);
        // SAFETY: parameters of the application, by the API's contract.
        let kernel =
            unsafe { launch::kernel(sms, function, dims, self.shared, params, self.extra) };
        kernel.map(Work::Kernel)
    }
}

impl KernelParams {
    fn work(&self) -> CudaResult<Work> {
        let named = if self.v1.function.is_null() {
            self.kernel
        } else {
            self.v1.function
        };
        self.v1.work(function::named(named)?)
    }
}

/// `cuGraphAddKernelNode_v2`.
pub fn add_kernel(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const KernelParams,
) -> CudaResult {
    add(out, graph, after, count, || read(params)?.work())
}

/// `cuGraphAddKernelNode` of CUDA 10.
pub fn add_kernel_v1(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const KernelParamsV1,
) -> CudaResult {
    add(out, graph, after, count, || {
        let params = read(params)?;
        params.work(function::named(params.function)?)
    })
}

/// The parameters of a kernel node as the application may read them: pointers into storage that
/// lives as long as the process, because nothing says when they are last used.
fn kernel_params(kernel: &Kernel) -> KernelParamsV1 {
    let words = Box::leak(Box::new(kernel.params)).as_mut_ptr().cast::<u8>();
    let pointers: Vec<*mut c_void> = kernel
        .function
        .params
        .iter()
        .map(|param| words.wrapping_add(param.offset).cast())
        .collect();
    KernelParamsV1 {
        function: kernel.function.handle(),
        dims: kernel.dims,
        shared: kernel.shared,
        params: Box::leak(pointers.into_boxed_slice()).as_mut_ptr(),
        extra: std::ptr::null_mut(),
    }
}

fn kernel_of(node: CUgraphNode) -> CudaResult<Kernel> {
    let name = node_named(node)?;
    name.graph.with_work(name.number, |work| match work {
        Work::Kernel(kernel) => Ok(*kernel),
        _ => Err(CUresult::INVALID_VALUE),
    })
}

/// `cuGraphKernelNodeGetParams_v2`.
pub fn get_kernel(node: CUgraphNode, out: *mut KernelParams) -> CudaResult {
    let params = KernelParams {
        v1: kernel_params(&kernel_of(node)?),
        kernel: std::ptr::null_mut(),
        context: std::ptr::null_mut(),
    };
    // SAFETY: `out` is the caller's place for the struct.
    unsafe { store(out, params) }
}

/// `cuGraphKernelNodeGetParams` of CUDA 10.
pub fn get_kernel_v1(node: CUgraphNode, out: *mut KernelParamsV1) -> CudaResult {
    // SAFETY: `out` is the caller's place for the struct.
    unsafe { store(out, kernel_params(&kernel_of(node)?)) }
}

/// Replaces the work of a node by work of the same kind.
fn set(node: CUgraphNode, fresh: Work) -> CudaResult {
    let name = node_named(node)?;
    name.graph.with_work(name.number, |work| {
        if std::mem::discriminant(work) != std::mem::discriminant(&fresh) {
            return Err(CUresult::INVALID_VALUE);
        }
        *work = fresh;
        Ok(())
    })
}

fn set_exec(exec: CUgraphExec, node: CUgraphNode, fresh: Work) -> CudaResult {
    instance(exec)?.set_work(node_named(node)?.number, fresh)
}

/// `cuGraphKernelNodeSetParams_v2`.
pub fn set_kernel(node: CUgraphNode, params: *const KernelParams) -> CudaResult {
    set(node, read(params)?.work()?)
}

/// `cuGraphKernelNodeSetParams` of CUDA 10.
pub fn set_kernel_v1(node: CUgraphNode, params: *const KernelParamsV1) -> CudaResult {
    let params = read(params)?;
    set(node, params.work(function::named(params.function)?)?)
}

/// `cuGraphExecKernelNodeSetParams_v2`.
pub fn exec_set_kernel(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const KernelParams,
) -> CudaResult {
    set_exec(exec, node, read(params)?.work()?)
}

/// `cuGraphExecKernelNodeSetParams` of CUDA 10.
pub fn exec_set_kernel_v1(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const KernelParamsV1,
) -> CudaResult {
    let params = read(params)?;
    set_exec(exec, node, params.work(function::named(params.function)?)?)
}

/// `cuGraphAddMemcpyNode`.
pub fn add_memcpy(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    what: *const Memcpy3d,
    _context: CUcontext,
) -> CudaResult {
    add(out, graph, after, count, || {
        Ok(Work::Copy(read(what)?.copy()?))
    })
}

/// `cuGraphMemcpyNodeSetParams`.
pub fn set_memcpy(node: CUgraphNode, what: *const Memcpy3d) -> CudaResult {
    set(node, Work::Copy(read(what)?.copy()?))
}

/// `cuGraphExecMemcpyNodeSetParams`.
pub fn exec_set_memcpy(
    exec: CUgraphExec,
    node: CUgraphNode,
    what: *const Memcpy3d,
    _context: CUcontext,
) -> CudaResult {
    set_exec(exec, node, Work::Copy(read(what)?.copy()?))
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemsetParams {
    at: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}
const _: () = assert!(size_of::<MemsetParams>() == 40);

impl MemsetParams {
    fn work(&self) -> CudaResult<Work> {
        if !matches!(self.element, 1 | 2 | 4) || self.height == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(Work::Fill(Fill {
            at: self.at,
            value: u64::from(self.value),
            element: u64::from(self.element),
            width: self.width as u64,
            rows: self.height as u64,
            pitch: self.pitch as u64,
        }))
    }
}

/// `cuGraphAddMemsetNode`.
pub fn add_memset(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    what: *const MemsetParams,
    _context: CUcontext,
) -> CudaResult {
    add(out, graph, after, count, || read(what)?.work())
}

/// `cuGraphMemsetNodeSetParams`.
pub fn set_memset(node: CUgraphNode, what: *const MemsetParams) -> CudaResult {
    set(node, read(what)?.work()?)
}

/// `cuGraphExecMemsetNodeSetParams`.
pub fn exec_set_memset(
    exec: CUgraphExec,
    node: CUgraphNode,
    what: *const MemsetParams,
    _context: CUcontext,
) -> CudaResult {
    set_exec(exec, node, read(what)?.work()?)
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostParams {
    function: CUhostFn,
    data: *mut c_void,
}

impl HostParams {
    fn work(&self) -> CudaResult<Work> {
        work::host(self.function, self.data).map(Work::Host)
    }
}

/// `cuGraphAddHostNode`.
pub fn add_host(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    what: *const HostParams,
) -> CudaResult {
    add(out, graph, after, count, || read(what)?.work())
}

/// `cuGraphHostNodeGetParams`.
pub fn get_host(node: CUgraphNode, out: *mut HostParams) -> CudaResult {
    let name = node_named(node)?;
    let params = name.graph.with_work(name.number, |work| match work {
        Work::Host(host) => Ok(HostParams {
            function: Some(host.function),
            data: host.data,
        }),
        _ => Err(CUresult::INVALID_VALUE),
    })?;
    // SAFETY: `out` is the caller's place for the struct.
    unsafe { store(out, params) }
}

/// `cuGraphHostNodeSetParams`.
pub fn set_host(node: CUgraphNode, what: *const HostParams) -> CudaResult {
    set(node, read(what)?.work()?)
}

/// `cuGraphExecHostNodeSetParams`.
pub fn exec_set_host(exec: CUgraphExec, node: CUgraphNode, what: *const HostParams) -> CudaResult {
    set_exec(exec, node, read(what)?.work()?)
}

/// `cuGraphAddEmptyNode`.
pub fn add_empty(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
) -> CudaResult {
    add(out, graph, after, count, || Ok(Work::Empty))
}

/// `cuGraphAddChildGraphNode`: the child as it is now.
pub fn add_child(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> CudaResult {
    add(out, graph, after, count, || {
        let works = named(child)?.ordered()?;
        Ok(Work::Child(
            works.into_iter().map(|(_, work)| work).collect(),
        ))
    })
}

/// `cuGraphAddEventRecordNode`.
pub fn add_event_record(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    handle: CUevent,
) -> CudaResult {
    add(out, graph, after, count, || {
        event::named(handle).map(Work::EventRecord)
    })
}

/// `cuGraphAddEventWaitNode`.
pub fn add_event_wait(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    handle: CUevent,
) -> CudaResult {
    add(out, graph, after, count, || {
        event::named(handle).map(Work::EventWait)
    })
}

/// `cuGraphNodeGetType`.
pub fn get_type(node: CUgraphNode, out: *mut i32) -> CudaResult {
    let name = node_named(node)?;
    let kind = name.graph.with_work(name.number, |work| {
        Ok(match work {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Host(_) => 3,
            Work::Child(_) => 4,
            Work::Empty => 5,
            Work::EventWait(_) => 6,
            Work::EventRecord(_) => 7,
            Work::Allocation(_) => 10,
            Work::Release => 11,
            Work::Values(_) => 12,
        })
    })?;
    // SAFETY: `out` is the caller's place for the kind.
    unsafe { store(out, kind) }
}

/// `cuGraphNodeFindInClone`: nodes of a clone keep their order.
pub fn find_in_clone(out: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) -> CudaResult {
    let name = node_named(original)?;
    let clone: Arc<Graph> = named(clone)?;
    let at = name
        .graph
        .ordered()?
        .iter()
        .position(|(number, _)| *number == name.number);
    let twin = at.and_then(|at| clone.ordered().ok()?.get(at).map(|(number, _)| *number));
    let handle = clone.node_handle(twin.ok_or(CUresult::INVALID_VALUE)?);
    // SAFETY: `out` is the caller's place for a node.
    unsafe { store(out, handle) }
}
