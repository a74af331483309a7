"""Which piece of held state lies in which blocks of a memory that the agent takes and gives back.

A piece lies in any free blocks, in no order. A lost block is withheld until the library says that there is memory
again. The piece that was in it does not wait for that: it gets other free blocks, and where there are none, those of
a piece that the layer under way does not need, which is then missing in its turn: frozen weights first, then keys and
values, then inputs, of each what was used longest ago. So with less memory fewer layers are resident, then more is
computed again, and the training goes on for as long as one layer's state fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import torch

from ..job import OfflineJob
from .held import Held, Kind

#: The least that is taken and given back.
BLOCK = 2 << 20
#: Where a tensor begins within its piece: what CUDA's own allocation and its kernels' widest loads ask for.
ALIGNED = 256
#: Seconds between two looks for memory that comes back.
PATIENCE = 0.002
#: What it costs to load a layer's weights again, in tokens that a layer could compute meanwhile: fewer than any
#: input or keys take to be made again, so that weights are taken first.
RELOAD_TOKENS = 1
#: What leaves first to make room: by what it takes to make it again. Weights are loaded, keys and values take one
#: layer, and an input takes all layers below it whose inputs are missing too.
LEAVES = {Kind.WEIGHTS: 0, Kind.KEYS: 1, Kind.VALUES: 1, Kind.INPUT: 2}


#: Numbers of pieces, which the library knows them by: one row for all trainings of the process.
_numbers = itertools.count(1)


class TooSmall(MemoryError):
    """The memory cannot hold one layer's state, and nothing of it was taken."""


@dataclass(slots=True)
class Piece:
    """A piece of held state, and where it is."""

    number: int
    #: Its tensors, and where each begins.
    tensors: list[tuple[torch.Tensor, int]]
    size: int
    #: Empty while it is missing.
    blocks: list[int] = field(default_factory=list)
    used: int = 0


@dataclass(slots=True)
class Record:
    """What is left to say of a memory when it is gone."""

    #: Blocks that were taken, so far.
    blocks_lost: int = 0
    #: Layers whose frozen weights are on the device.
    resident: int = 0
    #: Numbers of the pieces that the library knows.
    published: set[int] = field(default_factory=set)


