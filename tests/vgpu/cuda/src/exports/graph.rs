//! Rows: stream capture and graphs.

use std::ffi::{c_int, c_uint, c_void};

use tidegate_abi::cuda::{
    CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream,
};

use super::{export, exports};
use crate::capturing;
use crate::copy::Memcpy3d;
use crate::graph;
use crate::instance::{self, InstantiateParams, UpdateInfo};
use crate::nodes::{self, HostParams, KernelParams, KernelParamsV1, MemsetParams};
use crate::objects::current::DefaultStream;
use crate::result::code_of;

exports! {
    cuStreamBeginCapture / cuStreamBeginCapture_ptsz(stream: CUstream) => capturing::begin_v1;
    cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: c_int) => capturing::begin;
    cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: CUgraph, after: *const CUgraphNode, data: *const c_void, count: usize, mode: c_int) => capturing::begin_to_graph;
    cuStreamEndCapture / cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph) => capturing::end;
    cuStreamIsCapturing / cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut c_int) => capturing::query;
    cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz(stream: CUstream, status: *mut c_int, id: *mut u64) => capturing::capture_info_v1;
    cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz(stream: CUstream, status: *mut c_int, id: *mut u64, graph: *mut CUgraph, after: *mut *const CUgraphNode, count: *mut usize) => capturing::capture_info_v2;
    cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz(stream: CUstream, status: *mut c_int, id: *mut u64, graph: *mut CUgraph, after: *mut *const CUgraphNode, data: *mut *const c_void, count: *mut usize) => capturing::capture_info_v3;
    cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz(stream: CUstream, nodes: *const CUgraphNode, count: usize, flags: c_uint) => capturing::update_dependencies;
    cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz(stream: CUstream, nodes: *const CUgraphNode, data: *const c_void, count: usize, flags: c_uint) => capturing::update_dependencies_v2;
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int) => capturing::exchange_mode;

    cuGraphCreate(graph: *mut CUgraph, flags: c_uint) => graph::create;
    cuGraphDestroy(graph: CUgraph) => graph::destroy;
    cuGraphClone(clone: *mut CUgraph, graph: CUgraph) => graph::clone;
    cuGraphInstantiate(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut u8, bytes: usize) => instance::instantiate_v1;
    cuGraphInstantiate_v2(exec: *mut CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, log: *mut u8, bytes: usize) => instance::instantiate_v1;
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) => instance::instantiate;
    cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz(exec: *mut CUgraphExec, graph: CUgraph, params: *mut InstantiateParams) => instance::instantiate_with_params;
    cuGraphExecDestroy(exec: CUgraphExec) => instance::exec_destroy;
    cuGraphExecGetFlags(exec: CUgraphExec, flags: *mut u64) => instance::exec_flags;
    cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, error: *mut CUgraphNode, result: *mut c_int) => instance::exec_update;
    cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, info: *mut UpdateInfo) => instance::exec_update_v2;
    cuGraphLaunch / cuGraphLaunch_ptsz(exec: CUgraphExec, stream: CUstream) => instance::launch;
    cuGraphUpload / cuGraphUpload_ptsz(exec: CUgraphExec, stream: CUstream) => instance::upload;

    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) => graph::get_nodes;
    cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) => graph::get_roots;
    cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) => graph::get_edges;
    cuGraphGetEdges_v2(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut c_void, count: *mut usize) => graph::get_edges_v2;
    cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) => graph::add_dependencies;
    cuGraphAddDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const c_void, count: usize) => graph::add_dependencies_v2;
    cuGraphRemoveDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) => graph::remove_dependencies;
    cuGraphRemoveDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const c_void, count: usize) => graph::remove_dependencies_v2;
    cuGraphDestroyNode(node: CUgraphNode) => graph::destroy_node;
    cuGraphNodeGetDependencies(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) => graph::dependencies;
    cuGraphNodeGetDependencies_v2(node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut c_void, count: *mut usize) => graph::dependencies_v2;
    cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) => graph::dependents;
    cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, nodes: *mut CUgraphNode, data: *mut c_void, count: *mut usize) => graph::dependents_v2;
    cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_int) => nodes::get_type;
    cuGraphNodeFindInClone(node: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) => nodes::find_in_clone;

    cuGraphAddEmptyNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize) => nodes::add_empty;
    cuGraphAddKernelNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParamsV1) => nodes::add_kernel_v1;
    cuGraphAddKernelNode_v2(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParams) => nodes::add_kernel;
    cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut KernelParamsV1) => nodes::get_kernel_v1;
    cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut KernelParams) => nodes::get_kernel;
    cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const KernelParamsV1) => nodes::set_kernel_v1;
    cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const KernelParams) => nodes::set_kernel;
    cuGraphExecKernelNodeSetParams(exec: CUgraphExec, node: CUgraphNode, params: *const KernelParamsV1) => nodes::exec_set_kernel_v1;
    cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: *const KernelParams) => nodes::exec_set_kernel;
    cuGraphAddMemcpyNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, what: *const Memcpy3d, context: CUcontext) => nodes::add_memcpy;
    cuGraphMemcpyNodeSetParams(node: CUgraphNode, what: *const Memcpy3d) => nodes::set_memcpy;
    cuGraphExecMemcpyNodeSetParams(exec: CUgraphExec, node: CUgraphNode, what: *const Memcpy3d, context: CUcontext) => nodes::exec_set_memcpy;
    cuGraphAddMemsetNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, what: *const MemsetParams, context: CUcontext) => nodes::add_memset;
    cuGraphMemsetNodeSetParams(node: CUgraphNode, what: *const MemsetParams) => nodes::set_memset;
    cuGraphExecMemsetNodeSetParams(exec: CUgraphExec, node: CUgraphNode, what: *const MemsetParams, context: CUcontext) => nodes::exec_set_memset;
    cuGraphAddHostNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, what: *const HostParams) => nodes::add_host;
    cuGraphHostNodeGetParams(node: CUgraphNode, what: *mut HostParams) => nodes::get_host;
    cuGraphHostNodeSetParams(node: CUgraphNode, what: *const HostParams) => nodes::set_host;
    cuGraphExecHostNodeSetParams(exec: CUgraphExec, node: CUgraphNode, what: *const HostParams) => nodes::exec_set_host;
    cuGraphAddChildGraphNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, child: CUgraph) => nodes::add_child;
    cuGraphAddEventRecordNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent) => nodes::add_event_record;
    cuGraphAddEventWaitNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent) => nodes::add_event_wait;
}
