"""The workers of an online engine whose scheduler is another process: the agent hears of it whether requests are in flight.

Where a worker has a process of its own, as with several ranks, the scheduler's process uses no GPU, and what it says of
its requests is about no gate. A worker hears of a request with its first step, and of its end with the step after it;
vLLM has its workers make one for that even if nothing is left to compute.

Where the ranks' memory grows and shrinks the scheduler's process says it to them (``agreed``), and a worker says only
which steps it has launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import abi, around
from . import held, hints, hooks


class Ranks:
    """What the worker of this process says of the engine's requests."""

    def __init__(self, library: abi.Library) -> None:
        self.word = hints.Word(library, hints.log)
        #: Scheduled once, and not finished since; one that is preempted goes on later.
        self.live: set[str] = set()

    def begins(self, output: Any) -> None:
        """A step is about to be computed, or none, to hear what has finished."""
        self.word.say(lambda: self._count(output))

    def _count(self, output: Any) -> int:
        self.live -= output.finished_req_ids
        self.live.update(new.req_id for new in output.scheduled_new_reqs)
        return len(self.live)


#: The attribute of a worker that is in a step.
INSIDE = "_tidegate_inside"


def listen(worker: type[Any], role: Callable[[], str]) -> None:
    """Listens to the steps of the worker of this process, if it is online."""
    if "execute_model" not in vars(worker):
        return

    def executing(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, hooks.STATE):
            library = abi.library()
            speaks = library is not None and not hints.Word.spoken and role() == "online"
            setattr(self, hooks.STATE, Ranks(library) if speaks else None)
        if getattr(self, INSIDE, False):  # a subclass calls what it overrides
            return original(self, *args, **kwargs)
        ranks, output = getattr(self, hooks.STATE), args[0] if args else kwargs.get("scheduler_output")
        setattr(self, INSIDE, True)
        try:
            if ranks is not None:
                ranks.begins(output)
            return original(self, *args, **kwargs)
        finally:
            setattr(self, INSIDE, False)
            if held.rank is not None:
                held.rank.computed(output)

    around.of_class(worker, "execute_model", executing)
