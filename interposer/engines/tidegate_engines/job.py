"""What an engine's plugin may ask of Tidegate.

Words, as everywhere in Tidegate: a block is *lost* when the memory under it was taken, *withheld*
while the engine keeps it from its allocator, and *back* once there is memory under it again, with
arbitrary content. A *cut* is what a job's log says at one step: every rank that asks for the same
step gets the same cut, and within a cut the losses come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Cut:
    """What happened to a job's blocks up to a step."""

    #: Ids of blocks whose content is gone.
    lost: list[int] = field(default_factory=list)
    #: Ids of blocks that may be allocated again.
    back: list[int] = field(default_factory=list)
    #: The place in the log, for :meth:`OfflineJob.ack_withheld`.
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A part of every block: block ``first_block + i`` has ``block_bytes`` at ``base + i * stride``."""

    base: int
    stride: int
    block_bytes: int
    first_block: int
    blocks: int


@dataclass(slots=True)
class Training:
    """What a training has done, as ``struct tg_training`` of the header says it."""

    #: Optimizer steps done; of so many, 0: not known; done before this process began.
    step: int = 0
    steps: int = 0
    begun: int = 0
    #: By this process.
    tokens: int = 0
    units: int = 0
    units_redone: int = 0
    reclaims: int = 0
    #: 0: it is not run in units.
    layers: int = 0
    resident_layers: int = 0
    loss: float = float("nan")
    #: Where the finished adapter is, and who answers with it.
    adapter: str = ""
    served: str = ""


@dataclass(slots=True)
class Iteration:
    """A step of an online engine, as ``struct tg_iteration`` of the header says it."""

    #: By the monotonic clock, in ns.
    begin_ns: int = 0
    end_ns: int = 0
    #: 0: the library names its shape.
    fingerprint: int = 0
    #: Cached tokens of the requests that decoded in it, and how many prompt tokens it read.
    cached: int = 0
    prompt: int = 0
    #: Prompt tokens that the next one can read.
    waiting_tokens: int = 0
    free_blocks: int = 0
    blocks: int = 0
    #: Requests that decoded in it, and those that wait.
    batch: int = 0
    waiting: int = 0


class OfflineJob(Protocol):
    """An offline engine's side: its blocks may be lost at any instant."""

    def poll(self, step: int) -> Cut:
        """The cut of ``step``: asked once per step, after its outputs are on the host."""
        ...

    def ack_withheld(self, seq: int) -> None:
        """Says that what was lost up to ``seq`` is withheld: only now may it come back."""
        ...

    def publish(self, request: int, tokens: int, blocks: Sequence[int]) -> None:
        """Says what it would cost to lose ``blocks``: ``tokens`` tokens of one request."""
        ...

    def forget(self, request: int) -> None:
        """Takes a publication back."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Waits until the log grows, at most so long: for an engine with nothing to compute."""
        ...


class OnlineJob(Protocol):
    """An online engine's side: it holds a reservation, grows it ahead of need and gives back."""

    def reserve(self, blocks: int) -> list[int]:
        """Asks for memory under ``blocks`` more blocks; the ids that have it now, perhaps fewer.

        What is missing is asked of the agent meanwhile: asking again is how to learn of it.
        """
        ...

    def release(self, blocks: Sequence[int]) -> None:
        """Gives back the memory under these blocks; nothing may be computed in them any more."""
        ...

    def expect(self, blocks: int) -> None:
        """Says, from any thread, that ``blocks`` more blocks than are reserved will be asked for soon."""
        ...

    def usage(self, used: int, reserved: int) -> None:
        """Blocks that hold something, of those with memory: what pressure is measured by."""
        ...

    def in_flight(self, requests: int) -> None:
        """Requests between their arrival and their last token: the gate stays shut for them."""
        ...

    def scheduled(self, output: object) -> None:
        """A step is on its way to the workers. What is released after it may be in use until it has ended."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Waits until more memory is there, at most so long."""
        ...
