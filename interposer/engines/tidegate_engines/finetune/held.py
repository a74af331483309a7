"""The memory of what a trainer can make again, and what becomes of it when it is taken.

*Held* state is large and has a recipe: a layer's frozen weights (a copy on the host), its input X (one
forward of the layer below) and its keys and values (one forward of the layer itself). *Kept* state is
what has none: the adapter, its gradients, the optimizer's moments, the running gradient between two
layers, and what goes into the first layer. Only held state may be taken; whoever keeps it asks by
:meth:`Memory.poll` what is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


class Kind(Enum):
    """What a piece of held state is."""

    #: Frozen weights of a layer.
    WEIGHTS = "weights"
    #: The input of a layer, all tokens.
    INPUT = "x"
    #: Keys of a layer, after the rotation by position.
    KEYS = "k"
    #: Values of a layer.
    VALUES = "v"

    # An enum's own hash is that of its name, in Python, and names are looked up around each unit.
    __hash__ = object.__hash__


class Held(NamedTuple):
    """A piece of held state."""

    layer: int
    kind: Kind
    #: Of which pass through the model; weights are of none.
    batch: int = 0


NOTHING: frozenset[Held] = frozenset()


class Memory(Protocol):
    """Where held state lies."""

    @property
    def outlived(self) -> bool:
        """Whether tensors keep what they show when the memory behind them is gone: they only show it."""
        ...

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        """Holds tensors that exist: frozen weights, for as long as the trainer lives."""
        ...

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor of that shape, with the dtype and device of ``like`` and any content."""
        ...

    def drop(self, name: Held) -> None:
        """Gives the memory of a piece back, lost or not."""
        ...

    def fetch(self, names: Iterable[Held]) -> None:
        """Said before a unit reads these pieces, for a memory that tensors only show."""
        ...

    def store(self, names: Iterable[Held]) -> None:
        """Said after a unit has written these pieces."""
        ...

    def needs(self, names: AbstractSet[Held]) -> None:
        """Said before a layer's units: none of these pieces leaves to make room for others, until it is said anew."""
        ...

    def poll(self) -> AbstractSet[Held]:
        """What was lost since the last time. Asked after the device has done what was asked of it.

        A piece that is lost reads as anything and forgets what is written to it until :meth:`again`.
        """
        ...

    def again(self, name: Held) -> None:
        """Says that nobody uses a lost piece, and waits until there is memory under it again.

        The tensors stay the same; their content is anything.
        """
        ...


class PlainMemory:
    """The framework's own memory, which nobody takes."""

    outlived = True

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        return None

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(tuple(shape))

    def drop(self, name: Held) -> None:
        return None

    def fetch(self, names: Iterable[Held]) -> None:
        return None

    def store(self, names: Iterable[Held]) -> None:
        return None

    def needs(self, names: AbstractSet[Held]) -> None:
        return None

    def poll(self) -> AbstractSet[Held]:
        return NOTHING

    def again(self, name: Held) -> None:
        return None
