"""An online vLLM scheduler whose KV cache grows and shrinks with what it needs.

vLLM starts with its full list of blocks. Those without memory are withheld; before each step the
scheduler asks for as many as the step could need, which inside the headroom costs no driver call,
and after a burst it gives surplus blocks back.

```text
            reserve, before a step                      release, after it
  withheld ------------------------> reserved: used or free ------------------> withheld
                                     (free ones may hold a prefix)
```

Invariants: what vLLM believes to be free has memory under it, so that no check of its own has to be
told otherwise; a block is given back only when no step that could still write to it is in flight.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .arrivals import Arrivals
from .fitted import Fitted
from .withheld import NULL_BLOCK, Withheld

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from ..job import OnlineJob

#: Surplus is given back when even the peak of ``HOLD_S`` used less than this share of the reserved
#: blocks ...
RELEASE_BELOW = 0.5
#: ... until it is this share of them: apart from it, so that a steady load does neither, and below
#: the 0.9 that counts as pressure.
RELEASE_TO = 0.75
#: Seconds for which a burst is remembered: what it reserved, and the prefixes it left, serve the next
#: one. At least this long, at most twice.
HOLD_S = 60.0


class Peak:
    """The largest of the values seen in the last one to two periods."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._since = 0.0
        self._now = 0
        self._before = 0

    def see(self, value: int, now: float) -> int:
        """The peak, with this value."""
        if now - self._since >= self.period_s:
            again = now - self._since < 2 * self.period_s
            self._before = self._now if again else 0
            self._now = 0
            self._since = now
        self._now = max(self._now, value)
        return max(self._now, self._before)


class GrownBlocks(Arrivals, Withheld):
    """The reservation of one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        job: OnlineJob,
        hold_s: float = HOLD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(scheduler, job)
        self.clock = clock
        self.peak = Peak(hold_s)
        self.block_size: int = scheduler.block_size
        self.total: int = self.blocks.num_gpu_blocks - 1
        #: Steps scheduled and not arrived: how many tokens each computes.
        self.flights: deque[SchedulerOutput] = deque()
        #: Blocks on their way back, with the steps that have to arrive first.
        self.leaving: deque[tuple[set[int], list[int]]] = deque()
        #: Blocks asked for ahead since the last step, for requests on their way.
        self.expected = 0
        #: Blocks that the next step could use, and that have no memory yet.
        self.missing = 0
        self.fitted = Fitted(scheduler, self.block_size, self._waiting, lambda: len(self.withheld), clock)
        self.withhold(range(NULL_BLOCK + 1, self.blocks.num_gpu_blocks))
        self._tell()

    @property
    def reserved(self) -> int:
        """Blocks that have memory and are the engine's to use."""
        return self.total - len(self.withheld)

    @property
    def used(self) -> int:
        """Reserved blocks that a request holds."""
        return self.reserved - self.blocks.get_num_free_blocks()

    # What the scheduler does, in its order.

    def say(self, count: int) -> None:
        self.job.in_flight(count)

    def coming(self, request: Any) -> None:
        """Asks for what the requests on their way will need, so that it is mapped while a step runs.

        A prompt that finds too little memory waits for a whole step more. Asked for again only where it is an eighth
        more: a thousand requests that come during one step are a few demands.
        """
        super().coming(request)
        with self.lock:
            ahead = sum(self._blocks(tokens + 1) for tokens in list(self.on_their_way.values()))
            missing = ahead + self._need() - self.blocks.get_num_free_blocks()
            missing = min(missing, len(self.withheld))
            if missing > self.expected + self.expected // 8:
                self.expected = missing
                self.job.expect(missing)

    def about_to_schedule(self) -> None:
        """Makes what the step could need free, as far as there is memory for it."""
        self.expected = 0
        missing = min(self._need() - self.blocks.get_num_free_blocks(), len(self.withheld))
        ids = self.job.reserve(missing) if missing > 0 else []
        self.allow(ids)
        self.missing = min(missing - len(ids), len(self.withheld))
        self.fitted.fit(self.missing > 0, bool(ids))

    def has_scheduled(self) -> None:
        self.fitted.undo()

    def scheduled(self, output: SchedulerOutput) -> None:
        """A step is on its way to the workers."""
        self.job.scheduled(output)
        self.flights.append(output)
        if self.fitted.read(output):
            # The rest of a prompt is on its way as one that has not been begun is.
            self.expected = self.missing
            self.job.expect(self.missing)
        self._tell()

    def starving(self) -> bool:
        computing = any(flight.total_num_scheduled_tokens for flight in self.flights)
        return bool(self.withheld and self.scheduler.requests) and not computing

    def parting(self, request: Request) -> None:
        """A request gives up its blocks: nothing to keep of it."""

    def arrived(self, output: SchedulerOutput) -> SchedulerOutput:
        """The outputs of a step are on the host."""
        while self.flights:
            if self.flights.popleft() is output:
                break
        under_way = {id(flight) for flight in self.flights}
        while self.leaving and not self.leaving[0][0] & under_way:
            self.job.release(self.leaving.popleft()[1])
        return output

    def settled(self) -> None:
        self.requests_changed()
        self._shrink()
        self._tell()

    def when_idle(self) -> None:
        """A burst that is long over leaves nothing reserved."""
        self._shrink()
        self._tell()

    # How much.

    def _need(self) -> int:
        """Blocks that the next step could take, prefix hits left aside."""
        scheduler = self.scheduler
        need = 0
        for request in scheduler.running:
            ahead = request.num_tokens_with_spec + request.num_output_placeholders
            tokens = max(ahead, request.num_computed_tokens) + scheduler.num_lookahead_tokens
            held = len(scheduler.kv_cache_manager.get_block_ids(request.request_id)[0])
            need += max(self._blocks(tokens + 1) - held, 0)
        # A request is admitted when all of it fits, however little of it the step computes.
        room = scheduler.max_num_running_reqs - len(scheduler.running)
        budget = scheduler.max_num_scheduled_tokens
        for request in self._waiting():
            if room <= 0 or budget <= 0:
                break
            need += self._blocks(request.num_tokens + scheduler.num_lookahead_tokens + 1)
            room -= 1
            budget -= 1
        watermark = getattr(scheduler.kv_cache_manager, "watermark_blocks", 0)
        return need + watermark

    def _waiting(self) -> Any:
        queues = ("waiting", "skipped_waiting", "kv_holding_waiting", "deferred_waiting")
        for name in queues:
            yield from getattr(self.scheduler, name, ())

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _shrink(self) -> None:
        used = self.used
        peak = self.peak.see(used, self.clock())
        if peak >= RELEASE_BELOW * self.reserved:
            return
        keep = max(int(peak / RELEASE_TO), used + self._need())
        surplus = self.reserved - keep
        if surplus <= 0:
            return
        free = [
            block.block_id
            for block in self.blocks.blocks
            if block.ref_cnt == 0 and not block.is_null
        ]
        # The highest ids, so that what stays lies together and whole handles come free.
        leaving = sorted(free)[-surplus:]
        self.blocks.evict_blocks(set(leaving))
        self.withhold(leaving)
        steps = {id(flight) for flight in self.flights}
        if steps:
            self.leaving.append((steps, leaving))
        else:
            self.job.release(leaving)

    def _tell(self) -> None:
        self.job.usage(self.used, self.reserved)
