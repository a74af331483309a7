"""A scheduler whose engine shares no memory: the agent hears of it whether requests are in flight, and nothing else.

An engine that is refused is gated as any program is. What its scheduler knows, that a request has arrived or that the
last one has ended, is worth as much there as in an engine that shares.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from ..abi import Library
from ..word import Word
from .arrivals import Arrivals

log = logging.getLogger("vllm.tidegate")


class Hints(Arrivals):
    """What one scheduler says of its requests."""

    def __init__(self, scheduler: Any, library: Library) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.lock = threading.RLock()
        self.inside: set[str] = set()
        self.steps = 0
        self.word = Word(library, log)
        Word.spoken = True
        self.requests_changed()

    def requests_changed(self) -> None:
        """Requests came or went."""
        try:
            super().requests_changed()
        except Exception as error:  # noqa: BLE001 # as of `Word`: another shape
            self.word.silence(error)

    def say(self, count: int) -> None:
        self.word.say(lambda: count)

    def settled(self) -> None:
        """The outputs of a step have been used."""
        self.requests_changed()

    # What a scheduler that shares memory does beside.

    def about_to_schedule(self) -> None:
        return None

    def has_scheduled(self) -> None:
        return None

    def scheduled(self, output: Any) -> None:
        return None

    def arrived(self, output: Any) -> Any:
        return output

    def starve(self) -> None:
        return None
