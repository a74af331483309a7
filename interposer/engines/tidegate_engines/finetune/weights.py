"""The copies that frozen weights are made again from, and how a script's own writes to those weights are noticed.

A script may write into weights that it has frozen: ReLoRA merges its adapter into them and begins a new one. A copy that
was made before is then wrong. So each pass begins with a comparison of the weights with their copies. A write by any way
counts: in place, under ``no_grad``, through ``.data``, by ``load_state_dict``, by an optimizer, in another dtype. What was
written becomes the copy. Where it can no longer be read, because the memory was taken as well, the training ends with
:data:`WRITTEN_WHILE_TAKEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .held import Held, Kind, Memory

#: Of weights whose new values were lost before they were copied.
WRITTEN_WHILE_TAKEN = (
    "a frozen weight of layer {layer} was written to while its memory was taken, so the new values are lost. "
    "Write to frozen weights in a process that runs without Tidegate, and start the training from the result"
)
#: Of weights that changed under a graph.
WRITTEN_BETWEEN = (
    "a frozen weight was written to between the forward pass and its backward pass, and what the backward pass reads "
    "was made with the old values. Write to frozen weights after the backward pass"
)


@dataclass(slots=True)
class Copy:
    """A weight's values when they were last taken over."""

    weight: torch.Tensor
    values: torch.Tensor
    #: In-place writes that autograd has counted.
    version: int
    #: Of the values, where they are compared on the device.
    print: torch.Tensor | None

    def is_written(self) -> bool:
        """Whether autograd has seen a write, or the weight has another form."""
        was = self.values
        return (
            self.weight._version != self.version or self.weight.dtype != was.dtype or self.weight.shape != was.shape
        )

    def differs(self) -> bool:
        """Whether the weight reads otherwise than its copy, to the bit."""
        if self.print is not None:
            return not torch.equal(_print(self.weight), self.print)
        return not torch.equal(_bytes(self.weight), _bytes(self.values))


class Weights:
    """The copies of one model's frozen weights, which lie in ``memory``."""

    def __init__(self, memory: Memory, own: Callable[[], Sequence[Sequence[torch.Tensor]]]) -> None:
        """``own`` says what may be taken of each layer now."""
        self._memory = memory
        self._own = own
        self._copies: dict[Held, list[Copy]] = {}
        #: How often a script has written. Whoever has read weights compares it.
        self.writes = 0

    def __contains__(self, name: object) -> bool:
        return name in self._copies

    def begin(self) -> None:
        """Copies all there are: from now on they may be taken."""
        for layer, own in enumerate(self._own()):
            if own:
                self._adopt(Held(layer, Kind.WEIGHTS), own)

    def load(self, name: Held) -> None:
        """Loads a piece from its copy, in the order of the device's work."""
        for copy in self._copies[name]:
            # What autograd has noted of the weight stands: it is what it was.
            copy.weight.data.copy_(copy.values, non_blocking=True)

    def lost(self, names: set[Held]) -> None:
        """Said of what a unit may have read as garbage. Where tensors outlive their memory, they show their values again."""
        if self._memory.outlived:
            for name in names:
                if name in self._copies:
                    self.load(name)

    def look(self, settle: Callable[[], object], missing: set[Held]) -> None:
        """Takes over what a script has written. ``settle`` asks the memory what was lost, which ``missing`` then has."""
        if not self._copies:
            return
        now = self._own()
        for layer, own in enumerate(now):
            name = Held(layer, Kind.WEIGHTS)
            known = self._copies.get(name, [])
            if len(known) == len(own) and all(c.weight is w for c, w in zip(known, own, strict=True)):
                if not self._was_written(name, known, settle, missing):
                    continue
            self._take_over(name, own, settle, missing)

    def _was_written(
        self, name: Held, known: Sequence[Copy], settle: Callable[[], object], missing: set[Held]
    ) -> bool:
        written = any(copy.is_written() for copy in known)
        if self._memory.outlived:
            return written or any(copy.differs() for copy in known)
        if not written and name not in missing and any(copy.differs() for copy in known):
            # Either the script has written, or the memory was taken.
            settle()
            written = name not in missing
        return written

    def _take_over(
        self, name: Held, own: Sequence[torch.Tensor], settle: Callable[[], object], missing: set[Held]
    ) -> None:
        before = self._copies.pop(name, [])
        gone = name in missing and not self._memory.outlived
        if gone and any(copy.is_written() for copy in before):
            raise RuntimeError(WRITTEN_WHILE_TAKEN.format(layer=name.layer))
        self.writes += any(copy.is_written() or (not gone and copy.differs()) for copy in before)
        known = {id(copy.weight): copy for copy in before}
        fresh = {
            id(w): known[id(w)] if gone and id(w) in known else self._copied(w)
            for w in (*own, *(copy.weight for copy in before))
        }
        if not self._memory.outlived and not gone:
            # What was taken while it was copied has been copied wrong.
            settle()
            if name in missing:
                raise RuntimeError(WRITTEN_WHILE_TAKEN.format(layer=name.layer))
        self._memory.drop(name)
        missing.discard(name)
        if not self._memory.outlived:
            for copy in fresh.values():
                copy.weight.data = copy.values.to(copy.weight.device, copy=True)
        if own:
            self._copies[name] = [fresh[id(w)] for w in own]
            self._memory.adopt(name, list(own))

    def _adopt(self, name: Held, own: Sequence[torch.Tensor]) -> None:
        self._copies[name] = [self._copied(weight) for weight in own]
        self._memory.adopt(name, list(own))

    def _copied(self, weight: torch.Tensor) -> Copy:
        shown = _print(weight) if weight.is_cuda else None
        return Copy(weight, on_host(weight), weight._version, shown)


def on_host(weight: torch.Tensor) -> torch.Tensor:
    """A copy from which a weight is loaded again: page-locked where the weight is on a GPU, so that no load waits inside
    the driver, where it may hold locks that taking memory needs."""
    if not weight.is_cuda:
        return weight.detach().to("cpu", copy=True)
    copy = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=True)
    return copy.copy_(weight.detach())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """As they are, so that NaN equals itself and zeros have a sign."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


#: Integers of a dtype's size.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _print(weight: torch.Tensor) -> torch.Tensor:
    """A sum of a weight's words, which reads it once on its device."""
    words = weight.detach().contiguous().reshape(-1)
    return words.view(_WORDS[weight.element_size()]).sum(dtype=torch.int64)
