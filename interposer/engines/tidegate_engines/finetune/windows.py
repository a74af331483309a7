"""A causal language model, one layer and one token window at a time.

What a layer is given beside its input (mask, rotations, positions) is what the model's own forward gives
its first layer: it is run until there, and cut into windows. So padding, packing and attention
implementations mean what they mean to the model.

The exact form, for a window ``[lo, hi)`` of layer ``n`` in the backward pass::

    out, k, v = layer_n(X_n[lo:hi]; past K_n[:lo], V_n[:lo] as leaves)
    d(<out, dY[lo:hi]> + <k, dK[lo:hi]> + <v, dV[lo:hi]>) gives dX[lo:hi], the adapter's part, and what
    is added to dK[:lo] and dV[:lo]

with the windows from the last to the first, so that ``dK[lo:hi]`` is whole when its window comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .cache import WindowCache

#: A token window: from its first token to before its last.
Window = tuple[int, int]

#: What a token without a label has in its place (transformers' and torch's own).
IGNORED = -100


def every(size: int) -> Callable[[int], list[Window]]:
    """Cuts a sample of so many tokens into windows of ``size``, the last one shorter."""
    if size < 1:
        raise ValueError(f"a window has at least one token, not {size}")
    return lambda length: [(lo, min(lo + size, length)) for lo in range(0, length, size)]


class _Reached(Exception):
    """The model's own forward has come to its first layer."""


@dataclass(slots=True)
class Prelude:
    """What a model's own forward does before its first layer."""

    #: The first layer's input, ``[batch, tokens, hidden]``.
    hidden: torch.Tensor
    #: What every layer gets beside its input.
    given: dict[str, Any]

    def of(self, window: Window) -> dict[str, Any]:
        """What a layer gets for a window."""
        lo, hi = window
        given = dict(self.given)
        given["attention_mask"] = self._mask(lo, hi)
        cos, sin = given["position_embeddings"]
        given["position_embeddings"] = (cos[:, lo:hi], sin[:, lo:hi])
        if (positions := given.get("position_ids")) is not None:
            given["position_ids"] = positions[:, lo:hi]
        return given

    def _mask(self, lo: int, hi: int) -> torch.Tensor | None:
        mask = self.given.get("attention_mask")
        if mask is not None:
            return mask[:, :, lo:hi, :hi]
        if lo == 0 or hi - lo == 1:
            return None  # plainly causal, or one token that sees all before it
        rows = torch.ones(hi - lo, hi, dtype=torch.bool, device=self.hidden.device)
        return rows.tril(diagonal=lo)[None, None]


class Model:
    """The layers of a causal language model, with whatever adapter is in them."""

    def __init__(
        self, model: nn.Module, compute: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        """``compute``: the context the model runs in, such as a trainer's autocast."""
        self.whole = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.embedding: nn.Module = base.get_input_embeddings()
        self.layers: Sequence[nn.Module] = list(base.model.layers)
        self._norm: nn.Module = base.model.norm
        self._head: nn.Module = base.get_output_embeddings()
        self._base = base
        self._compute = compute

    def modules(self, layer: int) -> list[nn.Module]:
        """The modules of a layer: -1 is the embedding, N what follows the last of N."""
        if layer < 0:
            return [self.embedding]
        if layer == len(self.layers):
            return [self._norm, self._head]
        return [self.layers[layer]]

    def parameters(self, layer: int, trained: bool) -> list[nn.Parameter]:
        """A layer's trained or frozen parameters, each once."""
        found = (p for module in self.modules(layer) for p in module.parameters())
        return [p for p in dict.fromkeys(found) if p.requires_grad == trained]

    def has_dropout(self) -> bool:
        """Whether what a layer computes depends on the random state."""
        dropouts = (m for m in self.whole.modules() if isinstance(m, nn.Dropout))
        attention = getattr(self._base.config, "attention_dropout", 0.0)
        return bool(attention) or any(m.p > 0 for m in dropouts)

    def prelude(self, inputs: Mapping[str, Any]) -> Prelude:
        """Runs the model's own forward until its first layer."""
        reached: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            reached.append((args, kwargs))
            raise _Reached

        told = {k: v for k, v in inputs.items() if k not in ("labels", "shift_labels")}
        first = self.layers[0]
        hook = first.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with torch.no_grad(), self._compute(), _without_checkpointing(first):
                self.whole(**told)
        except _Reached:
            pass
        finally:
            hook.remove()
        args, kwargs = reached[0]
        hidden = args[0] if args else kwargs.pop("hidden_states")
        return Prelude(hidden.detach(), {**kwargs, "use_cache": False})

    def forward(
        self,
        layer: int,
        hidden: torch.Tensor,
        prelude: Prelude,
        window: Window,
        past: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A layer's output, keys and values for a window, whose input is ``hidden``."""
        cache = WindowCache(past)
        module = self.layers[layer]
        given = {**prelude.of(window), "past_key_values": cache}
        with self._compute(), _without_checkpointing(module):
            out = module(hidden, **given)
        out = out[0] if isinstance(out, tuple) else out
        if cache.own is None:
            raise RuntimeError(f"layer {layer} ({type(module).__name__}) did not update its cache")
        return out, *cache.own

    def head(
        self, hidden: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int
    ) -> torch.Tensor:
        """A window's share of the loss: its sum over tokens, by all ``items`` of the batch."""
        with self._compute():
            logits = self._head(self._norm(hidden))
            return self._base.loss_function(
                logits=logits,
                labels=None,
                shift_labels=labels.contiguous(),
                vocab_size=self._base.config.vocab_size,
                num_items_in_batch=items,
            )


def shifted(inputs: Mapping[str, Any]) -> torch.Tensor:
    """The token that each token has to predict, ``[batch, tokens]``; :data:`IGNORED` where none."""
    if (labels := inputs.get("shift_labels")) is not None:
        return labels
    return nn.functional.pad(inputs["labels"], (0, 1), value=IGNORED)[..., 1:]


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
