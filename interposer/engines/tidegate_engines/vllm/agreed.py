"""An online engine of several ranks: its scheduler is granted a block when all of them have memory under it.

Each rank reserves for itself (``held``), on a GPU of its own whose offline work gives way at its own pace, and says which
blocks it got. Those that all have are granted; what only some have is spare until the others catch up.

```text
          each rank says: got               the scheduler asks                  it gives back
  no memory ---------------> spare of a rank ------------------> granted ------------------> leaving
      ^                            |          (spare of all)                                    |
      +----------------------------+  nobody asks any more                                      |
      +-----------------------------------------------------------------------------------------+
                     every rank says: left, what was launched has ended. Then all release
```

Invariants: a granted block is reserved in every rank; a rank releases a block only after every rank has left it. When a
rank is lost nothing is granted or released any more: vLLM ends an engine that lost a worker.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import links
from .held import STEP
from .links import EXPECT, FLYING, LEAVE, RELEASE, RESERVE, USAGE, Message

log = logging.getLogger("vllm.tidegate")

#: Seconds that a scheduler waits for what its ranks have mapped already: they answer within 0.3 ms on an idle machine. A
#: request that is scheduled without waits a whole step more.
ANSWER_S = 0.002

#: Seconds after which what was reserved and is not asked for any more is given back.
SPARE_S = 1.0

#: Seconds for the ranks of an engine to say that their caches stand, once one has: all have returned from registering
#: by then.
HELLO_S = 5.0


class Link:
    """The core's side of one rank. Never waits for it."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        #: Reserved by the rank, and neither granted nor leaving.
        self.spare: set[int] = set()
        #: It has been asked for blocks and has not answered.
        self.asked = False
        self._unsent: deque[bytes] = deque()

    def say(self, message: Message) -> None:
        self._unsent.append(message.pack())
        self.flush()

    def flush(self) -> None:
        """Sends what the rank's socket has room for: one that is stopped holds up nobody here."""
        try:
            while self._unsent:
                self.end.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            return


