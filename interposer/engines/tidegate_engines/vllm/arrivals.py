"""Requests that an engine has been sent, and that its scheduler does not know of yet.

While a step runs, vLLM's core takes in requests on a thread of its own: it decodes and hashes a prompt, and queues it.
The scheduler hears of it when the step is over. What it will need can be asked for all that while, and offline work can
be off the GPU before a prompt of an idle engine has been hashed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .beats import Said


class Arrivals:
    """What a scheduler's state knows of them. One that shares memory says beside what they will need."""

    scheduler: Any
    #: Who says its steps, if the library is there.
    beats: Said | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Tokens of each prompt, by its request's name.
        self.on_their_way: dict[str, int] = {}
        #: Whether a request has been accepted that none of these is.
        self.announced = False
        #: Held from a count of requests until it is said, and where it changes: three threads say it.
        self._saying = threading.Lock()
        super().__init__(*args, **kwargs)

    def say(self, count: int) -> None:
        """So many requests are in flight."""
        raise NotImplementedError

    def requests_changed(self) -> None:
        """Requests came or went."""
        with self._saying:
            known = self.scheduler.requests
            on_their_way = [name for name in list(self.on_their_way) if name not in known]
            count = len(known) + len(on_their_way)
            self.say(count or int(self.announced))

    def announce(self) -> bool:
        """A request has been accepted. Says whether that is news: an engine at work knows that requests come."""
        with self._saying:
            if self.announced or self.on_their_way or self.scheduler.requests:
                return False
            self.announced = True
        self.requests_changed()
        return True

    def unannounce(self) -> None:
        """None came."""
        if self.announced:
            self.announced = False
            self.requests_changed()

    def coming(self, request: Any) -> None:
        """A request has been sent to the engine."""
        with self._saying:
            self.on_their_way[request.request_id] = len(getattr(request, "prompt_token_ids", None) or ())
            self.announced = False
        self.requests_changed()

    def came(self, name: str) -> None:
        """Its scheduler knows of it, or never will."""
        if self.on_their_way.pop(name, None) is not None:
            self.requests_changed()
