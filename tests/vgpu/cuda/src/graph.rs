//! Graphs: nodes of work with dependencies, made by hand or by capture.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUgraph, CUgraphNode, CUresult};

use crate::handle::Table;
use crate::objects::work::Work;
use crate::result::{CudaResult, store};

/// A graph under construction.
pub struct Graph {
    state: Mutex<State>,
}

#[derive(Default, Clone)]
struct State {
    /// By node number; numbers are never used again.
    nodes: BTreeMap<usize, Node>,
    next: usize,
}

#[derive(Clone)]
struct Node {
    work: Work,
    after: Vec<usize>,
    /// Its handle, as a number.
    handle: usize,
}

/// What a node handle names.
pub struct NodeName {
    /// Its graph.
    pub graph: Arc<Graph>,
    /// Its number there.
    pub number: usize,
}

static GRAPHS: Table<Graph> = Table::new();
static NODES: Table<NodeName> = Table::new();

/// The graph an application names.
pub fn named(graph: CUgraph) -> CudaResult<Arc<Graph>> {
    GRAPHS.get(graph).map_err(|_| CUresult::INVALID_VALUE)
}

/// The node an application names.
pub fn node_named(node: CUgraphNode) -> CudaResult<Arc<NodeName>> {
    NODES.get(node).map_err(|_| CUresult::INVALID_VALUE)
}

fn handle_of(number: usize) -> CUgraphNode {
    std::ptr::with_exposed_provenance_mut(number)
}

impl Graph {
    /// An empty graph that the application can name.
    pub fn new() -> Arc<Self> {
        let graph = Arc::new(Self {
            state: Mutex::default(),
        });
        GRAPHS.add(Arc::clone(&graph));
        graph
    }

    /// The handle of a graph.
    pub fn handle(self: &Arc<Self>) -> CUgraph {
        Arc::as_ptr(self).cast_mut().cast()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node; its number.
    pub fn add(self: &Arc<Self>, work: Work, after: Vec<usize>) -> usize {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let handle = NODES.add(Arc::new(NodeName {
            graph: Arc::clone(self),
            number,
        }));
        let node = Node {
            work,
            after,
            handle: handle.expose_provenance(),
        };
        state.nodes.insert(number, node);
        number
    }

    /// The handle of a node.
    pub fn node_handle(&self, number: usize) -> CUgraphNode {
        self.state()
            .nodes
            .get(&number)
            .map_or(std::ptr::null_mut(), |node| handle_of(node.handle))
    }

    /// Reads the work of a node.
    pub fn with_work<R>(
        &self,
        number: usize,
        f: impl FnOnce(&mut Work) -> CudaResult<R>,
    ) -> CudaResult<R> {
        let mut state = self.state();
        f(&mut state
            .nodes
            .get_mut(&number)
            .ok_or(CUresult::INVALID_VALUE)?
            .work)
    }

    /// Destroys the graph for the application. Instances do not need it.
    pub fn destroy(self: &Arc<Self>) -> CudaResult {
        GRAPHS
            .remove(self.handle())
            .map_err(|_| CUresult::INVALID_VALUE)?;
        let state = std::mem::take(&mut *self.state());
        for node in state.nodes.values() {
            // A handle is in the table as long as its node is in the graph.
            let _ = NODES.remove(handle_of(node.handle));
        }
        Ok(())
    }

    /// The nodes in an order that respects dependencies: number and work.
    pub fn ordered(&self) -> CudaResult<Vec<(usize, Work)>> {
        let state = self.state();
        let order = order(
            state
                .nodes
                .iter()
                .map(|(number, node)| (*number, &node.after[..])),
        );
        let order = order.ok_or(CUresult::INVALID_VALUE)?;
        Ok(order
            .into_iter()
            .map(|number| (number, state.nodes[&number].work.clone()))
            .collect())
    }
}

/// Numbers in an order in which each comes after those it depends on; `None` for a circle.
fn order<'a>(nodes: impl Iterator<Item = (usize, &'a [usize])>) -> Option<Vec<usize>> {
    let mut waiting: Vec<(usize, &[usize])> = nodes.collect();
    let mut done = std::collections::BTreeSet::new();
    let mut order = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|(number, after)| {
            let ready = after.iter().all(|number| done.contains(number));
            if ready {
                done.insert(*number);
                order.push(*number);
            }
            !ready
        });
        if waiting.len() == before {
            return None;
        }
    }
    Some(order)
}

