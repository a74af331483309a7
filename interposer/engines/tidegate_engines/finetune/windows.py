"""The decoder layers of a causal language model, one layer and one token window at a time.

What a layer is given beside its input (mask, rotations, positions) is what the model's own forward gives
its first layer, cut into windows. So padding, packing and attention implementations mean what they mean to
the model.

The exact form, for a window ``[lo, hi)`` of layer ``n`` in the backward pass::

    out, k, v = layer_n(X_n[lo:hi]; past K_n[:lo], V_n[:lo] as leaves)
    d(<out, dY[lo:hi]> + <k, dK[lo:hi]> + <v, dV[lo:hi]>) gives dX[lo:hi], the adapter's part, and what
    is added to dK[:lo] and dV[:lo]

with the windows from the last to the first, so that ``dK[lo:hi]`` is whole when its window comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .cache import WindowCache

#: A token window: from its first token to before its last.
Window = tuple[int, int]


def every(size: int) -> Callable[[int], list[Window]]:
    """Cuts a sample of so many tokens into windows of ``size``, the last one shorter."""
    if size < 1:
        raise ValueError(f"a window has at least one token, not {size}")
    return lambda length: [(lo, min(lo + size, length)) for lo in range(0, length, size)]


@dataclass(frozen=True, slots=True)
class Given:
    """What the model's own forward gives each of its layers beside the input, and the context it does it in."""

    words: Mapping[str, Any]
    #: Makes the autocast that the model ran in.
    compute: Callable[[], AbstractContextManager[Any]]

    def of(self, window: Window) -> dict[str, Any]:
        """What a layer gets for a window."""
        lo, hi = window
        words = {**self.words, "use_cache": False, "attention_mask": self._mask(lo, hi)}
        cos, sin = words["position_embeddings"]
        words["position_embeddings"] = (cos[:, lo:hi], sin[:, lo:hi])
        if (positions := words.get("position_ids")) is not None:
            words["position_ids"] = positions[:, lo:hi]
        return words

    def _mask(self, lo: int, hi: int) -> torch.Tensor | None:
        mask = self.words.get("attention_mask")
        if mask is not None:
            return mask[:, :, lo:hi, :hi]
        if lo == 0 or hi - lo == 1:
            return None  # plainly causal, or one token that sees all before it
        device = self.words["position_embeddings"][0].device
        return torch.ones(hi - lo, hi, dtype=torch.bool, device=device).tril(diagonal=lo)[None, None]


class Layers:
    """The decoder layers of a causal language model, with whatever adapter is in them."""

    def __init__(self, layers: Sequence[nn.Module], attention_dropout: float = 0.0) -> None:
        self.all = list(layers)
        self._attention_dropout = attention_dropout

    def __len__(self) -> int:
        return len(self.all)

    def parameters(self, layer: int, trained: bool) -> list[nn.Parameter]:
        """A layer's trained or frozen parameters, each once."""
        found = dict.fromkeys(self.all[layer].parameters())
        return [p for p in found if p.requires_grad == trained]

    def all_parameters(self, layer: int) -> list[nn.Parameter]:
        """A layer's parameters, each once."""
        return list(dict.fromkeys(self.all[layer].parameters()))

    def device(self) -> torch.device:
        """Where the layers are."""
        return next(self.all[0].parameters()).device

    def has_dropout(self) -> bool:
        """Whether what a layer computes depends on the random state."""
        modules = (m for layer in self.all if layer.training for m in layer.modules())
        return any(isinstance(m, nn.Dropout) and m.p > 0 for m in modules) or (
            self._attention_dropout > 0 and self.all[0].training
        )

    def forward(
        self,
        layer: int,
        hidden: torch.Tensor,
        given: Given,
        window: Window,
        past: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A layer's output, keys and values for a window, whose input is ``hidden``."""
        cache = WindowCache(past)
        module = self.all[layer]
        with given.compute(), _without_checkpointing(module):
            out = module(hidden, **{**given.of(window), "past_key_values": cache})
        if cache.own is None:
            raise RuntimeError(f"layer {layer} ({type(module).__name__}) did not update its cache")
        return out, *cache.own


@contextmanager
def _without_checkpointing(layer: nn.Module) -> Iterator[None]:
    """A layer takes a cache only while it does not checkpoint by itself."""
    before = getattr(layer, "gradient_checkpointing", False)
    if not before:
        yield
        return
    layer.gradient_checkpointing = False
    try:
        yield
    finally:
        layer.gradient_checkpointing = before
