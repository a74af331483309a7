"""A real GPU as a trainer's device: tensors of PyTorch lie in memory that the library can take.

PyTorch takes the address of anything that has ``__cuda_array_interface__`` and shows it as a tensor. All work of a
unit goes to PyTorch's current stream, in order; so memory that one piece gives and the next one gets is written after
it was last read.
"""

from __future__ import annotations

from typing import Any

import torch

from .driver import Driver
from .machine import Unit


class _Bytes:
    """Memory at an address, as the interface of Numba and PyTorch describes it (version 3)."""

    def __init__(self, at: int, size: int, owner: object) -> None:
        #: Lives for as long as a tensor shows the memory.
        self.owner = owner
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (at, False),
            "strides": None,
            "version": 3,
        }


class Device(Driver):
    """One GPU, in PyTorch's own context of it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        #: Whoever owns the memory that is shown.
        self.owner: object = None
        # Makes the context.
        torch.empty(1, device=device)

    def allocate(self, size: int) -> int:
        with torch.cuda.device(self._device):
            return super().allocate(size)

    def free(self, at: int) -> None:
        with torch.cuda.device(self._device):
            super().free(at)

    def view(self, at: int, size: int) -> torch.Tensor:
        """So many bytes from there."""
        return torch.as_tensor(_Bytes(at, size, self.owner), device=self._device)

    def unit(self, unit: Unit, tokens: int) -> None:
        """The work itself takes the time of a unit."""


def trim() -> None:
    """Gives the driver the memory that PyTorch keeps of weights which lie elsewhere by now."""
    torch.cuda.empty_cache()
