"""Held state in memory that the agent takes and gives back while the trainer runs.

The memory is registered with the library in blocks of 2 MiB. A piece lies in any free blocks, in no order, and its
tensor on the host shows it: a unit's copies bring what it reads and carry what it wrote. What the agent takes is
really gone: the next copy reads what stands there instead.

A lost block is withheld until the library says that there is memory again. The piece that was in it does not wait
for that: it gets other free blocks, and where there are none, those of a piece that the layer under way does not
need, which is then missing in its turn: frozen weights first, then keys and values, then inputs, of each what was
used longest ago. So with less memory fewer layers are resident, then more is computed again, and the training goes
on for as long as one layer's state fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..job import OfflineJob
from .held import Held, Kind

#: The least that is taken and given back.
BLOCK = 2 << 20
#: Where a tensor begins within its piece: any dtype's elements lie right there.
ALIGNED = 64
#: Seconds between two looks for memory that comes back.
PATIENCE = 0.002
#: What it costs to load a layer's weights again, in tokens that a layer could compute meanwhile: fewer than any
#: input or keys take to be made again, so that weights are taken first.
RELOAD_TOKENS = 1
#: What leaves first to make room: by what it takes to make it again. Weights are loaded, keys and values take one
#: layer, and an input takes all layers below it whose inputs are missing too.
LEAVES = {Kind.WEIGHTS: 0, Kind.KEYS: 1, Kind.VALUES: 1, Kind.INPUT: 2}


class Copies(Protocol):
    """What carries bytes between the host and the memory."""

    def here(self) -> None: ...
    def read(self, to: int, at: int, size: int) -> None: ...
    def write(self, at: int, of: int, size: int) -> None: ...
    def wait(self) -> None: ...


class TooSmall(MemoryError):
    """The memory cannot hold one layer's state, and nothing of it was taken."""


@dataclass(slots=True)
class _Piece:
    number: int
    tensors: list[tuple[torch.Tensor, int]]
    #: The piece's bytes on the host, as they go to the blocks.
    image: torch.Tensor
    #: Empty while it is missing.
    blocks: list[int] = field(default_factory=list)
    used: int = 0


class TakenMemory:
    """A :class:`~.held.Memory` of ``blocks`` blocks from ``base``."""

    def __init__(self, device: Copies, job: OfflineJob, base: int, blocks: int) -> None:
        self._device = device
        self._job = job
        self._base = base
        self._blocks = blocks
        self._free = list(range(blocks))
        self._withheld: set[int] = set()
        self._pieces: dict[Held, _Piece] = {}
        self._owner: dict[int, Held] = {}
        self._untold: set[Held] = set()
        #: What stays.
        self._needed: AbstractSet[Held] = frozenset()
        self._step = 0
        self._clock = 0
        self._made = 0
        #: Blocks that were taken, so far.
        self.blocks_lost = 0

    # Held state.

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        self._hold(name, list(tensors))
        self.store([name])

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        self.drop(name)
        tensor = like.new_empty(tuple(shape))
        self._hold(name, [tensor])
        return tensor

    def _hold(self, name: Held, tensors: list[torch.Tensor]) -> None:
        places, end = [], 0
        for tensor in tensors:
            places.append((tensor, end))
            end += -(-tensor.nbytes // ALIGNED) * ALIGNED
        self._made += 1
        piece = _Piece(self._made, places, torch.empty(max(end, 1), dtype=torch.uint8))
        self._pieces[name] = piece
        self._give(name, piece)

    def drop(self, name: Held) -> None:
        if (piece := self._pieces.pop(name, None)) is not None:
            self._release(piece)
        self._untold.discard(name)

    def fetch(self, names: Iterable[Held]) -> None:
        self._device.here()
        for name in names:
            piece = self._used(name)
            for index, block in enumerate(piece.blocks):
                at, size = self._part(piece, index)
                self._device.read(piece.image.data_ptr() + at, self._base + block * BLOCK, size)
            for tensor, at in piece.tensors:
                shown = piece.image[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                tensor.data.copy_(shown)

    def store(self, names: Iterable[Held]) -> None:
        self._device.here()
        for name in names:
            piece = self._used(name)
            for tensor, at in piece.tensors:
                shown = piece.image[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                shown.copy_(tensor.detach())
            for index, block in enumerate(piece.blocks):
                at, size = self._part(piece, index)
                self._device.write(self._base + block * BLOCK, piece.image.data_ptr() + at, size)
        self._device.wait()

    def needs(self, names: AbstractSet[Held]) -> None:
        self._needed = names

    def poll(self) -> set[Held]:
        self._look()
        told, self._untold = self._untold, set()
        return told

    def again(self, name: Held) -> None:
        piece = self._pieces[name]
        self._untold.discard(name)
        self._release(piece)
        self._give(name, piece)

    def resident(self) -> int:
        """Layers whose frozen weights are on the device."""
        return sum(name.kind is Kind.WEIGHTS and bool(p.blocks) for name, p in self._pieces.items())

    # Blocks.

    def _used(self, name: Held) -> _Piece:
        piece = self._pieces[name]
        self._clock += 1
        piece.used = self._clock
        return piece

    def _part(self, piece: _Piece, index: int) -> tuple[int, int]:
        at = index * BLOCK
        return at, min(BLOCK, piece.image.nbytes - at)

    def _give(self, name: Held, piece: _Piece) -> None:
        """Gives a piece its blocks, however long that takes."""
        wanted = -(-piece.image.nbytes // BLOCK)
        self._used(name)
        while len(self._free) < wanted:
            self._look()
            if len(self._free) >= wanted or self._evict():
                continue
            if not self._withheld:
                held = sum(len(p.blocks) for p in self._pieces.values())
                raise TooSmall(
                    f"{wanted * BLOCK >> 20} MiB for layer {name.layer}'s {name.kind.value} are wanted, and all but "
                    f"{len(self._free) * BLOCK >> 20} of {self._blocks * BLOCK >> 20} MiB are in use "
                    f"({held * BLOCK >> 20} MiB by state that cannot be dropped); "
                    "shorter samples, a smaller batch or a larger share"
                )
            self._job.wait(PATIENCE)
        piece.blocks = [self._free.pop() for _ in range(wanted)]
        for block in piece.blocks:
            self._owner[block] = name
        cost = RELOAD_TOKENS if name.kind is Kind.WEIGHTS else self._tokens(piece)
        self._job.publish(piece.number, cost, piece.blocks)

    @staticmethod
    def _tokens(piece: _Piece) -> int:
        """Tokens that one layer would compute again: X is [batch, tokens, ...], K and V [batch, heads, tokens, ...]."""
        shape = piece.tensors[0][0].shape
        return RELOAD_TOKENS + shape[0] * shape[-2]

    def _release(self, piece: _Piece) -> None:
        for block in piece.blocks:
            del self._owner[block]
            if block not in self._withheld:
                self._free.append(block)
        if piece.blocks:
            self._job.forget(piece.number)
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
        self._release(piece)
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
            self.blocks_lost += 1
            if (name := self._owner.get(block)) is not None:
                self._untold.add(name)
            else:
                self._free.remove(block)
        for block in cut.back:
            self._withheld.discard(block)
            if block not in self._owner and block not in self._free:
                self._free.append(block)
        if cut.lost:
            self._job.ack_withheld(cut.seq)
