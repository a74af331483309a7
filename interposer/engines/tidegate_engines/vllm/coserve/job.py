"""One adapter that is trained: its weights, its slot, and the calls that wait for it, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Any

from . import messages, units
from .adapters import Adapter
from .decoder import MATRICES
from .engine import Engine
from .messages import Refused
from .service import Call
from .why_not import why_not_adapter
from .work import Aside, Once, Optimize, Pass, Work

log = logging.getLogger("vllm.tidegate")

#: A weight of one, as the library counts: turns are of whole numbers.
WEIGHT = 10


def refused(error: BaseException) -> Refused:
    """A fault in the words of the protocol."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, FileExistsError):
        return Refused("exists", str(error))
    if isinstance(error, OSError):
        return Refused("io", str(error))
    if isinstance(error, ValueError):
        return Refused("bad_request", str(error))
    return Refused("fault", f"{type(error).__name__}: {error}")


class Job:
    """Used by the engine core's thread."""

    def __init__(self, engine: Engine, opened: messages.Open) -> None:
        self._engine, self.name = engine, opened.adapter
        self.lora = engine.request(opened.adapter)
        self.number: int = self.lora.lora_int_id
        self.weight = max(round(opened.weight * WEIGHT), 1)
        self.calls: deque[Call] = deque()
        self.call: Call | None = None
        self.work: Work | None = None
        #: What is added to until a step; None: nothing was.
        self.gradients: units.Gradients | None = None
        #: Why its gradient or its weights are not what the client thinks; only `zero`, `load` and `close` go on.
        self.spoilt = ""
        #: Whether the slot still has the weights that the last step replaced.
        self._stale = False
        self._adapter: Adapter | None = None
        self.served, self.closed = False, False
        self.trained = self.units = self.swapped = 0

    @property
    def adapter(self) -> Adapter:
        if self._adapter is None:
            raise Refused("unknown_adapter", f"{self.name} was not opened")
        return self._adapter

    @property
    def version(self) -> int:
        return 0 if self._adapter is None else self._adapter.version

    def forget(self, why: str = "") -> None:
        """Drops the gradient."""
        self.gradients = None
        self.spoilt = why

    # Calls.

    def advance(self) -> None:
        """Goes on as far as no unit is needed."""
        while True:
            if self.work is not None:
                self.work.poll()
                if self.work.result is None:
                    return
                self._done()
            if not self.calls:
                return
            self.call = self.calls.popleft()
            self._begin(self.call.message)

    def ran(self) -> None:
        """A unit of its work is over."""
        self.units += 1
        if self.work is not None and self.work.result is not None:
            self._done()

    def _done(self) -> None:
        work, call = self.work, self.call
        self.work = self.call = None
        if isinstance(work, Pass) and self.gradients is not None:
            self.trained += sum(map(len, work.samples))
        if call is not None and work is not None and work.result is not None:
            call.reply(work.result)

    def fail(self, error: BaseException) -> None:
        """The call under way has failed: what was held is given back, and no half of a gradient is left."""
        call, work = self.call, self.work
        self.call = self.work = None
        answer = refused(error)
        if answer.kind in ("fault", "not_finite", "io"):
            log.warning("Tidegate's training of %s failed: %s", self.name, answer.message)
        if work is not None:
            work.drop()
        if isinstance(work, Optimize) and work.begun:
            self.forget(f"a step failed in its midst ({answer.message}); load a checkpoint")
        elif isinstance(work, (Pass, Optimize)):
            self.forget(f"an earlier call failed ({answer.message}); send zero, and the batch again")
        if call is not None:
            call.fail(answer)
        if self._adapter is None:
            self.closed = True
            for waiting in self.calls:
                waiting.fail(Refused("unknown_adapter", f"{self.name} could not be opened: {answer.message}"))
            self.calls.clear()

    def left(self) -> None:
        """Drops calls whose clients are gone. A step that has begun is finished."""
        self.calls = deque(call for call in self.calls if not call.gone)
        if self.call is not None and self.call.gone and isinstance(self.work, Pass):
            self.work.drop()
            self.call = self.work = None
            self.forget("a client left in the midst of a batch; send zero, and the batch again")

    def _begin(self, asked: messages.Message) -> None:
        if self.spoilt and isinstance(asked, (messages.Forward, messages.Backward, messages.Step, messages.Save)):
            raise Refused("bad_request", self.spoilt)
        if isinstance(asked, messages.Open):
            self.work = self._open(asked)
        elif isinstance(asked, messages.Load):
            self.work = self._load(asked)
        elif isinstance(asked, messages.Save):
            self.work = self._save(asked)
        elif isinstance(asked, (messages.Forward, messages.Backward)):
            self.work = self._pass(asked)
        elif isinstance(asked, messages.Step):
            if self.gradients is None:
                raise Refused("bad_request", "there is no gradient: send forward with backward first")
            self.work = Optimize(self.adapter, self.gradients, asked, self._stepped)
        elif isinstance(asked, messages.Publish):
            self.work = Once(self._published)
        elif isinstance(asked, messages.Zero):
            self.adapter.version  # noqa: B018 # one that is open
            if not self.spoilt.startswith("a step"):
                self.forget()
            self._answer({})
        elif isinstance(asked, messages.Close):
            self.work = self._close()

    def _answer(self, result: dict[str, Any]) -> None:
        call, self.call = self.call, None
        if call is not None:
            call.reply(result)

    def _open(self, asked: messages.Open) -> Work:
        engine = self._engine
        if unknown := sorted(set(asked.targets) - set(MATRICES)):
            raise Refused("unsupported", f"targets: {unknown[0]} is none of {', '.join(MATRICES)}")
        if len(set(asked.targets)) != len(asked.targets):
            raise Refused("bad_request", "targets: a matrix is named twice")

        def make() -> Adapter:
            made = Adapter.new(engine.layers, asked.rank, asked.alpha, asked.targets, asked.seed)
            if (why := why_not_adapter(engine.config, made)) is not None:
                raise Refused("rank", why)
            made.save(Path(self.lora.lora_path), engine.model)
            return made

        def attach(made: Adapter) -> dict[str, Any] | None:
            if not engine.riding.reserve():
                return None
            engine.load(self.lora)
            self._adapter = made
            self.served = True
            return {"slot": engine.manager.lora_index_to_id.index(self.number), "number": self.number}

        return Aside(make, attach, engine.wake)

    def _load(self, asked: messages.Load) -> Work:
        engine, own = self._engine, self.adapter

        def read() -> Adapter:
            found = Adapter.load(Path(asked.path), engine.layers, asked.optimizer)
            if (found.rank, found.alpha) != (own.rank, own.alpha):
                text = f"{asked.path} has rank {found.rank} and alpha {found.alpha:g}, and {self.name} was opened"
                raise Refused("rank", f"{text} with {own.rank} and {own.alpha:g}")
            if [set(layer) for layer in found.layers] != [set(layer) for layer in own.layers]:
                raise Refused("bad_request", f"{asked.path} is in other matrices than {self.name} was opened with")
            return found

        def take(found: Adapter) -> dict[str, Any]:
            self._adapter, self._stale = found, True
            self.forget()
            return {"step": found.version}

        return Aside(read, take, engine.wake)

    def _save(self, asked: messages.Save) -> Work:
        target = Path(asked.path)
        if target.exists() or target.is_symlink():
            raise Refused("exists", f"{target} exists")
        snapshot = self.adapter.snapshot(self._engine.model, asked.optimizer)

        def write() -> int:
            snapshot.write(target)
            return sum(file.stat().st_size for file in target.iterdir())

        return Aside(write, lambda size: {"bytes": size}, self._engine.wake)

    def _pass(self, asked: messages.Forward | messages.Backward) -> Work:
        work = Pass(self._engine, self.adapter, self.lora, asked, self._added)
        if self._stale:
            # Its samples ride with the weights of now.
            self._rewrite()
        return work

    def _added(self) -> units.Gradients:
        if self.gradients is None:
            self.gradients = units.gradients(self.adapter.layers)
        return self.gradients

    def _stepped(self) -> None:
        self._stale = True
        self.forget()

    def _rewrite(self) -> None:
        self._engine.publish(self.adapter, self.lora)
        self._stale = False

    def _published(self) -> dict[str, Any]:
        if self._stale:
            self._rewrite()
        return {"version": self.adapter.version}

    def _close(self) -> Work:
        snapshot = self.adapter.snapshot(self._engine.model)
        self.served = False

        def write() -> None:
            # A request under way may have vLLM load it once more.
            snapshot.renew(Path(self.lora.lora_path))

        def end(_: None) -> dict[str, Any]:
            self.end()
            return {}

        return Aside(write, end, self._engine.wake)

    def end(self) -> None:
        """Gives all back that it holds."""
        if self.work is not None:
            self.work.drop()
        if self._adapter is not None:
            self._engine.unload(self.lora)
        self._adapter, self.gradients = None, None
        self.closed, self.served = True, False
        for call in (*([] if self.call is None else [self.call]), *self.calls):
            if not isinstance(call.message, messages.Close):
                call.fail(Refused("unknown_adapter", f"{self.name} was closed"))
        self.calls.clear()
