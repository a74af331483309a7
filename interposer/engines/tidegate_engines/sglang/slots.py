"""Slots of a SGLang pool that its allocator passes over, because there is no memory of ours under them.

SGLang counts tokens in *slots* and hands them out in *pages* of one slot or more; what is free is a tensor of page
numbers. The library counts *blocks*: runs of slots, so many that a request's list of them stays short. A block is lost
and comes back as a whole, with all pages in it. Page 0 is SGLang's padding, in block 0, which is never taken. Slots
behind the last whole block share its memory, and count as part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import lcm
from typing import Any

import numpy as np
import torch

#: Slots of a block at the least: as many as vLLM's blocks have.
RUN = 16


def run_of(page_size: int) -> int:
    """Slots of a block: whole pages."""
    return page_size if page_size >= RUN else lcm(RUN, page_size)


class Slots:
    """The pages that one allocator withholds."""

    def __init__(self, allocator: Any, slots: int) -> None:
        """``slots`` is how many the pool's tensors have, with the padding."""
        self.allocator = allocator
        self.page = allocator.page_size
        self.run = run_of(self.page)
        self.blocks = slots // self.run
        self.total = slots
        #: By page: lost, and not back.
        self.withheld = np.zeros(-(-slots // self.page), dtype=bool)
        #: Of these, how many the allocator does not have.
        self.out = 0
        #: Counted as free meanwhile, for who counts all there is.
        self._shown = False
        #: Pages that the allocator has ever had.
        self._valid = self._free_mask()
        self._stand_around()

    def _stand_around(self) -> None:
        allocator, size, clear = self.allocator, self.allocator.available_size, self.allocator.clear

        def available_size() -> int:
            return size() + (self.out * self.page if self._shown else 0)

        def cleared() -> None:
            clear()
            self.out = 0
            self._strip()

        allocator.available_size, allocator.clear = available_size, cleared

    def _free_mask(self) -> np.ndarray:
        mask = np.zeros(len(self.withheld), dtype=bool)
        mask[self._gathered().cpu().numpy()] = True
        return mask

    def _gathered(self) -> torch.Tensor:
        """What is free, in one tensor."""
        allocator = self.allocator
        released = getattr(allocator, "release_pages", None)
        if (released is not None and len(released)) or getattr(allocator, "staged_pages", None):
            allocator.merge_and_sort_free()
        return allocator.free_pages

    def slots_of(self, blocks: Iterable[int]) -> np.ndarray:
        """The slots of these blocks, as a mask over all of them."""
        mask = np.zeros(self.total, dtype=bool)
        for block in blocks:
            mask[block * self.run : self._end(block)] = True
        return mask

    def _end(self, block: int) -> int:
        """The slot behind a block's last one."""
        return (block + 1) * self.run if block + 1 < self.blocks else self.total

    def blocks_of(self, row: np.ndarray) -> np.ndarray:
        """The block that each of these slots lies in."""
        return np.minimum(row // self.run, self.blocks - 1)

    def _pages_of(self, blocks: Iterable[int]) -> np.ndarray:
        mask = np.zeros(len(self.withheld), dtype=bool)
        for block in blocks:
            mask[block * self.run // self.page : -(-self._end(block) // self.page)] = True
        return mask & self._valid

    def any(self) -> bool:
        """Whether something is withheld."""
        return bool(self.withheld.any())

    def room(self) -> int:
        """Slots that have memory, whoever holds them."""
        return int(self._valid.sum() - self.withheld.sum()) * self.page

    def withhold(self, blocks: Iterable[int]) -> None:
        """Keeps the pages of these blocks from the allocator. No request and no node of the tree may hold them."""
        self.withheld |= self._pages_of(blocks)
        self._strip()

    def allow(self, blocks: Iterable[int]) -> None:
        """Lets the allocator have the pages of these blocks."""
        back = self._pages_of(blocks) & self.withheld
        if not back.any():
            return
        self._strip()
        self.withheld &= ~back
        pages = torch.from_numpy(np.flatnonzero(back)).to(self.allocator.free_pages)
        self.out -= len(pages)
        self.allocator.free_pages = torch.cat((self.allocator.free_pages, pages))

    def settle(self) -> None:
        """What was given up late is withheld, too."""
        if self.out < self.withheld.sum():
            self._strip()

    def _strip(self) -> None:
        free = self._gathered()
        keep = ~torch.from_numpy(self.withheld).to(free.device)[free]
        kept = free[keep]
        self.out += len(free) - len(kept)
        self.allocator.free_pages = kept

    def showing(self, call: Callable[[], Any]) -> Any:
        """What ``call`` returns while withheld pages count as free: in a leak check they are nobody's."""
        self._shown = True
        try:
            return call()
        finally:
            self._shown = False
