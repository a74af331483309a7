"""The other end of an offline job, for any engine's rig: the agent that takes blocks of a memory, and keeps the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate_engines.job import Cut


class Memory(Protocol):
    """What is behind an engine's blocks."""

    #: Blocks that have no memory of their own.
    lost: set[int]

    def take(self, blocks: Sequence[int]) -> None:
        """Takes the memory of blocks that have some."""

    def give(self, blocks: Sequence[int]) -> None:
        """Puts memory, of whatever content, behind blocks that have none."""


class Agent:
    """Takes blocks, gives them back when their loss is acknowledged, and keeps the log."""

    def __init__(self, memory: Memory | None = None) -> None:
        """``memory`` may be set later, but before anything is taken."""
        self.memory = memory
        self.log: list[tuple[str, int]] = []
        self.read = self.acked = self.reclaims = self.waits = self.back = 0
        self.lost_at: dict[int, int] = {}
        #: By request: the tokens that its loss costs, and its blocks.
        self.published: dict[int, tuple[int, list[int]]] = {}

    def alone(self) -> bool:
        return True

    def take(self, blocks: Sequence[int]) -> None:
        """Takes all of them but block 0, which is protected, and those that are gone already."""
        fresh = [block for block in blocks if block not in self.memory.lost and block != 0]
        if not fresh:
            return
        self.reclaims += 1
        self.memory.take(fresh)
        for block in fresh:
            self.log.append(("lost", block))
            self.lost_at[block] = len(self.log)

    def give(self, blocks: Sequence[int]) -> None:
        """Backs blocks again whose loss the engine has acknowledged."""
        ready = [block for block in blocks if self.lost_at.get(block, len(self.log) + 1) <= self.acked]
        self.memory.give(ready)
        for block in ready:
            del self.lost_at[block]
            self.log.append(("back", block))
        self.back += len(ready)

    # What the plugin asks.

    def poll(self, step: int) -> Cut:
        lost: list[int] = []
        back: list[int] = []
        for kind, block in self.log[self.read :]:
            if kind == "lost" and block in back:
                back.remove(block)
            (lost if kind == "lost" else back).append(block)
        self.read = len(self.log)
        return Cut(lost, back, self.read)

    def ack_withheld(self, seq: int) -> None:
        self.acked = max(self.acked, seq)

    def publish(self, request: int, tokens: int, blocks: Sequence[int]) -> None:
        self.published[request] = tokens, list(blocks)

    def forget(self, request: int) -> None:
        del self.published[request]

    def wait(self, timeout_s: float) -> None:
        self.waits += 1
