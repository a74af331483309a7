"""KV memory of a SGLang pool on the CPU, of which blocks are taken and given back, and steps that read it late.

The bytes of a lost block are overwritten with garbage whenever the engine reads or writes its memory: it forgets what
is written to it. A block that is back holds garbage of another kind. What is left over behind the last whole block lies in
the same handles, so that it goes and comes with that one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


class Memory:
    """What is behind a pool's slots."""

    def __init__(self, pool, run: int, blocks: int, moment: Callable[[], None]) -> None:
        self.tensors = [*pool.k_buffer, *pool.v_buffer]
        self.run, self.blocks = run, blocks
        self.lost = set()
        self.draw = torch.Generator().manual_seed(1)
        self._stand_around(pool, moment)

    def _stand_around(self, pool, moment: Callable[[], None]) -> None:
        """Before and after each layer writes, and before it reads, is a moment."""
        for name in ("set_kv_buffer", "get_key_buffer"):
            original = getattr(pool, name)

            def between(*args, _original=original, **kwargs):
                moment()
                self.spoil()
                result = _original(*args, **kwargs)
                self.spoil()
                return result

            setattr(pool, name, between)

    def spoil(self) -> None:
        if self.lost:
            self._fill(self._lost_slots)

    def slots(self, block: int) -> range:
        """The slots that are gone with a block."""
        first = block * self.run
        return range(first, first + self.run if block + 1 < self.blocks else len(self.tensors[0]))

    def _fill(self, slots: torch.Tensor, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Has these slots of all layers, or of some tensors, hold garbage."""
        for tensor in tensors or self.tensors:
            tensor[slots] = 3 * torch.randn((len(slots), *tensor.shape[1:]), generator=self.draw)

    def _of(self, blocks: Iterable[int]) -> torch.Tensor:
        return torch.tensor([slot for block in sorted(blocks) for slot in self.slots(block)], dtype=torch.long)

    @property
    def lost(self) -> frozenset[int]:
        """Blocks that have no memory."""
        return self._lost

    @lost.setter
    def lost(self, blocks: Iterable[int]) -> None:
        self._lost = frozenset(blocks)
        self._lost_slots = self._of(self._lost)

    def gone(self) -> set[int]:
        """The slots that are lost."""
        return set(self._lost_slots.tolist())

    def follow(self, steps: Iterable[Late], rng: random.Random) -> None:
        """Has steps that may still be running, in the order of their launches, compute from the memory as it is."""
        lost = self.gone()
        garbage = set(lost)
        for step in steps if lost else ():
            step.compute(lost, garbage, rng)
        self._garble(sorted(garbage - lost))

    def _garble(self, slots: Sequence[int]) -> None:
        """Has these slots of the last layer hold garbage: it was written from some."""
        half = len(self.tensors) // 2
        if slots:
            self._fill(torch.tensor(slots), (self.tensors[half - 1], self.tensors[-1]))

    def take(self, blocks: Sequence[int]) -> None:
        self.lost = self.lost.union(blocks)
        self.spoil()

    def give(self, blocks: Sequence[int]) -> None:
        self._fill(self._of(blocks))
        self.lost = self.lost.difference(blocks)

    def held(self, slots: Sequence[int]) -> list[torch.Tensor]:
        """By layer, the keys and values that these slots hold."""
        half = len(self.tensors) // 2
        at = torch.tensor(slots)
        layers = zip(self.tensors[:half], self.tensors[half:], strict=True)
        return [torch.stack((k[at].flatten(1), v[at].flatten(1)), 1) for k, v in layers]


class Late:
    """A step as it would be if it ended no sooner than its results are used, as on a GPU."""

    def __init__(self, rows: list[tuple[list[int], int]], asked: Sequence[Any] = ()) -> None:
        """By request the slots that it reads, and where in them those begin that it writes; and the requests."""
        self.rows = rows
        self.asked = asked
        #: None while it is computed here.
        self.result: Any = None

    def compute(self, lost: set[int], garbage: set[int], rng: random.Random) -> None:
        """Has what it computes from garbage come to garbage: the second layer's KV behind it, and the token.

        ``garbage`` is what the steps before it leave, and then what it leaves. Steps run one after the other: a slot that
        an earlier one wrote holds what this one wrote, if it was given up and handed out again in between.
        """
        for at, (row, begins) in enumerate(self.rows):
            garbage.difference_update(slot for slot in row[begins:] if slot not in lost)
            first = next((i for i, slot in enumerate(row) if slot in garbage), None)
            if first is None:
                continue
            garbage.update(row[max(first + 1, begins) :])
            if self.result is not None:
                self.result.next_token_ids[at] = rng.randrange(3, 128)