class Agreed:
    """The job of a scheduler with several ranks (``job.OnlineJob``)."""

    def __init__(
        self, ends: Iterable[socket.socket], answer_s: float = ANSWER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.links = [Link(end) for end in ends]
        self.answer_s = answer_s
        self.clock = clock
        self.granted: set[int] = set()
        #: Blocks given back, by number, and who has not left them yet.
        self.leaving: dict[int, tuple[list[int], set[int]]] = {}
        #: A rank is lost.
        self.lost = False
        self._step = 0
        self._left = 0
        self._asked_at = 0.0
        self._said: dict[int, int] = {}
        #: Three threads ask.
        self._lock = threading.RLock()

    # What the plugin asks.

    def scheduled(self, output: Any) -> None:
        """A step is on its way to the ranks, which know it by its number."""
        with self._lock:
            self._step += 1
            setattr(output, STEP, self._step)

    def reserve(self, blocks: int) -> list[int]:
        with self._lock:
            self._asked_at = self.clock()
            self._hear()
            if len(self._common()) < blocks and self._ask(blocks):
                self._await(lambda: not any(link.asked for link in self.links), self.answer_s)
            if self.lost:
                return []
            ids = self._grant(sorted(self._common())[:blocks])
            if len(ids) == blocks:
                self._give_spare_back()
            return ids

    def release(self, blocks: Sequence[int]) -> None:
        with self._lock:
            self.granted.difference_update(blocks)
            self._left += 1
            self.leaving[self._left] = (list(blocks), set(range(len(self.links))))
            self._tell(Message(LEAVE, self._left, self._step))
            self._hear()

    def expect(self, blocks: int) -> None:
        with self._lock:
            for link in self.links:
                self._say(link, Message(EXPECT, max(blocks - len(link.spare), 0)))

    def usage(self, used: int, reserved: int) -> None:
        with self._lock:
            self._once(USAGE, used)
            self._hear()
            if self.clock() - self._asked_at > SPARE_S:
                self._give_spare_back()

    def in_flight(self, requests: int) -> None:
        with self._lock:
            self._once(FLYING, requests)

    def wait(self, timeout_s: float) -> None:
        with self._lock:
            known = len(self._common())
            self._await(lambda: len(self._common()) > known, timeout_s)

    # What the ranks have.

    def _common(self) -> set[int]:
        """Spare blocks of every rank."""
        return set.intersection(*(link.spare for link in self.links))

    def _ask(self, blocks: int) -> bool:
        """Has each rank reserve what it lacks; whether any is to answer.

        A rank that holds more than the others waits for them. If all do, memory lies elsewhere in each: they reserve
        more, up to four times as much, and what is no use goes back (``SPARE_S``).
        """
        common = len(self._common())
        missing = blocks - common
        idle = [len(link.spare) - common for link in self.links]
        if min(idle) >= missing:
            lacks = [missing if useless < 4 * missing else 0 for useless in idle]
        else:
            lacks = [missing - useless for useless in idle]
        for link, lack in zip(self.links, lacks, strict=True):
            if lack > 0 and not link.asked:
                link.asked = self._say(link, Message(RESERVE, min(lack, links.MOST)))
        return any(link.asked for link in self.links)

    def _grant(self, blocks: list[int]) -> list[int]:
        for link in self.links:
            link.spare.difference_update(blocks)
        self.granted.update(blocks)
        return blocks

    def _give_spare_back(self) -> None:
        """Nobody has used these: no rank has to leave them."""
        for link in self.links:
            for message in links.parts(RELEASE, sorted(link.spare)):
                self._say(link, message)
            link.spare.clear()

    def _heard(self, number: int, message: Message) -> None:
        link = self.links[number]
        if message.kind == links.GOT:
            link.asked = False
            link.spare.update(message.blocks)
        elif message.kind == links.LEFT:
            blocks, awaited = self.leaving[message.number]
            awaited.discard(number)
            if not awaited:
                del self.leaving[message.number]
                self._free(blocks)

    def _free(self, blocks: list[int]) -> None:
        """All ranks have left these."""
        for part in links.parts(RELEASE, blocks):
            self._tell(part)

    # The sockets.

    def _once(self, kind: int, number: int) -> None:
        if self._said.get(kind) != number:
            self._said[kind] = number
            self._tell(Message(kind, number))

    def _tell(self, message: Message) -> None:
        for link in self.links:
            self._say(link, message)

    def _say(self, link: Link, message: Message) -> bool:
        if not self.lost:
            try:
                link.say(message)
            except OSError as error:
                self._lose(link, str(error))
        return not self.lost

    def _hear(self) -> None:
        """What the ranks have said so far."""
        for number, link in enumerate(self.links):
            try:
                link.flush()
                while not self.lost:
                    message = links.receive(link.end)
                    if message is None:
                        self._lose(link, "its end is closed")
                    else:
                        self._heard(number, message)
            except BlockingIOError:
                continue
            except (OSError, KeyError, ValueError) as error:
                self._lose(link, f"{type(error).__name__}: {error}")

    def _await(self, enough: Callable[[], bool], timeout_s: float) -> None:
        """Hears the ranks until it is enough, for so long at most."""
        end = time.monotonic() + timeout_s
        poll = select.poll()
        for link in self.links:
            poll.register(link.end, select.POLLIN)
        while not self.lost and not enough():
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1e3):
                return
            self._hear()

    def _lose(self, link: Link, why: str) -> None:
        if not self.lost:
            self.lost = True
            log.warning(
                "Tidegate neither grows nor shrinks this engine any more: rank %d is lost (%s)",
                self.links.index(link),
                why,
            )


def _greeted() -> dict[int, tuple[socket.socket, int]]:
    """Ranks that have come to this process' door since the last time, and the blocks of each one's cache."""
    come = list(links.door.come_in()) if links.door is not None else []
    ranks: dict[int, tuple[socket.socket, int]] = {}
    end = time.monotonic() + HELLO_S
    for link in come:
        link.settimeout(max(end - time.monotonic(), 0.001))
        try:
            said = links.receive(link)
        except OSError:
            said = None
        if said is not None and said.kind == links.HELLO and links.door is not None:
            links.door.greeted = True
            ranks[said.number] = link, said.step
    return ranks


def anybody() -> bool:
    """Whether a rank's cache has no memory but what its scheduler, which is to be in this process, asks for."""
    return bool(_greeted()) or (links.door is not None and links.door.greeted)


def job(world: int, blocks: int) -> Agreed | None:
    """That of the ranks that have come to this process' door; None where none has.

    Raises ``RuntimeError`` where some have: those have no memory yet, and nobody could tell them what to use.
    """
    come = _greeted()
    if not come:
        return None
    ranks = {rank: link for rank, (link, there) in come.items() if there == blocks}
    if set(ranks) != set(range(world)):
        missing = ", ".join(str(rank) for rank in sorted(set(range(world)) - set(ranks)))
        why = f"rank {missing} of {world} registered no KV cache of {blocks} blocks, see its log"
        raise RuntimeError(f"Tidegate cannot share this engine's KV memory: {why}; unset TIDEGATE_ROLE")
    return Agreed(ranks[rank] for rank in range(world))
