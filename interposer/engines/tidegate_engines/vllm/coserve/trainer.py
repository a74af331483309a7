"""What an engine core trains between two of its steps.

The library says when: which job's turn it is, whether another sample begins to ride, whether a unit runs and of how many
rows. This hands over numbers and does what comes back. A fault of one job is an answer to its client, and a fault of
all this ends training: serving goes on either way.
"""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections.abc import Callable
from typing import Any

from ...coserve_abi import JOBS, Between, Coserve, Granted
from ..background.scheduler import Background
from . import messages
from .decoder import MATRICES
from .engine import Engine
from .job import Job, refused
from .messages import Refused
from .service import Call
from .work import NONE, Pass

log = logging.getLogger("vllm.tidegate")

#: While nothing may run: how long the core sleeps at most before the library is asked again, in seconds.
NAP_S = 0.05
#: Seconds over which trained tokens are counted.
LATELY_S = 10.0


class Trainer:
    """All jobs of one engine core. Used by its thread, but for :meth:`take`."""

    def __init__(
        self,
        engine: Engine,
        coserve: Coserve,
        background: Background,
        promise: str,
        said: Callable[[dict[str, Any]], None],
    ) -> None:
        self._engine, self._coserve, self._background = engine, coserve, background
        self._promise, self._said = promise, said
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.jobs: dict[str, Job] = {}
        self._between = Between()
        self._on = True
        #: What could run when it was last looked at, and until when the library wants not to be asked.
        self._ready = False
        self._trained: list[tuple[float, int]] = []
        background.relieve = self._relieve

    # Any thread.

    def take(self, call: Call) -> None:
        """A call of a client's."""
        if not self._on:
            raise Refused("engine_gone", "training has ended in this engine; see its log")
        self._calls.put(call)
        self._engine.wake()

    # The core's thread.

    def wants(self) -> bool:
        """Whether there is something to do without a request."""
        return self._on and (self._ready or self._engine.woken) and self._engine.running

    def turn(self) -> None:
        """Between two steps."""
        if not self._on:
            return
        try:
            self._engine.woken = False
            self._take_calls()
            if self._engine.running:
                self._train()
        except Exception as error:  # noqa: BLE001 # whatever it is, serving goes on
            self.end(f"{type(error).__name__}: {error}")

    def end(self, why: str) -> None:
        """Trains nothing from now on, and gives all back."""
        self._on = self._ready = False
        log.warning("Tidegate trains no more in this engine: %s", why)
        for job in self.jobs.values():
            try:
                job.fail(Refused("engine_gone", f"training has ended: {why}"))
                job.end()
            except Exception as error:  # noqa: BLE001 # the others are ended as well
                log.warning("Tidegate cannot end the training of %s: %s", job.name, error)
        self.jobs.clear()
        while not self._calls.empty():
            self._calls.get().fail(Refused("engine_gone", f"training has ended: {why}"))
        self._say()

    # Calls.

    def _take_calls(self) -> None:
        while not self._calls.empty():
            call = self._calls.get()
            try:
                self._take_call(call)
            except Exception as error:  # noqa: BLE001 # an answer to who asked
                call.fail(refused(error))

    def _take_call(self, call: Call) -> None:
        asked = call.message
        if isinstance(asked, messages.Hello):
            call.reply(self._hello())
        elif isinstance(asked, messages.Status):
            call.reply(self._status())
        elif not isinstance(asked, messages.OfAdapter):
            # A client is gone.
            for job in self.jobs.values():
                job.left()
        elif isinstance(asked, messages.Open):
            self._open(call, asked)
        else:
            job = self.jobs.get(asked.adapter)
            if job is None:
                raise Refused("unknown_adapter", f"{asked.adapter} is not open")
            job.calls.append(call)

    def _open(self, call: Call, asked: messages.Open) -> None:
        engine = self._engine
        served = engine.config.model_config.served_model_name or engine.model
        names = served if isinstance(served, list) else [served]
        if asked.adapter in self.jobs or asked.adapter in names:
            raise Refused("exists", f"{asked.adapter} is open already, or the name of the base model")
        if len(self.jobs) >= min(engine.slots, JOBS):
            raise Refused("no_slot", f"{len(self.jobs)} adapters are open, and users need a slot: raise --max-loras")
        job = self.jobs[asked.adapter] = Job(engine, asked)
        self._coserve.job(job.number, job.weight)
        job.calls.append(call)

    # Training.

    def _look(self) -> None:
        """What users have in the next step."""
        ask, between = self._background.outlook(), self._between
        between.users_cached, between.users, between.prompts = ask.users_cached, ask.users, ask.prompts

    def _train(self) -> None:
        if not self.jobs:
            self._ready = False
            return
        self._look()
        for job in list(self.jobs.values()):
            self._guarded(job, job.advance)
        self._drop_closed()
        self._begin()
        while True:
            ready = [job for job in self.jobs.values() if self._unit(job) != NONE]
            self._ready = bool(ready)
            place = self._coserve.whose([job.number for job in ready]) if ready else None
            if place is None:
                break
            granted = self._grant(*self._unit(ready[place]))
            if not granted.rows:
                self._rest(granted)
                break
            self._run(ready[place], granted.rows)
            if self._engine.scheduler.has_requests() and not self._between.users:
                break  # its own samples ride in turns with units
            if self._engine.arrived() or self._engine.woken:
                break
        self._ready = self._ready or any(job.calls and job.work is None for job in self.jobs.values())

    def _unit(self, job: Job) -> tuple[int, int]:
        unit = NONE
        if job.work is not None:
            try:
                unit = job.work.unit()
            except Exception as error:  # noqa: BLE001 # of this job alone
                job.fail(error)
        return unit

    def _guarded(self, job: Job, call: Callable[[], None]) -> None:
        """A fault of one job is its own."""
        while True:
            try:
                call()
                return
            except Exception as error:  # noqa: BLE001 # the others go on, and so does serving
                job.fail(error)
                call = job.advance

    def _run(self, job: Job, rows: int) -> None:
        engine, work = self._engine, job.work
        assert work is not None
        kind, left = work.unit()
        # A step that is under way is none of the unit's time.
        engine.wait()
        began = engine.now()
        before = job.trained

        def run() -> None:
            work.run(rows)
            engine.wait()
            job.ran()

        self._guarded(job, run)
        took = engine.now() - began
        self._coserve.unit(kind, min(rows, left), took)
        self._coserve.took(job.number, took)
        self._background.told.trained += took
        if job.trained > before:
            self._trained.append((time.monotonic(), job.trained - before))
        if job.work is None:
            self._guarded(job, job.advance)
            self._drop_closed()
            self._begin()

    def _begin(self) -> None:
        """Has samples ride that may."""
        waiting = [job for job in self.jobs.values() if job.work is not None and job.work.next()]
        while waiting:
            place = self._coserve.whose([job.number for job in waiting])
            job = waiting[place or 0]
            work = job.work
            if not self._grant(0, 0, work.next() if work is not None else 0).begins or work is None:
                return
            self._guarded(job, work.begin)
            if job.work is None or not job.work.next():
                waiting.remove(job)

    def _grant(self, kind: int, left: int, following: int = 0) -> Granted:
        between = self._between
        between.now_ns = self._background.told.now()
        between.held = sum(job.work.held for job in self.jobs.values() if isinstance(job.work, Pass))
        between.next, between.kind, between.left = following, kind, left
        return self._coserve.grant(between)

    def _rest(self, granted: Granted) -> None:
        """Nothing may run, and no request is there: until something comes, or it is worth asking again."""
        if not self._engine.scheduler.has_requests():
            self._engine.rest(min(granted.wait_ns / 1e9, NAP_S) if granted.wait_ns else NAP_S)

    def _drop_closed(self) -> None:
        closed = [name for name, job in self.jobs.items() if job.closed]
        for name in closed:
            self._coserve.job(self.jobs.pop(name).number, 0)
        self._say()

    def _relieve(self) -> bool:
        """Gives blocks of one sample to a user's request."""
        held = [
            (job, job.work, before, sample)
            for job in self.jobs.values()
            if isinstance(job.work, Pass)
            for before, sample in job.work.in_blocks()
        ]
        place = self._coserve.leaves([(before, len(sample)) for _, _, before, sample in held]) if held else None
        if place is None:
            return False
        job, work, _, sample = held[place]
        try:
            work.swap(sample)
            job.swapped += 1
        except Exception as error:  # noqa: BLE001 # its blocks are given back all the same
            work.lost(sample, error)
        return True

    # What is said.

    def _say(self) -> None:
        """Tells front ends who can be asked for."""
        self._said({job.name: [job.number, job.lora.lora_path] for job in self.jobs.values() if job.served})

    def _hello(self) -> dict[str, Any]:
        engine = self._engine
        config, lora = engine.config.model_config, engine.config.lora_config
        served = config.served_model_name or engine.model
        return {
            "version": messages.VERSION,
            "model": served[0] if isinstance(served, list) else served,
            "path": engine.model,
            "family": type(engine.runner.model).__name__,
            "layers": len(engine.layers),
            "hidden": engine.head.weight.shape[1],
            "vocab": engine.vocabulary,
            "max_model_len": config.max_model_len,
            "max_rank": lora.max_lora_rank,
            "slots": engine.slots,
            "slots_free": engine.slots - len(self.jobs),
            "targets": list(MATRICES),
            "activations": engine.activations,
            "promise": dict(part.strip().split("=", 1) for part in self._promise.split(",")),
            "adapters": sorted(self.jobs),
        }

    def _status(self) -> dict[str, Any]:
        since = time.monotonic() - LATELY_S
        self._trained = list(itertools.dropwhile(lambda each: each[0] < since, self._trained))
        return {
            "adapters": [self._of_job(job) for job in self.jobs.values()],
            "tokens_per_s": sum(tokens for _, tokens in self._trained) / LATELY_S,
            "users": self._users(),
        }

    def _of_job(self, job: Job) -> dict[str, Any]:
        held = job.work.held if isinstance(job.work, Pass) else 0
        engine = self._engine
        each = (len(engine.layers) + 1) * engine.head.weight.shape[1] * engine.head.weight.element_size()
        return {
            "name": job.name,
            "step": job.version,
            "version": job.version,
            "trained_tokens": job.trained,
            "waiting": len(job.calls),
            "units": job.units,
            "swapped": job.swapped,
            "activation_bytes": held * each,
        }

    def _users(self) -> dict[str, float | None]:
        """Of the last requests."""
        lately = list(self._background.told.lately)

        def tail(times: list[int]) -> float | None:
            return sorted(times)[(len(times) * 99 - 1) // 100] / 1e6 if times else None

        first, further = [each[0] for each in lately], [each[1] for each in lately if each[1]]
        return {"tpot_p99_ms": tail(further), "ttft_p99_ms": tail(first)}
