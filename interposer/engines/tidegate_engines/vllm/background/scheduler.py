"""Background requests: they ride in users' steps as far as the users' promise allows (``TIDEGATE_BACKGROUND``).

A background request is one with a ``priority`` above zero. vLLM's own scheduler computes the steps, the blocks and the
prefix cache. What this adds is which background requests it sees in a step:

```
held      not in vLLM's queues; no blocks
admitted  in vLLM's `running`, behind all users; out of it while a step is made in which the request does not ride
riding    so many as the library says. While a user's prompt waits or is read: none
```

Invariants: vLLM sees users' requests as if there were no others, in their order. When blocks or places for a user lack,
background requests are put back to `held` before vLLM sees the lack, the youngest first, so vLLM preempts no user for
them. The library decides how many ride; nothing is decided here.

A fault ends this, and all background requests go on as any others of vLLM's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from ... import around
from ...coserve_abi import Ask, Coserve
from .. import versions
from .told import Told

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

log = logging.getLogger("vllm.tidegate")

#: Where vLLM keeps requests that wait. The last is of requests that hold blocks, which no background request does.
QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
#: Those of them that background requests may get into.
OURS = QUEUES[:2]


def ahead(request: Request) -> int:
    """Tokens that vLLM would compute for a running request in the next step, had it room for all."""
    placeholders = request.num_output_placeholders
    if placeholders > 0 and (
        request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
    ):
        return 0  # the step under way makes its last token
    return max(request.num_tokens_with_spec + placeholders - request.num_computed_tokens, 0)


def adapter(request: Request) -> int:
    """The number of its LoRA adapter, or 0."""
    lora = request.lora_request
    return lora.lora_int_id if lora else 0


class Background:
    """The background requests of one scheduler."""

    def __init__(self, scheduler: Scheduler, coserve: Coserve, clock: Callable[[], int] = time.monotonic_ns) -> None:
        from vllm.v1.core.sched.request_queue import create_request_queue
        from vllm.v1.request import RequestStatus

        self.scheduler: Any = scheduler
        self.on = True
        self.told = Told(coserve, clock)
        self._ways = versions.engine(type(scheduler))
        self._queue = lambda: create_request_queue(scheduler.policy)
        self._status = RequestStatus
        self.held: OrderedDict[str, Request] = OrderedDict()
        #: In the order in which they were admitted.
        self.admitted: dict[str, Request] = {}
        #: While a step is made: those that do not ride, those that vLLM may admit, and what vLLM had before.
        self._parked: list[Request] = []
        self._chosen: list[Request] = []
        self._usual: tuple[int, dict[str, Any]] | None = None
        #: Put back, and no worker was told.
        self._untold: set[str] = set()
        self._fault: Exception | None = None
        #: Prompt tokens of background requests in a step, if there are any: one request's; 0: what fits.
        self.chunk = 0
        #: Gives blocks back that nobody's request holds; says whether it did.
        self.relieve: Callable[[], bool] = lambda: False

    def watch(self) -> None:
        """Stands around the methods of this scheduler, and of no other."""
        scheduler = self.scheduler
        around.of_instance(scheduler, "schedule", self._schedule)
        around.of_instance(scheduler, "add_request", self._add)
        around.of_instance(scheduler, "finish_requests", self._finish)
        around.of_instance(scheduler, "update_from_output", self._update)
        around.of_instance(scheduler, "get_num_unfinished_requests", self._unfinished)
        around.of_instance(scheduler.kv_cache_manager, "allocate_slots", self._allocate)

    # Requests come and go.

    def takes(self, request: Request) -> bool:
        """Whether a request is a background request. Sessions and media are not: they hold more than blocks."""
        return request.priority > 0 and not request.resumable and not request.mm_features

    def _add(self, original: Any, request: Request) -> None:
        known = request.request_id in self.scheduler.requests
        original(request)
        if self.on and not known:
            self._kept(self._came, request)

    def _came(self, request: Request) -> None:
        if self.takes(request):
            self.held[request.request_id] = request
            self._unqueue(request)
        else:
            self.told.came(request)

    def _finish(self, original: Any, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if request_ids is not None and not isinstance(request_ids, str):
            request_ids = list(request_ids)
        result = original(request_ids, *args, **kwargs)
        if self.on:
            names = [request_ids] if isinstance(request_ids, str) else request_ids
            self._kept(self._went, names)
        return result

    def _went(self, names: list[str] | None) -> None:
        everybody = [*self.held, *self.admitted, *self.told.users()]
        for name in everybody if names is None else names:
            self.held.pop(name, None)
            self.admitted.pop(name, None)
            self.told.went(name)

    def _unfinished(self, original: Any) -> int:
        count = original()
        if self.on and self.scheduler._pause_state.name == "UNPAUSED":
            count += len(self.held)
        return count

    def _update(self, original: Any, output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        outputs = original(output, *args, **kwargs)
        if self.on:
            self._kept(self._ended, output, outputs)
        return outputs

    def _ended(self, output: SchedulerOutput, outputs: Any) -> None:
        for name in self.told.ended(output, outputs):
            # One that was put back while its last token was under way.
            self.held.pop(name, None)

    # A step.

    def _schedule(self, original: Any, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if self.on:
            self._kept(self._begin)
        try:
            output = original(*args, **kwargs)
        finally:
            self._end()
        if self._untold:
            self._ways.tell_preempted(output, self._untold)
            self._untold = set()
        if self.on:
            self._kept(self._scheduled, output)
        if self._fault is not None:
            self._give_up(self._fault)
        return output

    def _begin(self) -> None:
        """Has vLLM see what rides in the next step."""
        scheduler = self.scheduler
        self._collect()
        users = scheduler.running
        if self.admitted:
            users = [request for request in users if request.request_id not in self.admitted]
        tokens = self._ask(users)
        if not self.admitted and not self.held:
            return
        paused = scheduler._pause_state.name
        if paused == "PAUSED_ALL":
            return
        ready = {one.request_id: ahead(one) for one in self._with_slots(users, self.admitted.values())}
        decoding = [self.admitted[name] for name, count in ready.items() if count == 1]
        reading = [self.admitted[name] for name, count in ready.items() if count > 1]
        if self.chunk:
            # The last row of a prompt is no decode there: it would ride beside another's rows.
            reading = [self.admitted[name] for name in ready if self._reads(self.admitted[name], ready)]
            decoding = [one for one in decoding if one not in reading]
        fresh = self._fresh(users) if paused == "UNPAUSED" else []
        ask = self.told.ask
        ask.background = len(decoding)
        ask.background_cached = sum(request.num_computed_tokens for request in decoding)
        ask.prompt = sum(ready[request.request_id] for request in reading) + sum(one.num_tokens for one in fresh)
        if self.chunk:
            reading, fresh = reading[:1], [] if reading else fresh[:1]
            first = ready[reading[0].request_id] if reading else fresh[0].num_tokens if fresh else 0
            ask.prompt = min(first, self.chunk)
        rides = self.told.rides()
        riding = decoding[: rides.rows] + (reading if rides.prompt else [])
        self._show(users, riding, fresh if rides.prompt else [], tokens + rides.rows + rides.prompt)

    def _reads(self, request: Request, ready: dict[str, int]) -> bool:
        """Whether a background request has a part of its prompt to read."""
        return ready[request.request_id] > 0 and not request.num_output_tokens + request.num_output_placeholders

    def outlook(self) -> Ask:
        """What users have in the next step, as the library is told; good until the next step is made."""
        running = self.scheduler.running
        self._ask([one for one in running if one.request_id not in self.admitted] if self.admitted else running)
        return self.told.ask

    def _ask(self, users: list[Request]) -> int:
        """Tells the library what users have in the next step; the tokens of it."""
        scheduler, ask = self.scheduler, self.told.ask
        decode = cached = reading = tokens = 0
        for request in users:
            count = ahead(request)
            tokens += count
            if count == 1:
                decode += 1
                cached += request.num_computed_tokens
            elif count > 1:
                reading += 1
        waiting = sum(len(queue) for name in QUEUES if (queue := getattr(scheduler, name, None)) is not None)
        waiting -= getattr(scheduler, "num_waiting_for_streaming_input", 0)
        ask.users, ask.users_cached, ask.prompts = decode, cached, reading + max(waiting, 0)
        ask.background = ask.background_cached = ask.prompt = 0
        return tokens

    def _fresh(self, users: list[Request]) -> list[Request]:
        """The first that are held: as many as there are places for, and tokens in a step."""
        scheduler = self.scheduler
        most = min(scheduler.max_num_running_reqs, getattr(scheduler, "max_num_active_reqs", 1 << 30))
        places = most - len(users) - len(self.admitted) - getattr(scheduler, "num_waiting_for_streaming_input", 0)
        found, left = [], scheduler.max_num_scheduled_tokens
        for request in islice(self.held.values(), max(places, 0)):
            if left <= 0:
                break
            left -= request.num_tokens
            found.append(request)
        return found

    def _with_slots(self, users: list[Request], among: Iterable[Request]) -> Iterable[Request]:
        """Those whose adapters have slots beside those of users: vLLM ends if those that run have too many."""
        config = self.scheduler.lora_config
        if not config:
            return among
        slots = {adapter(request) for request in users} - {0}
        found = []
        for request in among:
            slot = adapter(request)
            if not slot or slot in slots or len(slots) < config.max_loras:
                slots |= {slot} - {0}
                found.append(request)
        return found

    def _show(self, users: list[Request], riding: list[Request], fresh: list[Request], budget: int) -> None:
        """Users first, then who rides; the rest is not there until ``_end``."""
        scheduler = self.scheduler
        names = {request.request_id for request in riding}
        swapped = {}
        if fresh:
            swapped = {name: getattr(scheduler, name) for name in OURS if hasattr(scheduler, name)}
            queue = self._queue()
            for request in fresh:
                queue.add_request(request)
        self._usual = scheduler.max_num_scheduled_tokens, swapped
        self._parked = [one for name, one in self.admitted.items() if name not in names]
        self._chosen = fresh
        for request in fresh:
            del self.held[request.request_id]
        scheduler.running = [*users, *riding]
        for name in swapped:
            setattr(scheduler, name, queue if name == "waiting" else self._queue())
        if riding or fresh:
            scheduler.max_num_scheduled_tokens = min(budget, scheduler.max_num_scheduled_tokens)

    def _end(self) -> None:
        """vLLM has everything back, and who was admitted or preempted is known."""
        if self._usual is None:
            return
        scheduler = self.scheduler
        (scheduler.max_num_scheduled_tokens, swapped), self._usual = self._usual, None
        left: list[Request] = []
        for name, queue in swapped.items():
            left += getattr(scheduler, name)
            setattr(scheduler, name, queue)
        mine = {request.request_id for request in self._chosen} | self.admitted.keys()
        scheduler.running += self._parked
        for request in self._chosen:
            if request.status == self._status.RUNNING:
                self.admitted[request.request_id] = request
        for request in reversed(left):
            if request.request_id in mine:
                self._hold(request)
            else:
                scheduler.waiting.prepend_request(request)
        self._parked, self._chosen = [], []

    def _scheduled(self, output: SchedulerOutput) -> None:
        """Tells what the step holds."""
        rows = prompt = 0
        counts = output.num_scheduled_tokens
        for name, request in self.admitted.items():
            count = counts.get(name, 0)
            if count == 1 and request.num_output_tokens + request.num_output_placeholders > 0:
                rows += 1
            else:
                prompt += count
        self.told.scheduled(output, rows, prompt)

    # Blocks and places.

    def _allocate(self, original: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
        if self._usual is None:
            return original(request, *args, **kwargs)
        name = request.request_id
        if name in self.admitted:
            victim = self._behind
        elif any(request is one for one in self._chosen):
            return original(request, *args, **kwargs)
        else:
            victim = self._youngest
            self._kept(self._make_place, request)
        found = original(request, *args, **kwargs)
        while found is None and self._fault is None and self._gave(victim, request):
            found = original(request, *args, **kwargs)
        return found

    def _gave(self, victim: Callable[[Request], Request | None], request: Request) -> bool:
        """Whether there are more blocks for a request than there were."""
        one = victim(request)
        if one is not None:
            self._kept(self._put_back, one)
            return True
        return victim == self._youngest and self.relieve()

    def _make_place(self, request: Request) -> None:
        """Puts back as many as a user needs to be admitted: the second model runner has a slot for each that has blocks."""
        scheduler = self.scheduler
        if request.status == self._status.RUNNING:
            return
        most = scheduler.max_num_running_reqs - getattr(scheduler, "num_waiting_for_streaming_input", 0)
        while len(scheduler.running) + len(self._parked) >= most and (one := self._youngest(request)) is not None:
            self._put_back(one)

    def _youngest(self, request: Request) -> Request | None:
        return next(reversed(self.admitted.values()), None)

    def _behind(self, request: Request) -> Request | None:
        """The youngest that was admitted after a background request, and is not in this step before it."""
        running = self.scheduler.running
        later = {id(one) for one in [*self._parked, *running[running.index(request) + 1 :]]}
        for one in reversed(self.admitted.values()):
            if one is request:
                return None
            if id(one) in later:
                return one
        return None

    def _put_back(self, request: Request) -> None:
        """Takes its blocks and its place. vLLM's own preemption does it, and knows how to go on with it."""
        scheduler, name = self.scheduler, request.request_id
        if any(request is one for one in self._parked):
            self._parked.remove(request)
        else:
            scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())
        # One that is admitted again in the very next step has to be sent whole.
        scheduler.prev_step_scheduled_req_ids.discard(name)
        self._untold.add(name)
        self._unqueue(request)
        self._hold(request)

    def _hold(self, request: Request) -> None:
        """It goes on before all that are held."""
        name = request.request_id
        self.admitted.pop(name, None)
        self.held[name] = request
        self.held.move_to_end(name, last=False)
        getattr(self.scheduler, "deferred_waiting", set()).discard(request)

    def _unqueue(self, request: Request) -> None:
        """Takes it out of vLLM's queues."""
        scheduler = self.scheduler
        for name in OURS:
            with contextlib.suppress(ValueError, AttributeError):
                getattr(scheduler, name).remove_request(request)
        getattr(scheduler, "deferred_waiting", set()).discard(request)

    def _collect(self) -> None:
        """Drops who ended, and holds whom vLLM preempted."""
        ended = [one for one in self.admitted.values() if one.status != self._status.RUNNING]
        for request in reversed(ended):
            del self.admitted[request.request_id]
            if not request.is_finished():
                self._untold.add(request.request_id)
                self._unqueue(request)
                self._hold(request)

    # Faults.

    def _kept(self, call: Callable[..., None], *args: Any) -> None:
        """Calls it. A fault of it is not vLLM's: it ends what this adds."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 # whatever it is, serving goes on
            if self._usual is None:
                self._give_up(error)
            else:
                self._fault = error  # in the midst of a step: at its end

    def _give_up(self, error: Exception) -> None:
        """Background requests go on as any others: who runs goes on, who is held waits behind all that wait by now."""
        self.on, self._fault = False, None
        log.warning(
            "Tidegate lets no more background requests ride, and they go on as any others: %s: %s",
            type(error).__name__,
            error,
        )
        scheduler = self.scheduler
        admitted = [one for one in self.admitted.values() if one.status == self._status.RUNNING]
        users = [request for request in scheduler.running if request not in admitted]
        # Those with tokens under way first: vLLM preempts a request only in a step that it is not in.
        going = list(self._with_slots(users, sorted(admitted, key=lambda one: not one.num_output_placeholders)))
        for request in reversed(admitted):
            if request not in going:
                with contextlib.suppress(Exception):
                    self._put_back(request)
        for request in self.held.values():
            if not request.is_finished():
                scheduler._enqueue_waiting_request(request)
        self.held.clear()
        self.admitted.clear()
