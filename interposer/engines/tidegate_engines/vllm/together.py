"""Which free blocks a request gets: those that keep it in few stripes.

Memory is taken by the stripe, the blocks that share handles, and a request loses everything with the
first of its blocks. vLLM hands out what has been free longest, wherever it lies, so that after a
while each stripe holds a block of dozens of requests. Here a request gets blocks of the stripe that
its last one is in, else of others that it lies in, else of the fullest stripe that has enough free
ones, else of the emptiest: its blocks lie together, and whole stripes stay free, which cost nothing
to take. Among stripes that are
equally full, and within one, what has been free longest goes first, as in vLLM.

It is a free queue like vLLM's, with an index beside its list. Invariant: what the index holds is
what the list holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from .. import around

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

    ``held`` has the blocks of each request, and ``others`` says what stripes it lies in.
    """

    def __init__(
        self,
        queue: FreeKVCacheBlockQueue,
        blocks: int,
        run: int,
        held: Mapping[str, list[KVCacheBlock]],
        others: Callable[[str], Iterable[int]],
    ) -> None:
        self.__dict__.update(queue.__dict__)  # the same list
        self._unlink = super().remove
        self.run = run
        self.held = held
        self.others = others
        #: The request that is given blocks.
        self.asking = ""
        stripes = -(-blocks // run)
        #: By stripe: its free blocks, first to be handed out first.
        self.free: list[OrderedDict[int, KVCacheBlock]] = [OrderedDict() for _ in range(stripes)]
        #: By number of free blocks: the stripes that have so many, longest so first.
        self.with_free: list[dict[int, None]] = [{} for _ in range(run + 1)]
        self.with_free[0].update(dict.fromkeys(range(stripes)))
        #: Stripes of which that is not so any more, and how many free blocks it takes them to have: told when it is asked.
        self._moved: dict[int, int] = {}
        self._add(queue.get_all_free_blocks())

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0] if self.num_free_blocks else super().popleft()

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n == 0:
            return []
        assert self.num_free_blocks >= n
        held = self.held.get(self.asking)
        if n == 1 and held:  # nearly always
            stripe = held[-1].block_id // self.run
            if not self.free[stripe]:
                stripe = self._other(1)
            return [self._first(stripe, self.free[stripe])]
        chosen: list[KVCacheBlock] = []
        if held:
            self._take(held[-1].block_id // self.run, n, chosen)
        while len(chosen) < n:
            need = n - len(chosen)
            self._take(self._other(need) if held else self._fitting(need), n, chosen)
        return chosen

    def _other(self, need: int) -> int:
        """A stripe with a free block that the request lies in, else the fitting one."""
        for stripe in self.others(self.asking):
            if self.free[stripe]:
                return stripe
        return self._fitting(need)

    def _take(self, stripe: int, n: int, chosen: list[KVCacheBlock]) -> None:
        """Takes free blocks of a stripe until ``n`` are chosen."""
        free = self.free[stripe]
        while free and len(chosen) < n:
            chosen.append(self._first(stripe, free))

    def _first(self, stripe: int, free: OrderedDict[int, KVCacheBlock]) -> KVCacheBlock:
        if stripe not in self._moved:
            self._moved[stripe] = len(free)
        block = free.popitem(last=False)[1]
        self._unlink(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        self._unlink(block)
        stripe = block.block_id // self.run
        free = self.free[stripe]
        self._moved.setdefault(stripe, len(free))
        del free[block.block_id]

    def append(self, block: KVCacheBlock) -> None:
        super().append(block)
        self._add((block,))

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        super().append_n(blocks)
        self._add(blocks)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        super().prepend_n(blocks)
        self._add(blocks)
        for block in reversed(blocks):
            self.free[block.block_id // self.run].move_to_end(block.block_id, last=False)

    def _add(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            number = block.block_id
            stripe = number // self.run
            free = self.free[stripe]
            if stripe not in self._moved:
                self._moved[stripe] = len(free)
            free[number] = block

    def settle(self) -> None:
        """Brings ``with_free`` in line with ``free``."""
        for stripe, before in self._moved.items():
            now = len(self.free[stripe])
            if now != before:
                del self.with_free[before][stripe]
                self.with_free[now][stripe] = None
        self._moved.clear()

    def _fitting(self, need: int) -> int:
        """The stripe with the fewest free blocks that are enough, else the one with most."""
        self.settle()
        for count in range(need, self.run + 1):
            if stripes := self.with_free[count]:
                return next(iter(stripes))
        return next(next(iter(stripes)) for stripes in reversed(self.with_free) if stripes)


def install(scheduler: Any, run: int, others: Callable[[str], Iterable[int]]) -> None:
    """Gives a scheduler's pool such a queue; one whose queue is another than is known keeps it."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    queue = pool.free_block_queue
    methods = {name for name in dir(type(queue)) if not name.startswith("_")}
    # A stripe of one block is a block, and with a single stripe all are equal.
    if type(queue) is not FreeKVCacheBlockQueue or not methods <= KNOWN or not 1 < run < pool.num_gpu_blocks:
        return
    held = manager.coordinator.single_type_managers[0].req_to_blocks
    pool.free_block_queue = TogetherQueue(queue, pool.num_gpu_blocks, run, held, others)
    # Not of the instance: an attribute of one that others of its class do not have makes all of its attributes slow.
    around.once(type(manager), "allocate_slots", _telling)


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells such a queue who is asking: for each request in each step."""

    def allocate_slots(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        queue = self.block_pool.free_block_queue
        if type(queue) is TogetherQueue:
            queue.asking = request.request_id
        return original(self, request, *args, **kwargs)

    return allocate_slots
