"""The block tables of a scheduler's requests: one for each group of layers, over one pool of blocks.

A block is of one group of one request at a time, or of a prefix that requests share; its number is of the whole pool. The
slots of a token lie in a block of every group, and all of them are computed from what was before it in all groups. So what
follows from a loss goes by *places*, the numbers of a request's tokens, not by blocks.

A group with a sliding window gives blocks up that no later step reads, while the step that reads them last may be under
way. What it had then is kept with that step (``within``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .withheld import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks in a row of one group's table, the first of which is its ``first``-th."""

    size: int
    first: int
    blocks: list[int]

    def place(self, among: set[int], before: int | None) -> int | None:
        """Where the first of its blocks that is among others begins, if that is before a place."""
        for at, block in enumerate(self.blocks, self.first):
            if before is not None and at * self.size >= before:
                return None
            if block in among:
                return at * self.size
        return None

    def since(self, place: int) -> list[int]:
        """Its blocks that hold a token from a place on."""
        return self.blocks[max(place // self.size - self.first, 0) :]


#: What one request holds or held.
Table = list[Part]


class Tables:
    """Those of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._manager = scheduler.kv_cache_manager
        specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
        self.sizes = [spec.block_size for spec in specs]
        #: The groups that give blocks up before their request ends.
        self.sliding = [at for at, spec in enumerate(specs) if type(spec).__name__ == "SlidingWindowSpec"]

    def of(self, name: str) -> Table:
        """All that a request holds."""
        groups = zip(self.sizes, self._manager.get_block_ids(name), strict=True)
        return [Part(size, 0, list(blocks)) for size, blocks in groups if blocks]

    def within(self, name: str) -> Table:
        """What a request holds in groups with a window: no more than the window and the step are long."""
        found = []
        for group in self.sliding:
            held = self._manager.coordinator.single_type_managers[group].req_to_blocks.get(name, ())
            blocks = []
            for block in reversed(held):
                if block.block_id == NULL_BLOCK:
                    break
                blocks.append(block.block_id)
            found.append(Part(self.sizes[group], len(held) - len(blocks), blocks[::-1]))
        return found


def blocks_of(table: Table) -> list[int]:
    """The blocks of a table, without vLLM's placeholder."""
    return [block for part in table for block in part.blocks if block != NULL_BLOCK]


def reach(tables: Iterable[tuple[str, Table]], lost: set[int]) -> tuple[set[str], set[int]]:
    """The requests that may have read garbage, and the blocks that may have been written from it.

    Two requests of one prefix may hold different blocks for the same tokens, so that a request without a lost block can
    hold what another wrote from one, and one with a lost block what was written from an earlier one: hence to a fixed point.
    """
    known: dict[str, Table] = {}
    for name, table in tables:
        known.setdefault(name, []).extend(table)
    places: dict[str, int] = {}
    disowned = set(lost)
    grew = True
    while grew:
        grew = False
        for name, table in known.items():
            place = _earliest(table, disowned, places.get(name))
            if place is None:
                continue
            places[name] = place
            later = {block for part in table for block in part.since(place)} - disowned - {NULL_BLOCK}
            disowned |= later
            grew = grew or bool(later)
    return set(places), disowned


def _earliest(table: Table, among: set[int], before: int | None) -> int | None:
    """The first place of a table, before one that is known, in a block that is among others."""
    found: Iterator[int | None] = (part.place(among, before) for part in table)
    return min((place for place in found if place is not None), default=None)
