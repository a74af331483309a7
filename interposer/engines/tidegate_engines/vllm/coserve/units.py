"""The backward pass of a sample in units, each a layer of a window of rows.

For layer ``n``, from the last to the first, and windows from the last row to the first::

    out, k, v = layer_n(X_n[lo:hi]; K_n[:lo], V_n[:lo] as leaves)
    d(<out, dY[lo:hi]> + <k, dK[lo:hi]> + <v, dV[lo:hi]>) gives dX[lo:hi], the adapter's part of the gradient, and
    what is added to dK[:lo] and dV[:lo]

A window's own ``dK`` and ``dV`` are whole when its turn comes, because all later windows have added theirs. The result
does not depend on where windows end. It is the same computation that ``finetune.machine`` makes of a model of
transformers', on vLLM's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .decoder import Layer, Lora

#: Keys and values of a layer's first rows, [row, head, value], in memory of their own.
KeysValues = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]

#: The trained matrices: by layer, by name.
Adapter = Sequence[Mapping[str, Lora]]

#: Their gradients: by layer, by name, of A and of B.
Gradients = list[dict[str, list[torch.Tensor]]]


@dataclass
class Sample:
    """What the forward pass left."""

    #: By layer, the input of all rows.
    inputs: Sequence[torch.Tensor]
    #: Of a layer and so many rows.
    past: KeysValues


@dataclass
class Backward:
    """The pass of one sample, which goes on with each call of :meth:`advance`."""

    layers: Sequence[Layer]
    adapter: Adapter
    sample: Sample
    #: What the loss gives back to the output of the layer under way.
    dy: torch.Tensor
    #: Added to, so that several samples may share it.
    gradients: Gradients
    #: The layer under way, and the row before which its next window ends.
    layer: int = field(init=False)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        trained = [number for number, of_layer in enumerate(self.adapter) if of_layer]
        #: Below it nobody asks for a gradient.
        self._lowest = min(trained, default=len(self.layers))
        self._dx = torch.empty_like(self.dy)
        self._begin(len(self.layers) - 1)

    @property
    def done(self) -> bool:
        """Whether there is nothing left of it."""
        return self.layer < self._lowest

    def _begin(self, layer: int) -> None:
        self.layer, self.end = layer, len(self.dy)
        if not self.done:
            shape = (len(self.dy), self.layers[layer].kv_heads, self.layers[layer].head_size)
            # Sums over windows are kept in f32 at least: bf16 would lose the small ones.
            self._past = [torch.zeros(shape, dtype=_wide(self.dy.dtype), device=self.dy.device) for _ in range(2)]

    def advance(self, rows: int) -> int:
        """Runs one unit of at most so many rows; returns how many it was of."""
        if rows < 1:
            raise ValueError(f"a unit is of at least one row, not {rows}")
        if self.done:
            return 0
        lo, hi = max(0, self.end - rows), self.end
        self._unit(lo, hi)
        self.end = lo
        if lo == 0:
            self.dy, self._dx = self._dx, self.dy
            self._begin(self.layer - 1)
        return hi - lo

    def _unit(self, lo: int, hi: int) -> None:
        number, layer = self.layer, self.layers[self.layer]
        x = self.sample.inputs[number][lo:hi].detach().requires_grad_(number > self._lowest)
        leaves = [t.detach().requires_grad_() for t in self.sample.past(number, lo)] if lo else []
        positions = torch.arange(lo, hi, device=x.device)
        loras = self.adapter[number]
        trained = [tensor for lora in loras.values() for tensor in (lora.a, lora.b)]
        with torch.enable_grad():
            outputs = layer(x, positions, (leaves[0], leaves[1]) if leaves else None, loras)
        given = [self.dy[lo:hi], *(each[lo:hi] for each in self._past)]
        sources = [(o, g.to(o.dtype)) for o, g in zip(outputs, given, strict=True) if o.requires_grad]
        wanted = [t for t in (x, *leaves, *trained) if t.requires_grad]
        found = torch.autograd.grad([o for o, _ in sources], wanted, [g for _, g in sources], allow_unused=True)
        grads = iter(found)
        if x.requires_grad:
            grad = next(grads)
            self._dx[lo:hi] = 0 if grad is None else grad
        for into in self._past[: len(leaves)]:
            self._carry(into[:lo], next(grads))
        parts = [part for name in loras for part in self.gradients[number][name]]
        for into, grad in zip(parts, grads, strict=True):
            if grad is not None:
                into += grad

    def _carry(self, into: torch.Tensor, grad: torch.Tensor | None) -> None:
        """What a window gives back to the keys or values of those before it."""
        if grad is not None:
            into += grad


def gradients(adapter: Adapter) -> Gradients:
    """Zeros of the shape of its matrices, in f32 at least."""
    return [
        {name: [torch.zeros_like(t, dtype=_wide(t.dtype)) for t in (lora.a, lora.b)] for name, lora in of_layer.items()}
        for of_layer in adapter
    ]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
