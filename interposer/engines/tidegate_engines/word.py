"""How many requests are in flight, as a process says it to the agent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from .abi import Library, TidegateError


class Word:
    """Never a step of the engine's: it goes on without."""

    #: Whether a scheduler of this process says it.
    spoken = False

    def __init__(self, library: Library, log: logging.Logger) -> None:
        self.library = library
        self.log = log
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
        except Exception as error:  # noqa: BLE001 # an engine of another shape has another way to miss something
            self.silence(error)

    def silence(self, error: Exception) -> None:
        """It cannot be said any more: one line in the log, and the word is taken back.

        What was said last would stand for good, and nothing offline would run beside an idle engine.
        """
        if self._silent:
            return
        self._silent = True
        self.log.warning("Tidegate does not hear of this engine's requests: %s", error)
        if self._said:
            with contextlib.suppress(TidegateError):
                self.library.call("tg_requests_in_flight", 0)