/// `cuGraphCreate`.
pub fn create(out: *mut CUgraph, flags: u32) -> CudaResult {
    crate::driver::get()?;
    if out.is_null() || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `out` is the caller's place for a graph, not null.
    unsafe { store(out, Graph::new().handle()) }
}

/// `cuGraphDestroy`.
pub fn destroy(graph: CUgraph) -> CudaResult {
    named(graph)?.destroy()
}

/// `cuGraphClone`.
pub fn clone(out: *mut CUgraph, graph: CUgraph) -> CudaResult {
    let original = named(graph)?;
    let copy = Graph::new();
    let state = original.state().clone();
    let mut numbers = BTreeMap::new();
    for (number, work) in original.ordered()? {
        let after = state.nodes[&number]
            .after
            .iter()
            .filter_map(|n| numbers.get(n).copied());
        let new = copy.add(work, after.collect());
        numbers.insert(number, new);
    }
    // SAFETY: `out` is the caller's place for a graph.
    unsafe { store(out, copy.handle()) }
}

/// Writes handles into an application's array as the `cuGraphGet*` calls do: without an array only
/// the count is answered, in a larger one the rest becomes null.
fn put_handles(handles: &[CUgraphNode], out: *mut CUgraphNode, count: *mut usize) -> CudaResult {
    if count.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    if !out.is_null() {
        // SAFETY: the count is the caller's, not null.
        let room = unsafe { *count };
        for i in 0..room {
            let handle = handles.get(i).copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the caller's array has `room` places.
            unsafe { *out.add(i) = handle };
        }
        if room < handles.len() {
            return Ok(());
        }
    }
    // SAFETY: the count is the caller's, not null.
    unsafe { store(count, handles.len()) }
}

fn handles(graph: &Graph, which: impl Fn(&usize, &Node) -> bool) -> Vec<CUgraphNode> {
    let state = graph.state();
    let chosen = state
        .nodes
        .iter()
        .filter(|(number, node)| which(number, node));
    chosen.map(|(_, node)| handle_of(node.handle)).collect()
}

/// `cuGraphGetNodes`.
pub fn get_nodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> CudaResult {
    put_handles(&handles(&*named(graph)?, |_, _| true), out, count)
}

/// `cuGraphGetRootNodes`.
pub fn get_roots(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> CudaResult {
    put_handles(
        &handles(&*named(graph)?, |_, node| node.after.is_empty()),
        out,
        count,
    )
}

/// `cuGraphGetEdges`.
pub fn get_edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> CudaResult {
    let graph = named(graph)?;
    let (mut froms, mut tos) = (Vec::new(), Vec::new());
    {
        let state = graph.state();
        for node in state.nodes.values() {
            for before in node
                .after
                .iter()
                .filter_map(|number| state.nodes.get(number))
            {
                froms.push(handle_of(before.handle));
                tos.push(handle_of(node.handle));
            }
        }
    }
    if count.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the count is the caller's, not null.
    let mut room = unsafe { *count };
    put_handles(&froms, from, &raw mut room)?;
    put_handles(&tos, to, count)
}

/// `cuGraphGetEdges_v2`: edge data is all zero.
pub fn get_edges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    _data: *mut c_void,
    count: *mut usize,
) -> CudaResult {
    get_edges(graph, from, to, count)
}

/// `cuGraphNodeGetDependencies`.
pub fn dependencies(node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) -> CudaResult {
    let name = node_named(node)?;
    let after = name
        .graph
        .state()
        .nodes
        .get(&name.number)
        .map(|node| node.after.clone());
    let after = after.unwrap_or_default();
    put_handles(
        &handles(&name.graph, |number, _| after.contains(number)),
        out,
        count,
    )
}

