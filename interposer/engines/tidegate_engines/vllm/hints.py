"""A scheduler whose engine shares no memory: the agent hears of it whether requests are in flight, and nothing else.

An engine that is refused is gated as any program is. What its scheduler knows, that a request has arrived or that the
last one has ended, is worth as much there as in an engine that shares.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ..abi import Library, TidegateError
from .arrivals import Arrivals

log = logging.getLogger("vllm.tidegate")


class Word:
    """How many requests are in flight, as this process says it. Never a step of the engine's: it goes on without."""

    #: Whether a scheduler of this process says it.
    spoken = False

    def __init__(self, library: Library) -> None:
        self.library = library
        self._said: int | None = None
        self._silent = False

    def say(self, how_many: Callable[[], int]) -> None:
        """So many are in flight."""
        if self._silent:
            return
        try:
            count = how_many()
            if count != self._said:
                self.library.call("tg_requests_in_flight", count)
                self._said = count
        except (AttributeError, TypeError, TidegateError) as error:
            self.silence(error)

    def silence(self, error: Exception) -> None:
        """It cannot be said any more; once in the log."""
        if not self._silent:
            self._silent = True
            log.warning("Tidegate does not hear of this engine's requests: %s", error)


class Hints(Arrivals):
    """What one scheduler says of its requests."""

    def __init__(self, scheduler: Any, library: Library) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.lock = threading.RLock()
        self.inside: set[str] = set()
        self.steps = 0
        self.word = Word(library)
        Word.spoken = True
        self.requests_changed()

    def requests_changed(self) -> None:
        """Requests came or went."""
        try:
            super().requests_changed()
        except (AttributeError, TypeError) as error:
            self.word.silence(error)

    def say(self, count: int) -> None:
        self.word.say(lambda: count)

    def settled(self) -> None:
        """The outputs of a step have been used."""
        self.requests_changed()

    # What a scheduler that shares memory does beside.

    def about_to_schedule(self) -> None:
        return None

    def scheduled(self, output: Any) -> None:
        return None

    def arrived(self, output: Any) -> Any:
        return output

    def starve(self) -> None:
        return None
