"""What a step of vLLM's scheduler does, and what comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..beats import Beats
from ..job import Iteration
from .state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

#: A scheduler's queues of requests that do not run; versions have some of them.
QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting", "deferred_waiting")


class Said(Beats):
    """The iterations of one scheduler."""

    def __init__(self, scheduler: Any, *others: Any) -> None:
        super().__init__(*others)
        self.scheduler = scheduler

    def scheduled(self, output: Any) -> None:
        """A step is on its way to the workers; one without tokens is none."""
        if getattr(output, "total_num_scheduled_tokens", 0):
            self.begin(output, lambda: self._does(output))

    def arrived(self, output: Any) -> Callable[[], None]:
        """Its outputs are on the host."""
        return self.ended(output, self._then)

    def _does(self, output: Any) -> Iteration:
        batch = cached = prompt = 0
        drafts = getattr(output, "scheduled_spec_decode_tokens", None) or {}
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            # vLLM has counted the step's tokens already.
            computed = request.num_computed_tokens
            # One that goes on after it was preempted is read again as a prompt is, what it had answered included.
            if computed - tokens < request.num_prompt_tokens or tokens > 1 + len(drafts.get(name, ())):
                prompt += tokens
            else:
                batch += 1
                cached += computed
        return Iteration(batch=batch, cached=cached, prompt=prompt)

    def _then(self, done: Iteration) -> Iteration:
        scheduler, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        free = pool.get_num_free_blocks()
        # What grows has room that has no memory yet.
        withheld = len(getattr(getattr(scheduler, STATE, None), "withheld", ()))
        done.free_blocks, done.blocks = free + withheld, pool.num_gpu_blocks - 1
        waiting = list(self._waiting())
        done.waiting = len(waiting)
        under_way = sum(step.prompt for step in self.under_way)
        unread = (self._unread(request) for request in scheduler.running)
        done.waiting_tokens = under_way + sum(unread) + self._admitted(waiting, done.free_blocks)
        return done

    def _admitted(self, waiting: list[Any], free: int) -> int:
        """Prompt tokens of those that wait and have room, so that the next step can read some."""
        room, tokens = self.scheduler.max_num_running_reqs - len(self.scheduler.running), 0
        for request in waiting[: max(room, 0)]:
            free -= -(-request.num_tokens // self.scheduler.block_size)
            if free < 0:
                break
            tokens += max(self._unread(request), 1)
        return tokens

    @staticmethod
    def _unread(request: Any) -> int:
        return max(request.num_prompt_tokens - request.num_computed_tokens, 0)

    def _waiting(self) -> Iterator[Any]:
        for name in QUEUES:
            yield from getattr(self.scheduler, name, ())
