"""An offline vLLM scheduler whose KV blocks may be lost in the middle of a step.

A lost block reads as garbage and forgets what is written to it. Whatever was computed from it is
wrong too, so four things follow, once per step, after its outputs are on the host:

* *requeue*: requests that hold a lost block go back to waiting with their prompt and the tokens
  accepted so far;
* *drop*: all their output that is under way is dropped, of every step that is in flight;
* *disown*: lost blocks leave the prefix cache, and so do the later blocks of every request that
  held one, of all its groups of layers, because they may have been written from garbage, and whatever
  was computed from those in turn (``tables``);
* *withhold*: lost ids stay out of the allocator until they are back.

Invariant: a token leaves the scheduler only if no block that its request held when the step was
scheduled was lost, or disowned, before the step ended.

A request may have given blocks up since its step was scheduled (preempted for capacity, aborted, or
out of its window). Its output and its blocks in the prefix cache are judged by the table it had: those
tables are kept until the step has arrived.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import resumed, together
from .aside import Aside
from .tables import Table, Tables, blocks_of, reach
from .withheld import NULL_BLOCK, Withheld

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    from ..job import OfflineJob
    from .versions import Engine

log = logging.getLogger("vllm.tidegate")

#: The tokens that a loss is said to cost which should never be: the most that can be said. What costs most goes last.
UNTAKEABLE = (1 << 32) - 1


#: A request is published again when it has grown by a quarter: to choose by, its cost need not be known better.
DRIFT = 4


@dataclass(slots=True)
class Said:
    """What was published of a request."""

    number: int
    tokens: int = 0
    blocks: array[int] = field(default_factory=lambda: array("I"))
    stripes: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Flight:
    """A step that was scheduled and whose outputs have not arrived."""

    output: SchedulerOutput
    #: What the step reads and writes in groups with a window, which give it up sooner.
    within: dict[str, Table]
    #: Block tables of requests of this step that gave their blocks up since.
    parted: dict[str, Table] = field(default_factory=dict)
    #: Requests whose output of this step is dropped.
    dropped: set[str] = field(default_factory=set)


class LostBlocks(Withheld):
    """What one scheduler knows of its lost blocks."""

    def __init__(
        self,
        scheduler: Scheduler,
        job: OfflineJob,
        engine: Engine,
        run: int = 1,
        mended: bool = True,
    ) -> None:
        """``run`` blocks make a stripe: what is taken at once. ``mended``: ``resumed`` is in the workers' runners."""
        super().__init__(scheduler, job)
        self.engine = engine
        together.install(scheduler, run, self._stripes)
        self.flights: deque[Flight] = deque()
        self.step = 0
        self._mended = mended or getattr(scheduler, "use_v2_model_runner", False)
        #: What was said of requests that cannot be mended.
        self._named: set[str] = set()
        #: Requests requeued since the last step was scheduled: its workers still hold them.
        self.requeued: set[str] = set()
        #: Sessions that lost their blocks between two turns.
        self._bare: set[str] = set()
        self._run = run
        #: What was published of requests.
        self._said: dict[str, Said] = {}
        self._next_number = 0
        self._tables = Tables(scheduler)
        self._aside = Aside(scheduler, self._tables)
        #: What was published of a request's windows.
        self._published: dict[str, Table] = {}

    # What the scheduler does, in its order.

    def about_to_schedule(self) -> None:
        """With nothing under way there is no later moment to hear of losses before they are read."""
        self._begin_turns()
        if not self._computing():
            self.take_cut()
        if self.withheld:
            self._aside.take(self.blocks.num_gpu_blocks - 1 - len(self.withheld))

    def has_scheduled(self) -> None:
        """A step is put together, or could not be."""
        self._aside.give_back()

    def when_idle(self) -> None:
        """What is lost while nothing runs comes back only when the engine says it withholds it."""
        if not self._computing():
            self.take_cut()

    def scheduled(self, output: SchedulerOutput) -> None:
        """A step is on its way to the workers."""
        self.engine.tell_preempted(output, self.requeued)
        self.requeued.clear()
        names = output.num_scheduled_tokens if self._tables.sliding else ()
        flight = Flight(output, {name: self._within(name) for name in names})
        self.flights.append(flight)
        self._publish(flight)

    def starving(self) -> bool:
        return bool(self.withheld and self.scheduler.requests) and not self._computing()

    def parting(self, request: Request) -> None:
        """A request is about to give up its blocks."""
        name = request.request_id
        table = self._table(name)
        for flight in self.flights:
            if name in flight.output.num_scheduled_tokens:
                flight.parted.setdefault(name, table)
        self._published.pop(name, None)
        said = self._said.pop(name, None)
        if said is not None:
            self.job.forget(said.number)

    def arrived(self, output: SchedulerOutput) -> SchedulerOutput:
        """The outputs of a step are on the host; returns what of the step may be used."""
        self.take_cut()
        while self.flights:
            flight = self.flights.popleft()
            if flight.output is output:
                return self.engine.without(self.scheduler, output, flight.dropped)
        return output

    def _computing(self) -> bool:
        return any(flight.output.total_num_scheduled_tokens for flight in self.flights)

    # What the log says.

    def take_cut(self) -> None:
        """Asks for this step's cut and brings the scheduler in line with it."""
        self.step += 1
        cut = self.job.poll(self.step)
        if cut.lost:
            self._lose({block for block in cut.lost if block != NULL_BLOCK})
        if cut.back:
            self._give_back(cut.back)
        if cut.lost or cut.back:
            self.job.ack_withheld(cut.seq)

    def _lose(self, lost: set[int]) -> None:
        hit, disowned = self._reach(lost)
        self._requeue(hit)
        self._drop(hit)
        self._disown(disowned)
        self._withhold(lost)

    def _reach(self, lost: set[int]) -> tuple[set[str], set[int]]:
        """The requests that may have read garbage, and the blocks that may have been written from it."""
        tables = [(name, self._table(name)) for name in self.scheduler.requests]
        for flight in self.flights:
            tables += [*flight.within.items(), *flight.parted.items()]
        return reach(tables, lost)

    def _requeue(self, hit: set[str]) -> None:
        now = time.monotonic()
        # From the back: each goes to the head of the queue, and first come stays first served.
        for request in [r for r in reversed(self.scheduler.running) if r.request_id in hit]:
            self.scheduler.running.remove(request)
            self.engine.requeue(self.scheduler, request, now)
            self.requeued.add(request.request_id)
        for name in hit:
            request = self.scheduler.requests.get(name)
            if request is not None and not request.is_finished() and self._table(name):
                # With blocks, but not running: a session between two turns.
                self.scheduler.kv_cache_manager.free(request)
                self._bare.add(name)
        self._begin_turns()

    def _begin_turns(self) -> None:
        """Sessions without blocks compute all of their next turn.

        Until that has come, vLLM to 0.32 tells by what was computed how much of the last answer it keeps.
        """
        for name in list(self._bare):
            request = self.scheduler.requests.get(name)
            if request is None:
                self._bare.discard(name)
            elif request.status.name != "WAITING_FOR_STREAMING_REQ":
                request.num_computed_tokens = 0
                self._bare.discard(name)

    def _drop(self, hit: set[str]) -> None:
        for flight in self.flights:
            flight.dropped |= hit & flight.output.num_scheduled_tokens.keys()
        for name in hit:
            request = self.scheduler.requests.get(name)
            if request is not None and not request.is_finished():
                self.engine.drop_in_flight(request)

    def _disown(self, disowned: set[int]) -> None:
        self.blocks.evict_blocks(disowned)

    def _withhold(self, lost: set[int]) -> None:
        self.withhold(lost)

    def _give_back(self, back: Iterable[int]) -> None:
        self.allow(back)

    # What a loss would cost.

    def _publish(self, flight: Flight) -> None:
        output, requests = flight.output, self.scheduler.requests
        for new in output.scheduled_new_reqs:
            self._say(requests.get(new.req_id), new.block_ids)
        cached = output.scheduled_cached_reqs
        for name, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if groups is None:
                continue
            said, request = self._said.get(name), requests.get(name)
            if said is None or request is None:
                self._say(request, groups)  # all that it holds: it held nothing
            else:
                self._say_more(request, said, groups)
        for name, within in flight.within.items():
            if within != self._published.get(name, []):
                self._published[name] = within
                self._say(requests.get(name), (blocks_of(self._table(name)),))

    def _say(self, request: Request | None, groups: Iterable[Sequence[int]]) -> None:
        """That a request holds these blocks."""
        if request is None:
            return
        said = self._said.get(request.request_id)
        if said is None:
            self._next_number += 1
            said = self._said[request.request_id] = Said(self._next_number)
        said.blocks = array("I", [block for blocks in groups for block in blocks if block != NULL_BLOCK])
        said.stripes = {block // self._run for block in said.blocks}
        self._say_all(request, said)

    def _say_more(self, request: Request, said: Said, groups: Iterable[Sequence[int]]) -> None:
        """That a request holds these blocks too; said where that changes what the agent chooses by."""
        known = len(said.stripes)
        for blocks in groups:
            said.blocks.extend(blocks)
            for block in blocks:
                said.stripes.add(block // self._run)
        if len(said.stripes) > known or request.num_computed_tokens * DRIFT > said.tokens * (DRIFT + 1):
            self._say_all(request, said)

    def _say_all(self, request: Request, said: Said) -> None:
        said.tokens = request.num_computed_tokens
        self.job.publish(said.number, self._cost(request), said.blocks)

    def _cost(self, request: Request) -> int:
        """The tokens that a loss costs, or that it must not be."""
        why = None if self._mended else resumed.delicate(request)
        if why is None:
            return request.num_computed_tokens
        if why not in self._named:
            self._named.add(why)
            log.warning(
                "Tidegate takes blocks of requests with %s last of all: what this engine's model runner keeps of them"
                " is not known, and would be wrong after a loss",
                why,
            )
        return UNTAKEABLE

    def _stripes(self, name: str) -> Iterable[int]:
        said = self._said.get(name)
        return said.stripes if said else ()

    def _table(self, name: str) -> Table:
        return self._tables.of(name)

    def _within(self, name: str) -> Table:
        return self._tables.within(name)
