"""Which free blocks a request gets: those that keep it in few stripes.

Memory is taken by the stripe, the blocks that share handles, and a request loses everything with the
first of its blocks. vLLM hands out what has been free longest, wherever it lies, so that after a
while each stripe holds a block of dozens of requests. Here a request gets blocks of the stripe that
its last one is in, else of the fullest stripe that has enough free ones, else of the emptiest: its
blocks lie together, and whole stripes stay free, which cost nothing to take. Among stripes that are
equally full, and within one, what has been free longest goes first, as in vLLM.

It is a free queue like vLLM's, with an index beside its list. Invariant: what the index holds is
what the list holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

#: What vLLM's pool may do with its free queue. One that can do more is left as it is.
KNOWN = {
    "popleft",
    "popleft_n",
    "remove",
    "append",
    "append_n",
    "prepend_n",
    "get_all_free_blocks",
    "iter_blocks_after",
}


class TogetherQueue(FreeKVCacheBlockQueue):
    """A pool's free queue that knows of stripes of ``run`` blocks each.

    ``last`` says which block the request that is asking holds last.
    """

    def __init__(
        self, queue: FreeKVCacheBlockQueue, blocks: int, run: int, last: Callable[[], int | None]
    ) -> None:
        self.__dict__.update(queue.__dict__)  # the same list
        self.run = run
        self.last = last
        stripes = -(-blocks // run)
        #: By stripe: its free blocks, first to be handed out first.
        self.free: list[OrderedDict[int, KVCacheBlock]] = [OrderedDict() for _ in range(stripes)]
        #: By number of free blocks: the stripes that have so many, longest so first.
        self.with_free: list[dict[int, None]] = [{} for _ in range(run + 1)]
        self.with_free[0].update(dict.fromkeys(range(stripes)))
        for block in queue.get_all_free_blocks():
            self._add(block)

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0] if self.num_free_blocks else super().popleft()

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n == 0:
            return []
        assert self.num_free_blocks >= n
        chosen: list[KVCacheBlock] = []
        last = self.last()
        stripe = None if last is None else last // self.run
        while len(chosen) < n:
            if stripe is None or not self.free[stripe]:
                stripe = self._fitting(n - len(chosen))
            free = self.free[stripe]
            count = len(free)
            for _ in range(min(count, n - len(chosen))):
                chosen.append(free.popitem(last=False)[1])
            self._moved(stripe, count)
        for block in chosen:
            super().remove(block)
        return chosen

    def remove(self, block: KVCacheBlock) -> None:
        super().remove(block)
        stripe = block.block_id // self.run
        del self.free[stripe][block.block_id]
        self._moved(stripe, len(self.free[stripe]) + 1)

    def append(self, block: KVCacheBlock) -> None:
        super().append(block)
        self._add(block)

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        super().append_n(blocks)
        for block in blocks:
            self._add(block)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        super().prepend_n(blocks)
        for block in reversed(blocks):
            self._add(block)
            self.free[block.block_id // self.run].move_to_end(block.block_id, last=False)

    def _add(self, block: KVCacheBlock) -> None:
        stripe = block.block_id // self.run
        self.free[stripe][block.block_id] = block
        self._moved(stripe, len(self.free[stripe]) - 1)

    def _moved(self, stripe: int, before: int) -> None:
        del self.with_free[before][stripe]
        self.with_free[len(self.free[stripe])][stripe] = None

    def _fitting(self, need: int) -> int:
        """The stripe with the fewest free blocks that are enough, else the one with most."""
        for stripes in self.with_free[need:]:
            if stripes:
                return next(iter(stripes))
        return next(next(iter(stripes)) for stripes in reversed(self.with_free) if stripes)


def install(scheduler: Any, run: int, last: Callable[[], int | None]) -> None:
    """Gives a scheduler's pool such a queue; one whose queue is another than is known keeps it."""
    pool = scheduler.kv_cache_manager.block_pool
    queue = pool.free_block_queue
    methods = {name for name in dir(type(queue)) if not name.startswith("_")}
    # A stripe of one block is a block, and with a single stripe all are equal.
    if type(queue) is FreeKVCacheBlockQueue and methods <= KNOWN and 1 < run < pool.num_gpu_blocks:
        pool.free_block_queue = TogetherQueue(queue, pool.num_gpu_blocks, run, last)
