"""The iterations of an engine, as its scheduler says them to the agent: when each began and ended, and what comes next.

The agent lends a trainer what is left of online's promise between two iterations (``[lease]`` of agent.toml). Nothing
is looked at or said where no agent asks for it, and nothing here fails: the engine goes on without.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .abi import Library
from .job import Iteration

#: Steps under way at most: one beyond is of a scheduler that does not hand in what it schedules.
UNDER_WAY = 64


@dataclass(slots=True)
class _Step:
    """A step that is on its way to the workers."""

    output: Any
    begun: Iteration


class Beats:
    """Of one scheduler. Steps end in the order in which they began."""

    def __init__(self, library: Library, log: logging.Logger) -> None:
        self._library = library
        self._log = log
        self._silent = False
        self._steps: deque[_Step] = deque()

    @property
    def under_way(self) -> list[Iteration]:
        """What the steps do that have not ended, the next one first."""
        return [step.begun for step in self._steps]

    def begin(self, output: Any, what: Callable[[], Iteration]) -> None:
        """A step is about to be launched, and ``what`` says what it will do."""
        try:
            if self._silent or not self._library.listens():
                self._steps.clear()
                return
            begin_ns = time.monotonic_ns()
            if len(self._steps) >= UNDER_WAY:
                self._steps.clear()
            self._steps.append(_Step(output, replace(what(), begin_ns=begin_ns)))
        except Exception as error:  # noqa: BLE001 # an engine of another shape has another way to miss something
            self._silence(error)

    def ended(self, output: Any, what: Callable[[Iteration], Iteration]) -> Callable[[], None]:
        """The outputs of a step are there: that is its end.

        What is returned is to be called when they have been used: ``what`` then adds what comes next.
        """
        end_ns = time.monotonic_ns() if self._steps else 0

        def say() -> None:
            try:
                step = self._take(output)
                if step is not None and not self._silent:
                    self._library.beat(replace(what(step), end_ns=end_ns))
            except Exception as error:  # noqa: BLE001 # as above
                self._silence(error)

        return say

    def _take(self, output: Any) -> Iteration | None:
        """What was said of a step. One before it that never ended was dropped."""
        if not any(step.output is output for step in self._steps):
            return None
        while (step := self._steps.popleft()).output is not output:
            pass
        return step.begun

    def _silence(self, error: Exception) -> None:
        """It cannot be said any more: one line in the log. The agent then lends nothing beside this engine."""
        self._steps.clear()
        if not self._silent:
            self._silent = True
            self._log.warning("Tidegate does not hear of this engine's iterations: %s: %s", type(error).__name__, error)
