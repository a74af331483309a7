"""A rank of an online engine whose scheduler is another process: what it holds for the scheduler, and gives back.

A thread of its own reserves, releases and says what the core asks it to. Before the core has any rank release a block,
each says that it has left it: the last step that could touch it has been launched here, and what was launched has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..abi import Library, Online, TidegateError
from . import links
from .links import EXPECT, FLYING, LEAVE, RELEASE, RESERVE, USAGE, Message

log = logging.getLogger("vllm.tidegate")

#: The attribute of a step that says its number, from the scheduler to the ranks.
STEP = "_tidegate_step"


class Held:
    """The side of one rank."""

    def __init__(self, link: socket.socket, job: Any, finish: Callable[[], None]) -> None:
        """``finish`` returns when all that this process has launched so far has ended."""
        self.link = link
        self.job: Online = job
        self.finish = finish
        #: The newest step that was launched.
        self.launched = 0
        #: Numbers of leaves, and the step that has to be over.
        self.leaving: deque[tuple[int, int]] = deque()
        self._news = threading.Condition()
        self._over = False

    def hello(self, rank: int, blocks: int) -> None:
        """The cache of this rank stands."""
        self.say(Message(links.HELLO, rank, blocks))

    def say(self, message: Message) -> None:
        self.link.sendall(message.pack())

    def computed(self, output: Any) -> None:
        """A step has been launched."""
        step = getattr(output, STEP, 0)
        with self._news:
            if step > self.launched:
                self.launched = step
                self._news.notify_all()

    def hear(self, message: Message) -> None:
        """Does what the core says."""
        if message.kind == RESERVE:
            self.say(Message(links.GOT, 0, 0, self.job.reserve(min(message.number, links.MOST))))
        elif message.kind == RELEASE:
            self.job.release(message.blocks)
        elif message.kind == EXPECT:
            self.job.expect(message.number)
        elif message.kind == USAGE:
            self.job.usage(message.number, 0)
        elif message.kind == FLYING:
            self.job.in_flight(message.number)
        elif message.kind == LEAVE:
            with self._news:
                self.leaving.append((message.number, message.step))
                self._news.notify_all()

    def leave(self, wait: bool = True) -> bool:
        """Says of the next blocks to be left that they are, once they are; False at the end, or if it does not wait."""
        with self._news:
            while not self.leaving or self.leaving[0][1] > self.launched:
                if self._over or not wait:
                    return False
                self._news.wait()
            number, _ = self.leaving.popleft()
        self.finish()
        self.say(Message(links.LEFT, number))
        return True

    def serve(self) -> None:
        """Until the core has gone. What this process has stays as it is then: the engine is ending."""
        try:
            while (message := links.receive(self.link)) is not None:
                self.hear(message)
        except Exception as error:  # noqa: BLE001 # the engine goes on with the memory that it has
            log.warning("Tidegate neither grows nor shrinks this engine any more: %s: %s", type(error).__name__, error)
        finally:
            with contextlib.suppress(TidegateError):
                self.job.in_flight(0)
            with self._news:
                self._over = True
                self._news.notify_all()
            self.link.close()

    def part(self) -> None:
        """The thread that leaves blocks; apart, for it waits for the GPU."""
        with contextlib.suppress(OSError):
            while self.leave():
                pass

    def start(self) -> None:
        for target, name in ((self.serve, "tidegate-rank"), (self.part, "tidegate-leaves")):
            threading.Thread(target=target, name=name, daemon=True).start()


def finisher() -> Callable[[], None] | None:
    """What waits for the GPU in the context that this thread works in, called by another one; None: it has none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    context = ctypes.c_void_p()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        return None

    def finish() -> None:
        for call, *arguments in ((cuda.cuCtxSetCurrent, context), (cuda.cuCtxSynchronize,)):
            code = call(*arguments)
            if code:
                raise OSError(f"{call.__name__}: CUDA error {code}")

    return finish


#: Of this process, if it is such a rank.
rank: Held | None = None


def begin(library: Library, link: socket.socket, kv: int, number: int, blocks: int, finish: Callable[[], None]) -> None:
    """The cache of this rank is registered: from here on its core says what it reserves."""
    global rank
    rank = Held(link, Online(library, kv), finish)
    rank.hello(number, blocks)
    rank.start()
