"""Whole micro-batches as units: for models whose layers cannot be run one by one in windows.

The framework's forward and backward run as they are, whatever the model and its loss. Only the frozen weights of its
decoder layers are held (``held``): before a layer's forward, and again before its backward, its weights are made
present, and before the next layer's it is asked what was lost meanwhile. If that was of the layer under way, what the
micro-batch adds to the gradients is garbage: all of it is dropped, the random state is put back, and the micro-batch is
run again. So a reclaim costs one micro-batch at most, and never a bit.

Layers are found as transformers marks them: what can be checkpointed. What somebody's own loss counts beside the loss
(TRL's accuracy, say) counts a micro-batch that is run again twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from .held import Held, Kind, Memory, PlainMemory
from .machine import TAKEN_OUTSIDE, Counts, Phase, Unit
from .weights import Weights

Result = TypeVar("Result")


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The outermost of a model's layers that can be checkpointed."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module not in inside:
            found.append(module)
            inside.update(module.modules())
    return found


def why_not(model: nn.Module) -> str | None:
    """Why nothing of a model can be taken at all, in one line; None where it can."""
    layers = layers_of(model)
    if not layers:
        return "it has no layers that transformers marks as such"
    if not any(own for own in _own(model, layers)):
        return "none of its weights is frozen, so nothing of it can be made again"
    parameters = [p for layer in layers for p in layer.parameters()]
    if len({p.device for p in parameters}) > 1:
        return "its layers lie on several devices"
    if any(p.device.type == "meta" for p in parameters):
        return "its weights are not loaded"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_world_size() > 1:
            return "it is trained by more than one rank"
    return None


def _own(model: nn.Module, layers: list[nn.Module]) -> list[list[torch.Tensor]]:
    """Each layer's frozen weights, but for those that are somebody else's too."""
    places: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            places[parameter.data_ptr()] = places.get(parameter.data_ptr(), 0) + 1
    return [
        [p for p in layer.parameters() if not p.requires_grad and places[p.data_ptr()] == 1] for layer in layers
    ]


class Plain:
    """Runs micro-batches of one model."""

    def __init__(
        self, model: nn.Module, memory: Memory | None = None, before_unit: Callable[[Unit], None] | None = None
    ) -> None:
        """``before_unit`` may wait; it is told of each layer."""
        self.layers = layers_of(model)
        self.memory = memory if memory is not None else PlainMemory()
        #: Its units are micro-batches.
        self.counts = Counts()
        #: Told of each micro-batch that was run, and whether it stands.
        self.ran: Callable[[bool], None] = lambda _: None
        self._before_unit = before_unit
        self._model = weakref.ref(model)
        self._trained = self._trains()
        self._weights = Weights(self.memory, self._may_go)
        self._weights.begin()
        self._missing: set[Held] = set()
        #: Whose weights are read now.
        self._under: Held | None = None
        self._inside = self._garbage = False
        self._hooks = []
        for at, layer in enumerate(self.layers):
            self._hooks += [
                layer.register_forward_pre_hook(partial(self._begin, Unit(Phase.FORWARD, at))),
                layer.register_forward_hook(partial(self._end, Unit(Phase.BACKWARD, at))),
            ]

    def detach(self) -> None:
        """The model as it was, with all of its weights."""
        for hook in self._hooks:
            hook.remove()
        for name in list(self._missing):
            self._reload(name)

    def _trains(self) -> list[torch.Tensor]:
        model = self._model()
        return [] if model is None else [p for p in model.parameters() if p.requires_grad]

    def _may_go(self) -> list[list[torch.Tensor]]:
        model = self._model()
        return [[] for _ in self.layers] if model is None else _own(model, self.layers)

    def step(self, work: Callable[[], Result]) -> Result:
        """Runs a micro-batch, forward and backward, until nothing of it was lost."""
        self._weights.look(self._settle, self._missing)
        self._trained = self._trains()
        before = [p.grad for p in self._trained]
        state = _random_state()
        try:
            while True:
                for parameter in self._trained:
                    parameter.grad = None
                self._garbage, self._inside = False, True
                result = work()
                self._settle()
                self.counts.units += 1
                self.ran(not self._garbage)
                if not self._garbage:
                    break
                self.counts.units_redone += 1
                self._restore(state)
        except BaseException:
            for parameter, grad in zip(self._trained, before, strict=True):
                parameter.grad = grad
            raise
        finally:
            self._inside, self._under = False, None
        for parameter, grad in zip(self._trained, before, strict=True):
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)
        return result

    # Around a layer.

    def _begin(self, unit: Unit, *_: Any) -> None:
        self._settle()
        # What the layer before has read is done with.
        self._under = None
        if self._before_unit is not None:
            self._before_unit(unit)
        name = Held(unit.layer, Kind.WEIGHTS)
        if not self._inside:
            self._weights.look(self._settle, self._missing)
        if name not in self._weights:
            return
        while name in self._missing:
            self._reload(name)
        self.memory.fetch([name])
        self._under = name

    def _end(self, backward: Unit, layer: nn.Module, given: Any, output: Any) -> None:
        # What comes back to a layer comes through what it gave.
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(self._begin, backward))
        self._settle()
        if self._garbage and not self._inside:
            self._garbage = False
            raise RuntimeError(TAKEN_OUTSIDE.format(layer=self._under.layer if self._under else "?"))

    def _settle(self) -> None:
        """Waits for the device, then asks what was lost: in this order, or a loss is seen too early."""
        self._wait()
        if lost := set(self.memory.poll()):
            self.counts.reclaims += 1
            self._missing |= lost
            self._weights.lost(lost)
        if self._under in self._missing:
            self._garbage = True

    def _wait(self) -> None:
        if self._trained and (device := self._trained[0].device).type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def _reload(self, name: Held) -> None:
        self.memory.again(name)
        self._missing.discard(name)
        self._weights.load(name)
        self.memory.store([name])
        # A loss while it was made is found here, and it is missing again.
        self._settle()

    def _restore(self, state: Any) -> None:
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])


def _random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
