"""Where a model's own forward and backward turn into units: at the call of its first decoder layer.

The first layer's call runs all layers by the machine and answers with what comes out of the last; the calls
of the others answer with what they are given. So embedding, masks, norm, output matrix and loss are run by
the model and the script as they are, and autograd sees one node whose backward is the machine's. Whatever a
script does with the output (transformers' loss, TRL's, its own) and with gradients (accumulation, clipping,
autocast, scaling) means what it means.

``GradientCheckpointingLayer.__call__`` is replaced once for the process; a layer without a place in a seam
takes the way it always took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .machine import Batch, Machine
from .why_not import decoder
from .windows import Given, Layers

log = logging.getLogger("tidegate.finetune")

#: Where a layer keeps its place: in its own dictionary, beside what torch has there.
_PLACE = "_tidegate_place"


class _Pass(torch.autograd.Function):
    """All layers of a model, as one node."""

    @staticmethod
    def forward(
        ctx: Any, machine: Machine, given: Given, hidden: torch.Tensor, *trained: nn.Parameter
    ) -> torch.Tensor:
        ctx.machine, ctx.parameters = machine, trained
        # Whoever steps an optimizer between the passes hears of it from autograd. It saves no biases either.
        ctx.save_for_backward(*(p for p in trained if p.dim() > 1))
        ctx.batch, output = machine.forward(hidden, given, remembered=True)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors
        batch: Batch | None = ctx.batch
        if batch is None:
            raise RuntimeError("backward through the same layers a second time: what they had saved is gone")
        kept = torch._C._autograd._get_current_graph_task_keep_graph()
        if not kept:
            ctx.batch = None
        dx = ctx.machine.backward(batch, dy, ctx.needs_input_grad[2], kept)
        return None, None, dx, *(batch.grads.get(p) for p in ctx.parameters)


class Seam:
    """One model's layers, and what becomes of their calls."""

    def __init__(self, layers: Layers, machine: Machine) -> None:
        self.layers = layers
        self.machine = machine
        self._inside = False
        #: What the first layer answered with, while the model's own loop goes on.
        self._output: torch.Tensor | None = None

    def called(
        self, at: int, original: Callable[..., torch.Tensor], hidden: torch.Tensor, words: dict[str, Any]
    ) -> torch.Tensor:
        """A layer is called, by the model or by the machine."""
        if self._inside:
            return original(hidden, **words)
        if at == 0:
            self._output = None
            if self._plain(words):
                return self._alone(at, original, hidden, words)
            self._output = hidden = self._run(hidden, words)
        elif self._output is None:
            return self._alone(at, original, hidden, words)
        elif hidden is not self._output:
            raise RuntimeError(f"layer {at} was given something else than what the layers below it made")
        if at + 1 == len(self.layers):
            self._output = None
        return hidden

    def _plain(self, words: dict[str, Any]) -> bool:
        """Whether a call has what only the layers themselves understand: earlier tokens, somebody's hooks."""
        past = words.get("past_key_values")
        if past is not None and past.get_seq_length() > 0:
            return True
        return any(layer._forward_hooks or layer._forward_pre_hooks for layer in self.layers.all)

    def _alone(
        self, at: int, original: Callable[..., torch.Tensor], hidden: torch.Tensor, words: dict[str, Any]
    ) -> torch.Tensor:
        """A layer as it is, whose weights may be taken like any."""
        with self.machine.as_it_is(at):
            return original(hidden, **words)

    def _run(self, hidden: torch.Tensor, words: dict[str, Any]) -> torch.Tensor:
        given = Given(words, _autocast(hidden.device.type))
        trained = [p for n in range(len(self.layers)) for p in self.layers.parameters(n, True)]
        self._inside = True
        try:
            if torch.is_grad_enabled():
                return _Pass.apply(_Outside(self), given, hidden, *trained)
            past = words.get("past_key_values")
            keep = None if past is None else past.update
            return self.machine.forward(hidden, given, remembered=False, keep=keep)[1]
        finally:
            self._inside = False


class _Outside:
    """The machine of a seam, for a backward pass that begins when no call is under way."""

    def __init__(self, seam: Seam) -> None:
        self._seam = seam

    def forward(self, *arguments: Any, **words: Any) -> Any:
        return self._seam.machine.forward(*arguments, **words)

    def backward(self, *arguments: Any) -> Any:
        before, self._seam._inside = self._seam._inside, True
        try:
            return self._seam.machine.backward(*arguments)
        finally:
            self._seam._inside = before


def _autocast(kind: str) -> Callable[[], AbstractContextManager[Any]]:
    """The autocast that is in force, to be made again in the backward pass."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    # Its cache would keep a copy of a weight beyond the unit in which that may be taken.
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)


@cache
def _listen() -> None:
    """Puts the seam's question before every layer's call. Once."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    before = GradientCheckpointingLayer.__call__

    def call(layer: nn.Module, *args: Any, **words: Any) -> Any:
        place = layer.__dict__.get(_PLACE)
        if place is None:
            return before(layer, *args, **words)
        seam, at = place
        hidden = args[0] if args else words.pop("hidden_states")
        return seam.called(at, lambda *a, **w: before(layer, *a, **w), hidden, words)

    GradientCheckpointingLayer.__call__ = call


def seam_of(model: Any) -> Seam | None:
    """The seam of a model that has one."""
    inner = decoder(model)
    place = inner.layers[0].__dict__.get(_PLACE) if inner is not None and len(inner.layers) else None
    return place[0] if place else None


def attach(model: Any, make: Callable[[Layers], Machine] = Machine) -> Machine:
    """Runs a model's layers by a machine from now on. The model is one that ``why_not`` says nothing of."""
    if (known := seam_of(model)) is not None:
        return known.machine
    inner = decoder(model)
    used = getattr(inner.config, "num_hidden_layers", len(inner.layers))
    layers = Layers(inner.layers[:used], getattr(inner.config, "attention_dropout", 0.0))
    seam = Seam(layers, make(layers))
    _listen()
    for at, layer in enumerate(layers.all):
        layer.__dict__[_PLACE] = (seam, at)
    return seam.machine


def detach(model: Any) -> None:
    """The model as it was."""
    if (seam := seam_of(model)) is not None:
        for layer in seam.layers.all:
            layer.__dict__.pop(_PLACE, None)
