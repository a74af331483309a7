"""Forward and backward of one micro-batch in units that can be stopped, robbed and done again.

A *unit* is one layer of one token window, forward or backward. The order::

    embedding
    for each layer, upwards:     for each window, from the first:  X of the next layer, K, V
    after the last layer:        for each window, from the first:  loss, dY
    for each layer, downwards:   for each window, from the last:   dX, dK, dV, the adapter's part

*The transaction.* What a layer adds to the adapter's gradient is *staged*, and what it hands to the layer
below goes to the second of two buffers. After each unit the device is waited for, and then the memory is
asked what was lost. If that touches what the layer reads or writes, staging and dK, dV are zeroed, what is
missing is made again, and the layer starts over. Only after a layer's last window is staging added and are
the buffers turned. So garbage never leaves a layer, and a reclaim costs at most the layer under way.

What is lost of other layers is made again when their turn comes: weights from a copy on the host, X by the
layer below, K and V by the layer itself, each with the windows it was made with, so bit by bit the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from .held import Held, Kind, Memory, PlainMemory
from .windows import IGNORED, Model, Prelude, Window, every, shifted

#: Tokens of a window where nobody says otherwise: large windows load weights least often, and beyond some
#: hundreds of tokens a layer's matrix products use the device fully.
WINDOW = 512


class Phase(Enum):
    """What is under way."""

    EMBED = "embed"
    FORWARD = "forward"
    HEAD = "head"
    BACKWARD = "backward"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Unit:
    """The cursor: what comes next."""

    phase: Phase
    layer: int = -1
    #: Index of the window in the order of its pass.
    window: int = 0


@dataclass(slots=True)
class Counts:
    """What a machine has done so far."""

    units: int = 0
    #: Units done again, or done to make held state again.
    units_redone: int = 0
    #: Polls that found a loss.
    reclaims: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Batch:
    """One micro-batch under way. All of it is kept but ``prelude.hidden``."""

    inputs: Mapping[str, Any]
    prelude: Prelude
    labels: torch.Tensor
    items: torch.Tensor | int
    scale: float
    seed: int | None
    forward: list[Window]
    backward: list[Window]
    loss: torch.Tensor
    #: Held tensors by name.
    held: dict[Held, torch.Tensor] = field(default_factory=dict)
    #: dY, and where the layer under way puts dX.
    turns: list[torch.Tensor] = field(default_factory=list)
    #: dK and dV of the layer under way.
    past: list[torch.Tensor] = field(default_factory=list)
    #: The gradient of each of the layer's trained parameters.
    staging: list[torch.Tensor] = field(default_factory=list)
    #: The loss of the windows of the layer after the last.
    staged_loss: torch.Tensor | None = None


class Machine:
    """Runs micro-batches of one model and adds to its trained parameters' ``grad``."""

    def __init__(
        self,
        model: Model,
        memory: Memory | None = None,
        forward: Callable[[int], list[Window]] = every(WINDOW),
        backward: Callable[[int], list[Window]] | None = None,
        before_unit: Callable[[Unit], None] | None = None,
    ) -> None:
        """``forward`` and ``backward`` cut a sample into windows; ``before_unit`` may wait."""
        self.model = model
        self.memory = memory if memory is not None else PlainMemory()
        self.counts = Counts()
        self._cut_forward = forward
        self._cut_backward = backward or forward
        self._before_unit = before_unit
        self._dropout = model.has_dropout()
        self._last = len(model.layers)
        self._missing: set[Held] = set()
        self._trained = {n: model.parameters(n, True) for n in range(-1, self._last + 1)}
        #: Below the lowest layer with something trained, nobody asks for a gradient.
        self._lowest = min((n for n, found in self._trained.items() if found), default=self._last)
        if self._lowest < 0:
            raise ValueError("the embedding is trained: it has no windows")
        #: Frozen weights, and the copies on the host that they are made again from.
        self._copies: dict[Held, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.cursor = Unit(Phase.DONE)
        self.batch: Batch | None = None

    def copy_weights(self) -> None:
        """Copies all frozen weights to the host: from now on they may be taken.

        Weights that several layers share are never taken.
        """
        owners: dict[int, int] = {}
        frozen = {n: self.model.parameters(n, False) for n in range(-1, self._last + 1)}
        for parameters in frozen.values():
            for parameter in parameters:
                at = parameter.data_ptr()
                owners[at] = owners.get(at, 0) + 1
        for layer, parameters in frozen.items():
            own = [p.data for p in parameters if owners[p.data_ptr()] == 1]
            name = Held(layer, Kind.WEIGHTS)
            if own:
                self._copies[name] = [(p, p.detach().to("cpu", copy=True)) for p in own]
                self.memory.adopt(name, own)

    # A micro-batch.

    def run(
        self, inputs: Mapping[str, Any], items: torch.Tensor | int | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """Forward and backward of a micro-batch; its loss.

        ``inputs``: what the model's forward takes, with ``labels``. ``items``: the tokens that the loss is
        divided by, by default those of this micro-batch that have a label. ``scale`` multiplies loss and
        gradients.
        """
        self.begin(inputs, items, scale)
        while self.cursor.phase is not Phase.DONE:
            self.advance()
        return self.finish()

    def begin(
        self, inputs: Mapping[str, Any], items: torch.Tensor | int | None = None, scale: float = 1.0
    ) -> None:
        """Puts the cursor before the first unit of a micro-batch."""
        self.abandon()
        labels = shifted(inputs)
        length = labels.shape[-1]
        forward = self._cut_forward(length)
        # What a dropout drops hangs on the window, so both passes need the same.
        backward = forward if self._dropout else self._cut_backward(length)
        seed = int(torch.randint(2**62, ()).item()) if self._dropout else None
        if items is None:
            items = (labels != IGNORED).sum()
        empty = Prelude(labels, {})
        loss = torch.zeros((), device=labels.device)
        self.batch = Batch(inputs, empty, labels, items, scale, seed, forward, backward, loss)
        self.counts.tokens += labels.numel()
        self.cursor = Unit(Phase.EMBED)

    def finish(self) -> torch.Tensor:
        """The loss of the micro-batch that is done."""
        if self.batch is None or self.cursor.phase is not Phase.DONE:
            raise RuntimeError(f"the micro-batch is not done: {self.cursor}")
        loss = self.batch.loss
        self.abandon()
        return loss

    def abandon(self) -> None:
        """Drops what is left of a micro-batch. Gradients that layers have added stay."""
        if self.batch is not None:
            for name in list(self.batch.held):
                self._drop(name)
        self.batch = None
        self.cursor = Unit(Phase.DONE)

    def advance(self) -> None:
        """Runs one unit, and commits its layer if that was the last."""
        batch, unit = self._under_way(), self.cursor
        if self._before_unit is not None:
            self._before_unit(unit)
        self._present(self._reads(unit))
        getattr(self, f"_{unit.phase.value}")(batch, unit)
        self.counts.units += 1
        self._settle()
        if self._missing & self._touches(unit):
            self._start_over(batch, unit)
        else:
            self.cursor = self._after(batch, unit)
            if (self.cursor.phase, self.cursor.layer) != (unit.phase, unit.layer):
                self._commit(batch, unit)

    def _under_way(self) -> Batch:
        if self.batch is None:
            raise RuntimeError("no micro-batch is under way")
        return self.batch

    def _after(self, batch: Batch, unit: Unit) -> Unit:
        windows = batch.backward if unit.phase is Phase.BACKWARD else batch.forward
        if unit.phase is not Phase.EMBED and unit.window + 1 < len(windows):
            return Unit(unit.phase, unit.layer, unit.window + 1)
        match unit.phase:
            case Phase.EMBED:
                return Unit(Phase.FORWARD, 0)
            case Phase.FORWARD if unit.layer + 1 < self._last:
                return Unit(Phase.FORWARD, unit.layer + 1)
            case Phase.FORWARD:
                return Unit(Phase.HEAD, self._last)
            case _ if unit.layer > self._lowest:
                return Unit(Phase.BACKWARD, unit.layer - 1)
        return Unit(Phase.DONE)

    # What a unit reads, and what its layer may not lose.

    def _reads(self, unit: Unit) -> list[Held]:
        n = unit.layer
        reads = [Held(n, Kind.WEIGHTS)]
        if unit.phase is not Phase.EMBED:
            reads.append(Held(n, Kind.INPUT))
        if unit.phase is Phase.BACKWARD:
            reads += [Held(n, Kind.KEYS), Held(n, Kind.VALUES)]
        return reads

    def _touches(self, unit: Unit) -> set[Held]:
        n = unit.layer
        touched = set(self._reads(unit))
        if unit.phase in (Phase.EMBED, Phase.FORWARD):
            touched |= {Held(n, Kind.KEYS), Held(n, Kind.VALUES), Held(n + 1, Kind.INPUT)}
        return touched

    def _settle(self) -> None:
        """Waits for the device, then asks what was lost: in this order, or a loss is seen too early."""
        self._wait()
        if lost := self.memory.poll():
            self.counts.reclaims += 1
            self._missing |= lost

    def _wait(self) -> None:
        batch = self._under_way()
        if batch.labels.is_cuda:
            torch.cuda.current_stream(batch.labels.device).synchronize()

    def _start_over(self, batch: Batch, unit: Unit) -> None:
        self.counts.units_redone += unit.window + 1
        for tensor in (*batch.staging, *batch.past):
            tensor.zero_()
        batch.staged_loss = None
        if unit.phase in (Phase.EMBED, Phase.FORWARD):
            # What the layer writes: memory for it comes again, with any content, as it came first.
            for name in self._touches(unit) - set(self._reads(unit)):
                if name in self._missing:
                    self._regain(name)
        self.cursor = Unit(unit.phase, unit.layer)

    def _commit(self, batch: Batch, unit: Unit) -> None:
        """A layer is done and nothing that it touched was lost."""
        for parameter, staged in zip(self._trained[unit.layer], batch.staging, strict=False):
            staged = staged.to(parameter.dtype)
            if parameter.grad is None:
                parameter.grad = staged.clone()
            else:
                parameter.grad += staged
        batch.staging = []
        if batch.staged_loss is not None:
            batch.loss = batch.loss + batch.staged_loss
            batch.staged_loss = None
        if unit.phase is Phase.BACKWARD:
            batch.turns.reverse()
            batch.past = []
            for kind in (Kind.INPUT, Kind.KEYS, Kind.VALUES):
                self._drop(Held(unit.layer, kind))
        elif unit.phase is Phase.HEAD:
            self._drop(Held(unit.layer, Kind.INPUT))

    # Making again what is missing.

    def _present(self, names: Sequence[Held]) -> None:
        while missing := [name for name in names if name in self._missing]:
            self._make(missing[0])

    def _regain(self, name: Held) -> None:
        self.memory.again(name)
        self._missing.discard(name)

    def _make(self, name: Held) -> None:
        batch = self._under_way()
        n = name.layer
        match name.kind:
            case Kind.WEIGHTS:
                self._regain(name)
                with torch.no_grad():
                    for weight, copy in self._copies[name]:
                        weight.copy_(copy)
            case Kind.INPUT if n == 0:
                self._present([Held(-1, Kind.WEIGHTS)])
                self._regain(name)
                batch.held[name].copy_(self.model.prelude(batch.inputs).hidden)
                self.counts.units_redone += 1
            case Kind.INPUT:
                below = [Held(n - 1, Kind.WEIGHTS), Held(n - 1, Kind.INPUT)]
                self._make_by_layer(n - 1, below, name)
                return
            case _:
                self._make_by_layer(n, [Held(n, Kind.WEIGHTS), Held(n, Kind.INPUT)], None)
                return
        # A loss while it was made is found here, and it is missing again.
        self._settle()

    def _make_by_layer(self, layer: int, reads: list[Held], output: Held | None) -> None:
        """Runs a layer's forward again: its keys and values, and its output where that is missing."""
        batch = self._under_way()
        self._present(reads)
        writes = [Held(layer, Kind.KEYS), Held(layer, Kind.VALUES)] + ([output] if output else [])
        for name in writes:
            if name in self._missing:
                self._regain(name)
        for window in range(len(batch.forward)):
            self._forward_window(batch, layer, window, output is not None)
            self.counts.units_redone += 1
        self._settle()
        if self._missing & set(reads):
            # Whatever was written may be garbage.
            self._missing |= set(writes)

    # The units.

    def _place(self, batch: Batch, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        tensor = batch.held.get(name)
        if tensor is None:
            tensor = batch.held[name] = self.memory.place(name, shape, like)
        return tensor

    def _drop(self, name: Held) -> None:
        if self.batch is not None and self.batch.held.pop(name, None) is not None:
            self.memory.drop(name)
        self._missing.discard(name)

    @contextmanager
    def _seeded(self, batch: Batch, layer: int, window: Window) -> Iterator[None]:
        """The random state of a window, the same whenever it is computed."""
        if batch.seed is None:
            yield
            return
        devices = [batch.labels.device] if batch.labels.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed((batch.seed + layer * 1_000_003 + window[0]) % 2**63)
            yield

    def _embed(self, batch: Batch, unit: Unit) -> None:
        prelude = self.model.prelude(batch.inputs)
        hidden = prelude.hidden
        prelude.hidden = self._place(batch, Held(0, Kind.INPUT), hidden.shape, hidden)
        prelude.hidden.copy_(hidden)
        batch.prelude = prelude

    def _forward(self, batch: Batch, unit: Unit) -> None:
        self._forward_window(batch, unit.layer, unit.window, True)

    def _forward_window(self, batch: Batch, layer: int, window: int, output: bool) -> None:
        lo, hi = batch.forward[window]
        hidden = batch.held[Held(layer, Kind.INPUT)]
        past = self._past(batch, layer, lo)
        with torch.no_grad(), self._seeded(batch, layer, (lo, hi)):
            out, keys, values = self.model.forward(
                layer, hidden[:, lo:hi], batch.prelude, (lo, hi), past
            )
            length = batch.labels.shape[-1]
            for kind, new in ((Kind.KEYS, keys), (Kind.VALUES, values)):
                shape = (*new.shape[:-2], length, new.shape[-1])
                self._place(batch, Held(layer, kind), shape, new)[..., lo:hi, :] = new
            if output:
                shape = (out.shape[0], length, out.shape[2])
                self._place(batch, Held(layer + 1, Kind.INPUT), shape, out)[:, lo:hi] = out

    def _past(self, batch: Batch, layer: int, lo: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        if lo == 0:
            return None
        keys, values = (batch.held[Held(layer, kind)] for kind in (Kind.KEYS, Kind.VALUES))
        return keys[..., :lo, :], values[..., :lo, :]

    def _head(self, batch: Batch, unit: Unit) -> None:
        lo, hi = batch.forward[unit.window]
        hidden = batch.held[Held(unit.layer, Kind.INPUT)][:, lo:hi].detach().requires_grad_()
        trained = self._staged(batch, unit.layer)
        with self._seeded(batch, unit.layer, (lo, hi)):
            loss = self.model.head(hidden, batch.labels[:, lo:hi], batch.items) * batch.scale
        grads = torch.autograd.grad(loss, [hidden, *trained], allow_unused=True)
        if not batch.turns:
            shape = (hidden.shape[0], batch.labels.shape[-1], hidden.shape[2])
            batch.turns = [hidden.new_zeros(shape) for _ in range(2)]
        _write(batch.turns[0][:, lo:hi], grads[0])
        _add(batch.staging, grads[1:])
        loss = loss.detach()
        batch.staged_loss = loss if batch.staged_loss is None else batch.staged_loss + loss

    def _backward(self, batch: Batch, unit: Unit) -> None:
        n = unit.layer
        lo, hi = batch.backward[-1 - unit.window]
        hidden = batch.held[Held(n, Kind.INPUT)][:, lo:hi].detach()
        hidden.requires_grad_(n > self._lowest)
        past = self._past(batch, n, lo)
        leaves = [t.detach().requires_grad_() for t in past] if past else []
        trained = self._staged(batch, n)
        with self._seeded(batch, n, (lo, hi)):
            window_past = (leaves[0], leaves[1]) if leaves else None
            outputs = self.model.forward(n, hidden, batch.prelude, (lo, hi), window_past)
        if not batch.past:
            # Sums over windows are kept in f32 at least: bf16 would lose the small ones.
            held = [batch.held[Held(n, kind)] for kind in (Kind.KEYS, Kind.VALUES)]
            batch.past = [torch.zeros_like(t, dtype=_wide(t.dtype)) for t in held]
        dy, dx = batch.turns
        given = [dy[:, lo:hi], *(d[..., lo:hi, :] for d in batch.past)]
        sources = [(o, g.to(o.dtype)) for o, g in zip(outputs, given, strict=True) if o.requires_grad]
        wanted = [t for t in (hidden, *leaves, *trained) if t.requires_grad]
        if not sources or not wanted:
            return
        found = torch.autograd.grad(
            [o for o, _ in sources], wanted, [g for _, g in sources], allow_unused=True
        )
        grads = iter(found)
        if hidden.requires_grad:
            _write(dx[:, lo:hi], next(grads))
        for into in batch.past[: len(leaves)]:
            if (grad := next(grads)) is not None:
                into[..., :lo, :] += grad
        _add(batch.staging, list(grads))

    def _staged(self, batch: Batch, layer: int) -> list[torch.nn.Parameter]:
        trained = self._trained[layer]
        if not batch.staging:
            batch.staging = [torch.zeros_like(p, dtype=_wide(p.dtype)) for p in trained]
        return trained


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _write(into: torch.Tensor, grad: torch.Tensor | None) -> None:
    if grad is None:
        into.zero_()
    else:
        into.copy_(grad)


def _add(staging: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    for staged, grad in zip(staging, grads, strict=True):
        if grad is not None:
            staged += grad
