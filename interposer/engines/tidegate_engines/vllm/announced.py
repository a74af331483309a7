"""Requests that vLLM's front end has accepted, and that its engine core has not been sent yet.

A front end tokenises a prompt, checks it and sends it to the core: milliseconds in which offline work can already be
taken off the GPU. So it rings, by one byte in a pipe, and the core counts a request in flight until one comes.

The pipe is the front end's; its children find it by ``/proc`` and an environment variable, and nobody else needs to.
Where it cannot be opened there are no rings, and the core goes on to be the first to know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from .arrivals import Arrivals

log = logging.getLogger("vllm.tidegate")

#: Where a child finds the pipe: ``PID:READ:WRITE:INODE``.
LINE = "TIDEGATE_LINE"

#: Seconds after which a ring that no request followed is forgotten: longer than vLLM takes to tokenise what fits its
#: longest contexts (1 us a token, measured of Hugging Face's fast tokenisers), shorter than to fetch an image.
BOUND_S = 0.25

#: Seconds that rings without a request may hold the gate in a row, and the share of time that comes back. Each answer
#: 400 of a server is such a ring; without a limit, whoever sends those would keep offline work off the GPU.
BUDGET_S, REFILL = 1.0, 0.05

#: Seconds between two rings of one process: one is enough for all requests that come together.
APART_S = 0.005


def _open(which: int, flags: int) -> int | None:
    """One end of the pipe that the environment names, or none where it is not there any more."""
    try:
        pid, *ends, inode = (int(part) for part in os.environ.get(LINE, "").split(":"))
        end = os.open(f"/proc/{pid}/fd/{ends[which]}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except (ValueError, IndexError, OSError):
        return None
    found = os.fstat(end)
    if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode:
        return end
    os.close(end)
    return None


def lay() -> None:
    """Makes the pipe, in the first process of an engine; its children inherit the variable."""
    if os.environ.get(LINE):
        return
    with contextlib.suppress(OSError):
        read, write = os.pipe()
        os.environ[LINE] = f"{os.getpid()}:{read}:{write}:{os.fstat(read).st_ino}"


class Bell:
    """A front end's side."""

    def __init__(self) -> None:
        self._end: int | None = None
        self._looked = False
        self._next = 0.0

    def ring(self) -> None:
        """A request has been accepted. It never waits and never fails."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + APART_S
        if not self._looked:
            self._looked = True
            self._end = _open(1, os.O_WRONLY)
        if self._end is not None:
            with contextlib.suppress(OSError):  # full: the core has rings enough to read
                os.write(self._end, b"\0")


class Announced:
    """A core's side: what a ring may hold, as time goes by."""

    def __init__(self, state: Arrivals) -> None:
        self.state = state
        #: Rings that no request followed.
        self.forgotten = 0
        self._budget = BUDGET_S
        self._filled = 0.0
        self._until: float | None = None
        self._told = False

    def rang(self, now: float) -> None:
        """Somebody rang."""
        self.later(now)
        self._budget = min(BUDGET_S, self._budget + (now - self._filled) * REFILL)
        self._filled = now
        if self._until is not None or self._budget < BOUND_S:
            return
        if self.state.announce():
            self._until = now + BOUND_S

    def later(self, now: float) -> None:
        """So late it is."""
        if self._until is None:
            return
        if not self.state.announced:
            self._until = None
        elif now >= self._until:
            self._until = None
            self.forgotten += 1
            self._budget -= BOUND_S
            self.state.unannounce()
            if self._budget < BOUND_S and not self._told:
                self._told = True
                log.warning(
                    "Tidegate heard of %d requests that never came; it heeds fewer announcements for a while",
                    self.forgotten,
                )

    def wait(self, now: float) -> float | None:
        """Milliseconds to wait for the next ring; none: for as long as it takes."""
        return None if self._until is None else max(0.0, self._until - now) * 1e3

    def listen(self, end: int) -> None:
        """Until the last front end has gone."""
        poll = select.poll()
        poll.register(end, select.POLLIN)
        try:
            while True:
                ready = poll.poll(self.wait(time.monotonic()))
                if any(what & select.POLLIN for _, what in ready):
                    with contextlib.suppress(BlockingIOError):
                        os.read(end, 4096)
                    self.rang(time.monotonic())
                elif ready:
                    return
                else:
                    self.later(time.monotonic())
        except Exception as error:  # noqa: BLE001 # the engine goes on without
            log.warning("Tidegate does not hear when requests are accepted: %s: %s", type(error).__name__, error)
        finally:
            with contextlib.suppress(Exception):
                self.state.unannounce()
            os.close(end)


def hear(scheduler: Any, state: Arrivals) -> threading.Thread | None:
    """Starts the thread that hears rings, in the core of an engine that has one."""
    parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    if getattr(parallel, "data_parallel_size", 1) > 1:
        return None  # which core a request goes to is not known when it is accepted
    end = _open(0, os.O_RDONLY)
    if end is None:
        return None
    thread = threading.Thread(target=Announced(state).listen, args=(end,), name="tidegate-rings", daemon=True)
    thread.start()
    return thread


def ringing(bell: Bell) -> Callable[..., Any]:
    """A wrapper of a method that begins what a request needs."""

    def method(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        bell.ring()
        return original(self, *args, **kwargs)

    return method


#: What a front end calls first for a request: to tokenise it, and to send it where that was done before.
ACCEPTING = (
    ("vllm.renderers.base", "BaseRenderer", "render_cmpl_async"),
    ("vllm.renderers.base", "BaseRenderer", "render_chat_async"),
    ("vllm.v1.engine.async_llm", "AsyncLLM", "add_request"),
)
