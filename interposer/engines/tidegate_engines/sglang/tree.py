"""What a prefix cache of SGLang holds of slots whose content is gone.

A node that holds such a slot leaves with all that is below it, for that was computed from it. Nodes that are locked
belong to running requests, so whoever held one is retracted first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class LockedError(RuntimeError):
    """A node that has to leave is held by a request that has none of its slots."""

    def __init__(self) -> None:
        super().__init__("a node of the prefix cache that lost memory is locked by nobody who holds its slots")


def _starts(parts: list[torch.Tensor], bad: np.ndarray) -> list[bool]:
    """Of each tensor of slots, whether a bad one is among them: one copy to the host for all."""
    if not parts:
        return []
    slots = torch.cat([part.reshape(-1).to(torch.int64) for part in parts]).cpu().numpy()
    counts = np.concatenate(([0], np.cumsum(bad[slots])))
    ends = np.cumsum([part.numel() for part in parts])
    return [bool(counts[end] - counts[end - part.numel()]) for end, part in zip(ends, parts, strict=True)]


class NoTree:
    """An engine without a prefix cache."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def purge(self, bad: np.ndarray) -> int:
        """Has what holds one of these slots leave; how many nodes did."""
        return 0


class PlainTree(NoTree):
    """``RadixCache``: nodes with children, and slots in ``value``."""

    def purge(self, bad: np.ndarray) -> int:
        nodes: list[Any] = []
        stack = list(self.cache.root_node.children.values())
        while stack:
            node = stack.pop()
            nodes.append(node)  # each after its parent
            stack += node.children.values()
        gone: dict[int, Any] = {}
        for node, hit in zip(nodes, _starts([node.value for node in nodes], bad), strict=True):
            if hit or id(node.parent) in gone:
                gone[id(node)] = node
        for node in reversed(gone.values()):
            if node.lock_ref:
                raise LockedError
            self.cache.token_to_kv_pool_allocator.free(node.value)
            self.cache._delete_leaf(node)  # noqa: SLF001 # as `evict` does with those that it chooses
            self.cache._record_remove_event(node)  # noqa: SLF001
        return len(gone)


class UnifiedTree(NoTree):
    """``UnifiedRadixCache``: its nodes may be in Rust, and are numbers here. It offers one leaf after the other."""

    def purge(self, bad: np.ndarray) -> int:
        gone = 0
        while self._holds(bad):
            leaves = self._leaves()
            paths = [self.cache.path_device_indices(leaf) for leaf in leaves]
            hit = [leaf for leaf, found in zip(leaves, _starts(paths, bad), strict=True) if found]
            for leaf in hit:
                self.cache._evict_device_leaf(leaf, self._tracker())  # noqa: SLF001 # as `evict` does
            gone += len(hit)
            if not hit:
                raise LockedError
        return gone

    def _holds(self, bad: np.ndarray) -> bool:
        cache = self.cache
        return bool(cache.evictable_size() + cache.protected_size()) and _starts([cache.all_values_flatten()], bad)[0]

    def _tracker(self) -> dict[Any, int]:
        return dict.fromkeys(self.cache.tree_components, 0)

    def _leaves(self) -> list[int]:
        """Those that could be evicted, none of which is."""
        core, component = self.cache.tree_core, self.cache.tree_components[0]
        leaves = []
        core.evict_device_start(component, core.full_evictable_size())
        try:
            while (found := core.evict_device_next_node(component, self._tracker())).node_id is not None:
                leaves.append(found.node_id)
        finally:
            core.evict_device_end(component)
        return leaves