class Pieces:
    """The part of a :class:`~.held.Memory` that does not ask how bytes come and go."""

    outlived = False

    def __init__(self, job: OfflineJob, blocks: int) -> None:
        self._job = job
        #: Whoever gives the memory back at the end.
        self.owned: object = None
        self._blocks = blocks
        self._withheld: set[int] = set()
        self._pieces: dict[Held, Piece] = {}
        #: A block has several where small pieces share it.
        self._owners: dict[int, set[Held]] = {}
        self._untold: set[Held] = set()
        #: What stays.
        self._needed: AbstractSet[Held] = frozenset()
        self._step = 0
        self._clock = 0
        self.record = Record()

    @property
    def job(self) -> OfflineJob:
        """Who says what is lost."""
        return self._job

    @property
    def blocks_lost(self) -> int:
        """Blocks that were taken, so far."""
        return self.record.blocks_lost

    # How bytes come and go.

    def _take(self, piece: Piece) -> list[int]:
        """Gives a piece memory and its tensors a place there; its blocks, none where there is no room."""
        raise NotImplementedError

    def _give(self, piece: Piece) -> None:
        """Takes a piece's memory back; its tensors show nothing."""
        raise NotImplementedError

    def _ended(self, piece: Piece) -> None:
        """A piece is dropped for good."""

    def _left(self, block: int) -> None:
        """A block in which nothing lies was taken."""

    def _came(self, block: int) -> None:
        """A block that was taken is back, and nothing lies in it."""

    # What a machine asks.

    def drop(self, name: Held) -> None:
        """Gives the memory of a piece back, lost or not."""
        if (piece := self._pieces.pop(name, None)) is not None:
            self._release(name, piece)
            self._ended(piece)
        self._untold.discard(name)

    def needs(self, names: AbstractSet[Held]) -> None:
        """None of these leaves to make room for others."""
        self._needed = names

    def poll(self) -> set[Held]:
        """What was lost since the last time."""
        self._look()
        told, self._untold = self._untold, set()
        return told

    def again(self, name: Held) -> None:
        """Memory for a piece that is missing."""
        piece = self._pieces[name]
        self._untold.discard(name)
        self._release(name, piece)
        self._find(name, piece)

    def resident(self) -> int:
        """Layers whose frozen weights are on the device."""
        return self.record.resident

    # Blocks.

    def _hold(self, name: Held, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Piece:
        """A new piece, of tensors of so many bytes."""
        places, end = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            places.append((tensor, end))
            end += -(-size // ALIGNED) * ALIGNED
        piece = self._pieces[name] = Piece(next(_numbers), places, max(end, 1))
        return piece

    def _used(self, name: Held) -> Piece:
        piece = self._pieces[name]
        self._clock += 1
        piece.used = self._clock
        return piece

    def _find(self, name: Held, piece: Piece) -> None:
        """Finds a piece its blocks, however long that takes."""
        self._used(name)
        while not (blocks := self._take(piece)):
            self._look()
            if blocks := self._take(piece):
                break
            if self._evict():
                continue
            if not self._withheld:
                held = len(self._owners)
                raise TooSmall(
                    f"{-(-piece.size // BLOCK) * BLOCK >> 20} MiB for layer {name.layer}'s {name.kind.value} are "
                    f"wanted, and all but {(self._blocks - held) * BLOCK >> 20} of {self._blocks * BLOCK >> 20} MiB "
                    f"are in use ({held * BLOCK >> 20} MiB by state that cannot be dropped); "
                    "shorter samples, a smaller batch or a larger share"
                )
            self._job.wait(PATIENCE)
        piece.blocks = blocks
        for block in blocks:
            self._owners.setdefault(block, set()).add(name)
        cost = RELOAD_TOKENS if name.kind is Kind.WEIGHTS else self._tokens(piece)
        self._job.publish(piece.number, cost, blocks)
        self.record.published.add(piece.number)
        self.record.resident += name.kind is Kind.WEIGHTS

    @staticmethod
    def _tokens(piece: Piece) -> int:
        """Tokens that one layer would compute again: X is [batch, tokens, ...], K and V [batch, heads, tokens, ...]."""
        shape = piece.tensors[0][0].shape
        return RELOAD_TOKENS + shape[0] * shape[-2]

    def _release(self, name: Held, piece: Piece) -> None:
        if not piece.blocks:
            return
        for block in piece.blocks:
            owners = self._owners[block]
            owners.discard(name)
            if not owners:
                del self._owners[block]
        self._job.forget(piece.number)
        self.record.published.discard(piece.number)
        self.record.resident -= name.kind is Kind.WEIGHTS
        self._give(piece)
        piece.blocks = []

    def _evict(self) -> bool:
        """Drops the piece that is made again most cheaply; whether there was any with blocks that can be used."""
        least = None
        for name, piece in self._pieces.items():
            if name in self._needed or self._withheld.issuperset(piece.blocks):
                continue
            key = (LEAVES[name.kind], piece.used)
            if least is None or key < least[0]:
                least = (key, name, piece)
        if least is None:
            return False
        _, name, piece = least
        self._release(name, piece)
        self._untold.add(name)
        return True

    def _look(self) -> None:
        """Hears what was lost and what is back, and withholds what was lost."""
        self._step += 1
        cut = self._job.poll(self._step)
        for block in cut.lost:
            if block in self._withheld:
                continue
            self._withheld.add(block)
            self.record.blocks_lost += 1
            owners = self._owners.get(block)
            if owners:
                self._untold |= owners
            else:
                self._left(block)
        for block in cut.back:
            if block in self._withheld:
                self._withheld.discard(block)
                if block not in self._owners:
                    self._came(block)
        # Also what is back: until it is acknowledged it takes room in the log, without which nothing can be taken.
        if cut.lost or cut.back:
            self._job.ack_withheld(cut.seq)
