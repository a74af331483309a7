"""Blocks of a vLLM pool that its allocator passes over, because there is no memory of ours under them.

A withheld block has one more holder, who is not a request: vLLM's own reference count keeps it out
of the free queue, whoever else lets go of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from ..job import OfflineJob, OnlineJob

#: Block 0 is vLLM's placeholder: in every table, never read, never withheld.
NULL_BLOCK = 0

#: How often an engine that takes no step looks whether anything is asked of it.
IDLE_S = 0.5

#: How long an engine that has requests, but no blocks for any of them, waits before it asks again:
#: short beside an iteration, long beside the loop it would otherwise spin in.
SHORTAGE_WAIT_S = 0.002


class Withheld:
    """The blocks that one scheduler withholds."""

    def __init__(self, scheduler: Scheduler, job: OfflineJob | OnlineJob) -> None:
        self.scheduler = scheduler
        self.job: Any = job
        self.blocks: Any = scheduler.kv_cache_manager.block_pool
        self.withheld: set[int] = set()
        #: Held by whatever touches the scheduler or its pool: its own calls, and ``look`` below.
        self.lock = threading.RLock()
        #: The scheduler's methods that a thread is in, by name.
        self.inside: set[str] = set()
        #: Steps that were asked for.
        self.steps = 0

    def when_idle(self) -> None:
        """What to do for an engine that takes no step: it has nothing to do, or is paused."""
        raise NotImplementedError

    def look(self, seen: int) -> int:
        """Looks at an engine whose scheduler is not called any more: it has no requests, or is paused.

        ``seen`` and what is returned are how many steps were asked for by the last time, and by now.
        """
        with self.lock:
            if not self.scheduler.requests or self.steps == seen:
                self.when_idle()
            return self.steps

    def has_scheduled(self) -> None:
        """A step is put together, or could not be."""

    def settled(self) -> None:
        """The outputs of a step have been used."""

    def requests_changed(self) -> None:
        """Requests came or went."""

    def starving(self) -> bool:
        """Whether there are requests, but no blocks for any of them."""
        raise NotImplementedError

    def starve(self) -> None:
        """Waits a little when it is so; without the lock, for it is a wait."""
        if self.starving():
            self.job.wait(SHORTAGE_WAIT_S)

    def withhold(self, ids: Iterable[int]) -> None:
        """Keeps these blocks from the allocator. They must not be in the prefix cache any more."""
        new = sorted(set(ids) - self.withheld)
        self.withheld.update(new)
        self.blocks.touch([self.blocks.blocks[block] for block in new])

    def allow(self, ids: Iterable[int]) -> None:
        """Lets the allocator have these blocks."""
        returned = [block for block in ids if block in self.withheld]
        self.withheld.difference_update(returned)
        self.blocks.free_blocks([self.blocks.blocks[block] for block in returned])

    def usage(self, usage: float) -> float:
        """The share of used blocks among those that have memory: withheld ones are neither."""
        total = self.blocks.num_gpu_blocks - 1
        left = total - len(self.withheld)
        # A share of none used is a rounding error beside zero, on either side.
        return max(0.0, 1.0 - (1.0 - usage) * total / left) if left > 0 else 1.0

    def let_go(self) -> list[Any]:
        """Withheld blocks as free ones, for a check that wants all of them; undone by ``hold``."""
        blocks = [self.blocks.blocks[block] for block in sorted(self.withheld)]
        self.blocks.free_blocks(blocks)
        return blocks

    def hold(self, blocks: list[Any]) -> None:
        """Undoes ``let_go``."""
        self.blocks.touch(blocks)
