"""Held state in memory that the agent takes and gives back, which tensors on the host show.

The memory is registered with the library in blocks of 2 MiB. A unit's copies bring what it reads and carry what it
wrote. What the agent takes is really gone: the next copy reads what stands there instead. For a device whose
arithmetic is the host's (``virtual``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from ..job import OfflineJob
from .held import Held
from .pieces import BLOCK, Piece, Pieces


class Copies(Protocol):
    """What carries bytes between the host and the memory."""

    def here(self) -> None: ...
    def read(self, to: int, at: int, size: int) -> None: ...
    def write(self, at: int, of: int, size: int) -> None: ...
    def wait(self) -> None: ...


class TakenMemory(Pieces):
    """A :class:`~.held.Memory` of ``blocks`` blocks from ``base``."""

    outlived = True

    def __init__(self, device: Copies, job: OfflineJob, base: int, blocks: int) -> None:
        super().__init__(job, blocks)
        self._device = device
        self._base = base
        self._free = list(range(blocks))
        #: A piece's bytes on the host, as they go to its blocks.
        self._images: dict[int, torch.Tensor] = {}

    # Held state.

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        self._show(name, tensors)
        self.store([name])

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        self.drop(name)
        tensor = like.new_empty(tuple(shape))
        self._show(name, [tensor])
        return tensor

    def _show(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        piece = self._hold(name, tensors, [tensor.nbytes for tensor in tensors])
        self._images[piece.number] = torch.empty(piece.size, dtype=torch.uint8)
        self._find(name, piece)

    def _ended(self, piece: Piece) -> None:
        del self._images[piece.number]

    def fetch(self, names: Iterable[Held]) -> None:
        self._device.here()
        for name in names:
            piece = self._used(name)
            image = self._images[piece.number]
            for index, block in enumerate(piece.blocks):
                at, size = self._part(piece, index)
                self._device.read(image.data_ptr() + at, self._base + block * BLOCK, size)
            for tensor, at in piece.tensors:
                shown = image[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                tensor.data.copy_(shown)

    def store(self, names: Iterable[Held]) -> None:
        self._device.here()
        for name in names:
            piece = self._used(name)
            image = self._images[piece.number]
            for tensor, at in piece.tensors:
                shown = image[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                shown.copy_(tensor.detach())
            for index, block in enumerate(piece.blocks):
                at, size = self._part(piece, index)
                self._device.write(self._base + block * BLOCK, image.data_ptr() + at, size)
        self._device.wait()

    # Blocks.

    @staticmethod
    def _part(piece: Piece, index: int) -> tuple[int, int]:
        at = index * BLOCK
        return at, min(BLOCK, piece.size - at)

    def _take(self, piece: Piece) -> list[int]:
        wanted = -(-piece.size // BLOCK)
        return [self._free.pop() for _ in range(wanted)] if len(self._free) >= wanted else []

    def _give(self, piece: Piece) -> None:
        self._free += (block for block in piece.blocks if block not in self._withheld)

    def _left(self, block: int) -> None:
        self._free.remove(block)

    def _came(self, block: int) -> None:
        self._free.append(block)
