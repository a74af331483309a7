"""Between the scheduler's process of an online engine and its ranks: one socket for each rank, and what is said there.

vLLM's executor would carry it, too, but behind the step that a rank is at, and for one thread of the core only. Who asks
for memory here are three: the scheduler, the thread that takes in requests, and the one that looks after an idle engine.

The socket is made where vLLM's executor starts its workers, has no name in any file system, and is found by an environment
variable, which only they inherit. A rank that is killed is heard of by the kernel closing its end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Where a worker finds its core: ``PID:NAME``.
CORE = "TIDEGATE_CORE"

#: Ids in one message: of 4 bytes each, well below what a socket's buffer has room for.
MOST = 8192

#: What the core says: a kind and a number.
RESERVE, EXPECT, USAGE, FLYING, LEAVE, RELEASE = range(1, 7)
#: What a rank says.
HELLO, GOT, LEFT = range(11, 14)

_HEAD = struct.Struct("<BIQ")


@dataclass(frozen=True, slots=True)
class Message:
    """One of them."""

    kind: int
    number: int = 0
    #: Of ``LEAVE`` the step; of ``HELLO`` the blocks that the rank's cache has.
    step: int = 0
    blocks: Sequence[int] = ()

    def pack(self) -> bytes:
        return _HEAD.pack(self.kind, self.number, self.step) + array("I", self.blocks).tobytes()


def unpack(data: bytes) -> Message:
    kind, number, step = _HEAD.unpack_from(data)
    blocks = array("I")
    blocks.frombytes(data[_HEAD.size :])
    return Message(kind, number, step, blocks.tolist())


def parts(kind: int, blocks: Sequence[int]) -> Iterator[Message]:
    """As many messages as the blocks take."""
    for first in range(0, len(blocks), MOST):
        yield Message(kind, 0, 0, blocks[first : first + MOST])


def receive(link: socket.socket) -> Message | None:
    """The next message; None at the other side's end. Raises ``BlockingIOError`` where there is none yet."""
    try:
        data = link.recv(_HEAD.size + 4 * MOST)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return unpack(data) if data else None


class Door:
    """The core's side: where its workers come to."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"tidegate-ranks-{secrets.token_hex(16)}"
        self.socket.bind(f"\0{name}")
        self.socket.listen(64)
        self.address = f"{os.getpid()}:{name}"
        #: A rank has said that its cache stands.
        self.greeted = False

    def come_in(self) -> Iterator[socket.socket]:
        """Those that have come, of this user."""
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                link, _ = self.socket.accept()
                peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", peer)[1] == os.getuid():
                    yield link
                else:
                    link.close()


#: The process whose engine core was made: one that is forked from it has no scheduler.
_core = 0


def begin_core() -> None:
    """An engine core is made in this process, and with it a scheduler."""
    global _core
    _core = os.getpid()


def is_core() -> bool:
    """Whether the scheduler of an engine is in this process."""
    return _core == os.getpid()


#: Of this process, if its executor starts workers.
door: Door | None = None


def open_door(original: Any, executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Around what starts an executor's workers."""
    global door
    with contextlib.suppress(OSError):  # without it the ranks keep a fixed reservation
        door = door or Door()
        door.greeted = False  # by a rank of the engine that is about to be made
        os.environ[CORE] = door.address
    return original(executor, *args, **kwargs)


def connect() -> socket.socket | None:
    """A worker's end, if its core has a door."""
    _, _, name = os.environ.get(CORE, "").partition(":")
    if not name:
        return None
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(f"\0{name}")
    except OSError:
        link.close()
        return None
    return link