/// `cuGraphNodeGetDependencies_v2`.
pub fn dependencies_v2(
    node: CUgraphNode,
    out: *mut CUgraphNode,
    _data: *mut c_void,
    count: *mut usize,
) -> CudaResult {
    dependencies(node, out, count)
}

/// `cuGraphNodeGetDependentNodes`.
pub fn dependents(node: CUgraphNode, out: *mut CUgraphNode, count: *mut usize) -> CudaResult {
    let name = node_named(node)?;
    put_handles(
        &handles(&name.graph, |_, node| node.after.contains(&name.number)),
        out,
        count,
    )
}

/// `cuGraphNodeGetDependentNodes_v2`.
pub fn dependents_v2(
    node: CUgraphNode,
    out: *mut CUgraphNode,
    _data: *mut c_void,
    count: *mut usize,
) -> CudaResult {
    dependents(node, out, count)
}

/// The numbers of an application's array of nodes of `graph`.
pub fn numbers(
    graph: &Arc<Graph>,
    nodes: *const CUgraphNode,
    count: usize,
) -> CudaResult<Vec<usize>> {
    if nodes.is_null() && count > 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let number = |i| {
        // SAFETY: the caller's array has `count` nodes and is not null.
        let name = node_named(unsafe { *nodes.add(i) })?;
        if Arc::ptr_eq(&name.graph, graph) {
            Ok(name.number)
        } else {
            Err(CUresult::INVALID_VALUE)
        }
    };
    (0..count).map(number).collect()
}

fn edit_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
    edit: impl Fn(&mut Vec<usize>, usize) -> CudaResult,
) -> CudaResult {
    let graph = named(graph)?;
    let (from, to) = (numbers(&graph, from, count)?, numbers(&graph, to, count)?);
    let mut state = graph.state();
    for (from, to) in from.into_iter().zip(to) {
        let node = state.nodes.get_mut(&to).ok_or(CUresult::INVALID_VALUE)?;
        edit(&mut node.after, from)?;
    }
    Ok(())
}

/// `cuGraphAddDependencies`.
pub fn add_dependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CudaResult {
    edit_edges(graph, from, to, count, |after, from| {
        if after.contains(&from) {
            return Err(CUresult::INVALID_VALUE);
        }
        after.push(from);
        Ok(())
    })
}

/// `cuGraphAddDependencies_v2`.
pub fn add_dependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    _data: *const c_void,
    count: usize,
) -> CudaResult {
    add_dependencies(graph, from, to, count)
}

/// `cuGraphRemoveDependencies`.
pub fn remove_dependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CudaResult {
    edit_edges(graph, from, to, count, |after, from| {
        let before = after.len();
        after.retain(|number| *number != from);
        if after.len() == before {
            Err(CUresult::INVALID_VALUE)
        } else {
            Ok(())
        }
    })
}

/// `cuGraphRemoveDependencies_v2`.
pub fn remove_dependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    _data: *const c_void,
    count: usize,
) -> CudaResult {
    remove_dependencies(graph, from, to, count)
}

/// `cuGraphDestroyNode`.
pub fn destroy_node(node: CUgraphNode) -> CudaResult {
    let name = NODES.remove(node).map_err(|_| CUresult::INVALID_VALUE)?;
    let mut state = name.graph.state();
    state.nodes.remove(&name.number);
    for node in state.nodes.values_mut() {
        node.after.retain(|number| *number != name.number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_ordered_after_what_they_depend_on() {
        let nodes: [(usize, &[usize]); 4] = [(0, &[3]), (1, &[0, 2]), (2, &[]), (3, &[2])];
        assert_eq!(order(nodes.into_iter()), Some(vec![2, 3, 0, 1]));
    }

    #[test]
    fn a_circle_has_no_order() {
        let nodes: [(usize, &[usize]); 2] = [(0, &[1]), (1, &[0])];
        assert_eq!(order(nodes.into_iter()), None);
    }
}
