"""Requests that could not run even alone with the memory that is there: the others go past them.

vLLM admits requests in the order of their arrival, or priority, and the first that finds no room keeps all behind it
waiting. That ends when enough of those that run have ended. But while memory is away, the first may need more than there
is at all, and an offline engine would do nothing until it is back.

Such requests are taken from the head of the queue while a step is put together, and are at its head again right after:
nobody else sees the queue without them, and they run first once there is memory for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from .tables import Tables

#: So many at most. Each is taken and put back at every step: 0.8 us, on a busy machine of ours.
MOST = 256


class Aside:
    """Those of one scheduler."""

    def __init__(self, scheduler: Scheduler, tables: Tables) -> None:
        self._scheduler = scheduler
        #: Where those that are taken stood.
        self._queue: Any = scheduler.waiting
        self._sizes = tables.sizes
        self._taken: list[Request] = []
        moves = all(hasattr(self._queue, name) for name in ("peek_request", "pop_request", "prepend_request"))
        # In a group with a window a request needs fewer blocks than it has tokens for.
        self._knows = moves and not tables.sliding

    def take(self, blocks: int) -> None:
        """Takes those away that stand before the first that could run with so many blocks for itself."""
        self._queue = queue = self._scheduler.waiting
        while self._knows and queue and len(self._taken) < MOST:
            request = queue.peek_request()
            # A session between two turns holds what it has computed.
            if request.num_computed_tokens or self._needs(request.num_tokens) <= blocks:
                return
            self._taken.append(queue.pop_request())

    def give_back(self) -> None:
        """Puts them back where they stood."""
        while self._taken:
            self._queue.prepend_request(self._taken.pop())

    def _needs(self, tokens: int) -> int:
        blocks = 0
        for size in self._sizes:
            blocks -= -tokens // size
        return blocks
