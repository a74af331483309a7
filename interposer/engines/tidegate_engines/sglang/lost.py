"""An offline SGLang scheduler whose KV slots may be lost in the middle of a step.

A lost slot reads as garbage and forgets what is written to it. Whatever was computed from it is wrong too, so five
things follow, before a step's results are used, and again before the next one is put together:

* *retract*: requests that hold a lost slot give their slots up in SGLang's own way, past the prefix cache, and wait
  again with their prompt and the tokens accepted so far;
* *drop*: what they have under way comes to nothing: SGLang passes over the results of a request that it has marked as
  retracted;
* *hold*: they are scheduled again, which takes the mark off, only when the last step that they were in has arrived;
* *purge*: lost slots leave the prefix cache with all that is below them, and so do the later slots of every request
  that held one, because they may have been written from garbage, and whatever was computed from those in turn;
* *withhold*: lost slots stay out of the allocator until they are back.

Invariant: a token leaves the scheduler only if no slot that its request held when the step was launched was lost, or
purged, before the step ended.

A request's row may have changed since its step was launched: it ended, was retracted for want of memory, or the prefix
cache gave it another's copy of its slots. Its results and its slots are judged by the row it had: those rows are kept
until the step has arrived.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..job import OfflineJob
from . import flight
from .aside import Aside, put_back
from .slots import Slots
from .tree import NoTree
from .ways import Ways

log = logging.getLogger("sglang.tidegate")

#: The tokens that a loss is said to cost which should never be: the most that can be said. What costs most goes last.
UNTAKEABLE = (1 << 32) - 1

#: What SGLang forgets of a request when it retracts it, by what asks for it, and the value that asks for nothing.
FORGOTTEN = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}

#: How often the agent is told what a loss would cost, in seconds: a look at the rows of all requests.
PUBLISH_S = 0.2

#: How long an engine that has requests, but no slots for any of them, waits before it asks again: short beside a step,
#: long beside the loop it would otherwise spin in.
SHORTAGE_WAIT_S = 0.002


def delicate(request: Any) -> str | None:
    """What of a request would come out otherwise after it was retracted, in SGLang's own way of doing so."""
    params = request.sampling_params
    for name, neutral in FORGOTTEN.items():
        if getattr(params, name, neutral) not in (None, neutral):
            return name
    return "input_embeds" if getattr(request, "input_embeds", None) is not None else None


@dataclass(slots=True, eq=False)
class Flight:
    """A step that was launched and whose results have not been used."""

    result: Any
    requests: list[Any]
    #: SGLang finds each request's part of its results by what those before it have.
    whole: bool
    #: Rows that requests of this step had, and have no more, by ``id``.
    parted: dict[int, torch.Tensor] = field(default_factory=dict)


