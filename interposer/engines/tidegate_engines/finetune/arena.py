"""Held state in memory that the agent takes and gives back, where tensors lie themselves.

The library lays each piece over any free blocks of a registered memory, at addresses in a row
(``tg_arena_take``), and a tensor of the framework shows those addresses. Nothing is copied but what a host has to
bring. What the agent takes is gone at once: a kernel that is under way reads what stands there instead and writes
where nobody reads, until its unit is over and asks.

A piece that is missing has no address. Its tensors show NaN, so that whoever reads them is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from ..job import OfflineJob
from .held import Held
from .pieces import Piece, Pieces


class Places(Protocol):
    """Who finds addresses in a row for so many bytes, over any free blocks."""

    def take(self, size: int) -> int | None:
        """Where; None where too few blocks are free."""
        ...

    def give(self, at: int) -> None:
        """Nobody uses what begins there any more."""
        ...

    def blocks(self, at: int) -> list[int]:
        """What it lies over."""
        ...


class View(Protocol):
    """Who shows memory of a device as a tensor."""

    def view(self, at: int, size: int) -> torch.Tensor:
        """So many bytes, as numbers from 0 to 255."""
        ...


class ArenaMemory(Pieces):
    """A :class:`~.held.Memory` of ``blocks`` blocks."""

    def __init__(self, device: View, places: Places, job: OfflineJob, blocks: int) -> None:
        super().__init__(job, blocks)
        self._device = device
        self._places = places
        #: Where pieces begin, by their numbers.
        self._at: dict[int, int] = {}
        #: What each piece's tensors look like, whatever they show.
        self._shapes: dict[int, list[tuple[int, ...]]] = {}

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        content = [tensor.data for tensor in tensors]
        self._show(name, tensors, [tuple(tensor.shape) for tensor in tensors])
        for tensor, was in zip(tensors, content, strict=True):
            tensor.data.copy_(was)

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        self.drop(name)
        tensor = like.new_empty(0)
        self._show(name, [tensor], [tuple(shape)])
        return tensor

    def _show(self, name: Held, tensors: Sequence[torch.Tensor], shapes: list[tuple[int, ...]]) -> None:
        sizes = [math.prod(shape) * tensor.element_size() for tensor, shape in zip(tensors, shapes, strict=True)]
        piece = self._hold(name, tensors, sizes)
        self._shapes[piece.number] = shapes
        # A piece's cost is told by its shape, which it has before it has a place.
        _nowhere(piece, shapes)
        self._find(name, piece)

    def _ended(self, piece: Piece) -> None:
        del self._shapes[piece.number]

    def fetch(self, names: Iterable[Held]) -> None:
        for name in names:
            self._used(name)

    def store(self, names: Iterable[Held]) -> None:
        self.fetch(names)

    def _take(self, piece: Piece) -> list[int]:
        at = self._places.take(piece.size)
        if at is None:
            return []
        self._at[piece.number] = at
        shown = self._device.view(at, piece.size)
        for (tensor, begin), shape in zip(piece.tensors, self._shapes[piece.number], strict=True):
            size = math.prod(shape) * tensor.element_size()
            tensor.data = shown[begin : begin + size].view(tensor.dtype).view(shape)
        return self._places.blocks(at)

    def _give(self, piece: Piece) -> None:
        _nowhere(piece, self._shapes[piece.number])
        self._places.give(self._at.pop(piece.number))


def _nowhere(piece: Piece, shapes: Sequence[tuple[int, ...]]) -> None:
    for (tensor, _), shape in zip(piece.tensors, shapes, strict=True):
        nothing = math.nan if tensor.is_floating_point() else 0
        tensor.data = torch.full((), nothing, dtype=tensor.dtype, device=tensor.device).expand(shape)