class LostSlots:
    """What one scheduler knows of its lost slots."""

    def __init__(
        self,
        scheduler: Any,
        job: OfflineJob,
        ways: Ways,
        tree: NoTree,
        slots: Slots,
        unregister: Callable[[], Any] = lambda: None,
    ) -> None:
        """``unregister`` has nothing more be taken."""
        self.scheduler = scheduler
        self.unregister: Callable[[], Any] | None = unregister
        self.job = job
        self.ways = ways
        self.tree = tree
        self.slots = slots
        self._aside = Aside(scheduler, slots)
        self.flights: deque[Flight] = deque()
        self.step = 0
        #: What was said of whom: the request, its number, and the blocks' worth of slots it had then.
        self._said: dict[int, tuple[Any, int, int]] = {}
        self._next_number = 0
        #: What was said of requests whose answers a loss would change.
        self._named: set[str] = set()
        self._copy: _Rows | None = None
        self._published = 0.0
        self._takes_in = False

    # What the scheduler does, in its order.

    def turn(self) -> None:
        """A turn of the event loop begins; a paused or idle engine does no more than this."""
        self.take_cut()
        self._leave_batches()
        self.slots.settle()
        self._forget()

    @contextmanager
    def taking_in(self) -> Iterator[None]:
        """What has come is looked at. A pause among it uses the results of the step under way, and launches nothing."""
        self._takes_in = True
        try:
            yield
        finally:
            self._takes_in = False

    @contextmanager
    def scheduling(self) -> Iterator[None]:
        """A step is put together: of what is not held back, and of no more than there is memory for."""
        scheduler = self.scheduler
        self._spare_chunk()
        self._reopen()
        held = self._held()
        gone = {id(request) for request in held}
        passed = [request for request in self._passed() if id(request) not in gone]
        places = {id(request): at for at, request in enumerate(scheduler.waiting_queue)} if passed else {}
        try:
            # Only now, when nothing is left to ask of them.
            self._leave(held + passed)
            yield
        finally:
            if passed:
                scheduler.waiting_queue = list(put_back(passed, scheduler.waiting_queue, places))
            if held:
                scheduler.waiting_queue = held + scheduler.waiting_queue

    def _leave(self, some: list[Any]) -> None:
        """The queue without some of it."""
        if some:
            gone = {id(request) for request in some}
            self.scheduler.waiting_queue = [r for r in self.scheduler.waiting_queue if id(r) not in gone]

    def starve(self) -> None:
        """Nothing could be scheduled: waits a little, if it is for want of memory."""
        if self.slots.any() and self.scheduler.waiting_queue and not self.flights:
            self.job.wait(SHORTAGE_WAIT_S)

    def launched(self, batch: Any, result: Any) -> None:
        """A step is on its way."""
        whole = bool(batch.forward_mode.is_extend() and (batch.return_logprob or batch.return_hidden_states))
        self.flights.append(Flight(result, list(batch.reqs), whole))

    def parting(self, request: Any) -> None:
        """A request's row is about to change, or to be given up."""
        flights = [f for f in self.flights if any(r is request for r in f.requests) and id(request) not in f.parted]
        row = self._row(request)
        if flights and row is not None:
            kept = row.clone()
            for each in flights:
                each.parted[id(request)] = kept

    @contextmanager
    def arrived(self, result: Any) -> Iterator[None]:
        """The results of a step are about to be used: those of it that may be."""
        self._wait_for(result)
        self.take_cut()
        mine: Flight | None = None
        while self.flights:
            mine = self.flights.popleft()
            if mine.result is result:
                break
        passed = [] if mine is None else [request for request in mine.requests if request.is_retracted]
        if passed:
            with self._passing_over():
                yield
            self._unsay(passed)
        else:
            yield
        if self._takes_in:
            self._leave_batches()  # of which SGLang is about to retract whatever they hold
        self._publish()

    def _wait_for(self, result: Any) -> None:
        """Until the step has ended: what is lost later does not concern it."""
        done = getattr(result, "copy_done", None)
        if done is not None:
            done.synchronize()
        elif self.scheduler.device != "cpu":
            self.scheduler.device_module.current_stream().synchronize()

    @contextmanager
    def _passing_over(self) -> Iterator[None]:
        """Where steps do not overlap SGLang expects no retracted request among the results of one."""
        owner = getattr(self.scheduler, "batch_result_processor", self.scheduler)
        before = owner.enable_overlap
        object.__setattr__(owner, "enable_overlap", True)  # it may be frozen
        try:
            yield
        finally:
            object.__setattr__(owner, "enable_overlap", before)

    def _unsay(self, passed: list[Any]) -> None:
        """SGLang 0.5.11 takes it that the first token's logprob has been sent when it sends nothing of a request."""
        for request in passed:
            sent = getattr(request, "send_output_token_logprobs_offset", 0)
            if sent > len(request.output_ids):
                request.send_output_token_logprobs_offset = len(request.output_ids)

    # What the log says.

    def take_cut(self) -> None:
        """Asks for this step's cut and brings the scheduler in line with it."""
        self.step += 1
        cut = self.job.poll(self.step)
        try:
            if cut.lost:
                self._lose(cut.lost)
            if cut.back:
                self._give_back(cut.back)
        except Exception as error:  # noqa: BLE001 # whatever another version does to what is looked at
            self._give_up(error, cut.lost)
        if cut.lost or cut.back:
            self.job.ack_withheld(cut.seq)

    def _give_up(self, error: Exception, lost: list[int]) -> None:
        """Has nothing more be taken, and everything computed again; if that fails too, no answer would be right."""
        unregister, self.unregister = self.unregister, None
        if unregister is None:
            raise error
        log.warning("Tidegate takes no more memory from this engine: %s: %s", type(error).__name__, error)
        unregister()
        self._retract(self._holders())
        self._purge(np.ones(self.slots.total, dtype=bool))
        self._withhold(lost)

    def _lose(self, lost: list[int]) -> None:
        hit, bad = self._reach(self.slots.slots_of(lost))
        self._retract(hit)
        self._purge(bad)
        self._withhold(lost)

    def _reach(self, lost: np.ndarray) -> tuple[list[Any], np.ndarray]:
        """The requests that may have read garbage, and the slots that may have been written from it.

        Two requests of one prefix may hold different slots for the same tokens, so that a request without a lost slot
        can hold what another wrote from one: hence to a fixed point.
        """
        rows = self._rows()
        bad = lost.copy()
        hit: dict[int, Any] = {}
        grew = True
        while grew:
            grew = False
            rest = []
            for request, row in rows:
                found = np.flatnonzero(bad[row])
                if not len(found):
                    rest.append((request, row))
                    continue
                hit[id(request)] = request
                later = row[found[0] :]
                grew = grew or not bad[later].all()
                bad[later] = True
            rows = rest
        for each in self.flights:
            if each.whole and any(id(request) in hit for request in each.requests):
                hit.update((id(request), request) for request in each.requests)
        return list(hit.values()), bad

    def _retract(self, hit: list[Any]) -> None:
        scheduler = self.scheduler
        gone = [request for request in hit if not request.finished() and self.ways.row(request) is not None]
        for request in gone:
            self._release(request)
        # First come stays first served.
        scheduler.waiting_queue[:0] = sorted(gone, key=self._arrival)

    def _release(self, request: Any) -> None:
        scheduler = self.scheduler
        self.ways.release(request, scheduler.tree_cache)
        request.reset_for_retract()
        if scheduler.chunked_req is request:
            scheduler.chunked_req = None
        if getattr(scheduler, "_pending_chunked_abort_req", None) is request:
            from sglang.srt.managers.schedule_batch import FINISH_ABORT

            # It would be forgotten of a request that is chunked no more.
            scheduler._pending_chunked_abort_req = None  # noqa: SLF001
            request.to_finish = FINISH_ABORT("Aborted")
        request.time_stats.set_wait_queue_entry_time()

    def _arrival(self, request: Any) -> float:
        return getattr(request.time_stats, "created_time", 0.0) or 0.0

    def _purge(self, bad: np.ndarray) -> None:
        self.tree.purge(bad)

    def _withhold(self, lost: Iterable[int]) -> None:
        self.slots.withhold(lost)

    def _give_back(self, back: Iterable[int]) -> None:
        self.slots.allow(back)

    # Who is where.

    def _held(self) -> list[Any]:
        """Those that wait, and of whom a step is still under way."""
        flying = {id(request) for each in self.flights for request in each.requests}
        return [r for r in self.scheduler.waiting_queue if r.is_retracted and id(r) in flying]

    def _passed(self) -> list[Any]:
        """Those that wait, and that the others go past."""
        return self._aside.among(self.scheduler.waiting_queue)

    def _leave_batches(self) -> None:
        """Retracted requests leave the batches that the next step is made from."""
        for batch in (self.scheduler.running_batch, self.scheduler.last_batch):
            if batch is None or not any(request.is_retracted for request in batch.reqs):
                continue
            batch.filter_batch(keep_indices=[i for i, r in enumerate(batch.reqs) if not r.is_retracted])
            self.scheduler.running_batch.batch_is_full = False

    def _spare_chunk(self) -> None:
        """SGLang goes on with a prompt in chunks whether or not there is memory: it counted on some when it began."""
        request = self.scheduler.chunked_req
        if request is None or not self.slots.any():
            return
        left = len(request.origin_input_ids) + len(request.output_ids) - self.ways.held(request)
        chunk = min(left, self.scheduler.chunked_prefill_size or left) + 2 * self.slots.page
        room = self.slots.allocator.available_size() + self.scheduler.tree_cache.evictable_size()
        if chunk > room:
            self._retract([request])
            self._leave_batches()

    def _reopen(self) -> None:
        """SGLang expects more room only when a request leaves the batch: up to 0.5.22 or so, none may be in it."""
        if self.scheduler.running_batch.is_empty():
            self.scheduler.running_batch.batch_is_full = False

    def no_abort(self, batch: Any, original: Callable[..., Any], *args: Any) -> Any:
        """Around ``retract_decode``, which aborts a request that does not fit alone: it will, when memory is back."""
        before = {id(request): request.to_finish for request in batch.reqs}
        retracted, ratio, aborted = original(batch, *args)
        if not aborted or not self.slots.any():
            return retracted, ratio, aborted
        for request in aborted:
            request.to_finish = before[id(request)]
        return [*retracted, *aborted], ratio, []

    def _holders(self) -> list[Any]:
        found = {id(r): r for place in flight.PLACES.values() for r in place(self.scheduler)}
        found.update((id(request), request) for each in self.flights for request in each.requests)
        return [request for request in found.values() if self.ways.row(request) is not None]

    def _row(self, request: Any) -> torch.Tensor | None:
        at = self.ways.row(request)
        if at is None:
            return None
        return self.scheduler.req_to_token_pool.req_to_token[at, : self.ways.held(request)]

    def _rows(self) -> list[tuple[Any, np.ndarray]]:
        """Requests with the slots they hold, and with those they held."""
        rows = [(request, self._row(request)) for request in self._holders()]
        by_id = {id(request): request for each in self.flights for request in each.requests}
        rows += [(by_id[name], row) for each in self.flights for name, row in each.parted.items()]
        return _Rows([(request, row) for request, row in rows if row is not None and len(row)]).read()

    # What a loss would cost.

    def _forget(self) -> None:
        for name, (request, number, _) in list(self._said.items()):
            if self.ways.row(request) is None:
                del self._said[name]
                self.job.forget(number)

    def _publish(self) -> None:
        self._forget()
        if self._copy is None:
            now = time.monotonic()
            if now - self._published < PUBLISH_S:
                return
            self._published = now
            grown = [(r, self._row(r)) for r in self._holders() if self._grown(r)]
            if not grown:
                return
            self._copy = _Rows(grown)  # type: ignore[arg-type]
        if self._copy.there():
            for request, row in self._copy.read():
                if self.ways.row(request) is not None:
                    self._say(request, row)
            self._copy = None

    def _grown(self, request: Any) -> bool:
        said = self._said.get(id(request))
        return self.ways.held(request) > 0 and (said is None or said[2] != self.ways.held(request) // self.slots.run)

    def _say(self, request: Any, row: np.ndarray) -> None:
        said = self._said.get(id(request))
        if said is None:
            self._next_number += 1
        number = self._next_number if said is None else said[1]
        self._said[id(request)] = (request, number, len(row) // self.slots.run)
        blocks, first = np.unique(self.slots.blocks_of(row), return_index=True)
        self.job.publish(number, self._cost(request, len(row)), blocks[np.argsort(first)].tolist())

    def _cost(self, request: Any, tokens: int) -> int:
        """The tokens that a loss costs, or that it must not be."""
        why = delicate(request)
        if why is None:
            return tokens
        if why not in self._named:
            self._named.add(why)
            log.warning(
                "Tidegate takes memory of requests with %s last of all: SGLang forgets of a retracted request what it"
                " has counted for that, and the rest of its answer would be another",
                why,
            )
        return UNTAKEABLE


class _Rows:
    """Rows of requests on their way to the host."""

    def __init__(self, rows: list[tuple[Any, torch.Tensor]]) -> None:
        self._rows = [(request, len(row)) for request, row in rows]
        together = torch.cat([row for _, row in rows]) if rows else torch.empty(0, dtype=torch.int32)
        self._event = None
        if together.device.type == "cpu":
            self._host = together
            return
        self._host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
        self._host.copy_(together, non_blocking=True)
        self._event = torch.get_device_module(together.device).Event()
        self._event.record()

    def there(self) -> bool:
        """Whether reading them waits for nothing."""
        return self._event is None or self._event.query()

    def read(self) -> list[tuple[Any, np.ndarray]]:
        """Each request with its slots, in order."""
        if self._event is not None:
            self._event.synchronize()
        if not self._rows:
            return []
        parts = np.split(self._host.numpy(), np.cumsum([length for _, length in self._rows])[:-1])
        return [(request, part) for (request, _), part in zip(self._rows, parts, strict=True)]
