"""Forward and backward of a model's layers in units that can be stopped, robbed and done again.

A *unit* is one layer of one token window, forward or backward. The order::

    for each layer, upwards:     for each window, from the first:  X of the next layer, K, V
    for each layer, downwards:   for each window, from the last:   dX, dK, dV, the adapter's part

What comes before the layers and after them is the model's own, and the framework's: embedding, norm,
output matrix, loss.

*The transaction.* What a layer adds to the adapter's gradient is *staged*, and what it hands to the layer
below goes to the second of two buffers. After each unit the device is waited for, and then the memory is
asked what was lost. If that touches what the layer reads or writes, staging and dK, dV are zeroed, what is
missing is made again, and the layer starts over. Only after a layer's last window is staging committed and
are the buffers turned. So garbage never leaves a layer, and a reclaim costs at most the layer under way.

What is lost of other layers is made again when their turn comes: weights from a copy on the host, X by the
layer below, K and V by the layer itself, each with the windows it was made with, so bit by bit the same.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from .held import Held, Kind, Memory, PlainMemory
from .weights import WRITTEN_BETWEEN, Weights
from .windows import Given, Layers, Window, every

#: Tokens of a window where nobody says otherwise: large windows load weights least often, and beyond some
#: hundreds of tokens a layer's matrix products use the device fully.
WINDOW = 512


#: Of a call that cannot be done again.
TAKEN_OUTSIDE = (
    "memory of layer {layer} was taken while the model ran outside of training: what came out is wrong. "
    "Evaluate and generate after the training, or in another process"
)


class Phase(Enum):
    """What is under way."""

    FORWARD = "forward"
    BACKWARD = "backward"
    DONE = "done"


class Unit(NamedTuple):
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


@dataclass(slots=True, weakref_slot=True, eq=False)
class Batch:
    """One pass through the layers. All of it is kept but what ``held`` names."""

    number: int
    given: Given
    #: What goes into the first layer, and what comes out of the last.
    first: torch.Tensor
    output: torch.Tensor | None
    seed: int | None
    #: Writes to frozen weights before it.
    writes: int
    #: Whether a backward pass may follow.
    remembered: bool
    #: Whether another backward pass may follow.
    kept: bool
    forward: list[Window]
    backward: list[Window]
    #: Told of a layer's keys and values once they are right: somebody's cache.
    keep: Callable[[torch.Tensor, torch.Tensor, int], object] | None = None
    #: Held tensors by name.
    held: dict[Held, torch.Tensor] = field(default_factory=dict)
    #: dY, and where the layer under way puts dX.
    turns: list[torch.Tensor] = field(default_factory=list)
    #: dK and dV of the layer under way.
    past: list[torch.Tensor] = field(default_factory=list)
    #: The gradient of each of the layer's trained parameters.
    staging: list[torch.Tensor] = field(default_factory=list)
    #: The gradients of layers that are done.
    grads: dict[torch.nn.Parameter, torch.Tensor] = field(default_factory=dict)
    #: The trained parameters of each layer.
    trained: list[list[torch.nn.Parameter]] = field(default_factory=list)
    #: The lowest layer that somebody asks a gradient of, and whether its input's is asked for.
    lowest: int = 0
    wants_input: bool = False

    def name(self, layer: int, kind: Kind) -> Held:
        """A piece of this pass."""
        return Held(layer, kind, self.number)

    def input(self, layer: int) -> torch.Tensor:
        """What a layer reads."""
        return self.first if layer == 0 else self.held[self.name(layer, Kind.INPUT)]


@dataclass(slots=True)
class Around:
    """What is the same for all windows of a layer in one pass, made once: a unit looks it up."""

    forward: bool
    reads: list[Held]
    touches: set[Held]
    writes: list[Held]
    #: Read by the first window, and by those behind it, which read what that has written.
    fetched: list[list[Held]]
    #: The layer's, and what comes behind the last.
    units: list[Unit]
    then: Unit


class Machine:
    """Runs passes through the layers of one model."""

    def __init__(
        self,
        layers: Layers,
        memory: Memory | None = None,
        forward: Callable[[int], list[Window]] = every(WINDOW),
        backward: Callable[[int], list[Window]] | None = None,
        before_unit: Callable[[Unit], None] | None = None,
    ) -> None:
        """``forward`` and ``backward`` cut a sample into windows; ``before_unit`` may wait."""
        self.layers = layers
        self.memory = memory if memory is not None else PlainMemory()
        self.counts = Counts()
        self._cut_forward = forward
        self._cut_backward = backward or forward
        self._before_unit = before_unit
        self._missing: set[Held] = set()
        #: Frozen weights that may be taken.
        self._held_weights = Weights(self.memory, self._own)
        self._batches = 0
        self._around: Around | None = None
        self._weights = [Held(layer, Kind.WEIGHTS) for layer in range(len(layers))]
        self._units: dict[tuple[Phase, int], list[Unit]] = {}
        #: Whose stream is waited for, if anybody's.
        self._cuda: torch.device | None = None
        self.cursor = Unit(Phase.DONE)

    def copy_weights(self) -> None:
        """Copies all frozen weights to the host: from now on they may be taken.

        Weights that several layers share are never taken.
        """
        self._held_weights.begin()

    def _own(self) -> list[list[torch.nn.Parameter]]:
        """Each layer's frozen weights, but for those that are another layer's too."""
        frozen = [self.layers.parameters(n, False) for n in range(len(self.layers))]
        owners = Counter(p.data_ptr() for n in range(len(self.layers)) for p in self.layers.all_parameters(n))
        return [[p for p in own if owners[p.data_ptr()] == 1] for own in frozen]

    def _heed(self) -> None:
        """Takes over what the script has written into frozen weights."""
        self._held_weights.look(self._settle, self._missing)

    # A pass.

    def forward(
        self,
        hidden: torch.Tensor,
        given: Given,
        remembered: bool,
        keep: Callable[[torch.Tensor, torch.Tensor, int], object] | None = None,
    ) -> tuple[Batch, torch.Tensor]:
        """What comes out of the last layer. The pass can be followed by :meth:`backward` if ``remembered``."""
        length = hidden.shape[1]
        self._cuda = device if (device := self.layers.device()).type == "cuda" else None
        self._heed()
        dropout = self.layers.has_dropout()
        cut = self._cut_forward(length)
        self._batches += 1
        batch = Batch(
            number=self._batches,
            given=given,
            first=hidden.detach(),
            output=None,
            seed=int(torch.randint(2**62, ()).item()) if dropout else None,
            writes=self._held_weights.writes,
            remembered=remembered,
            kept=False,
            forward=cut,
            # What a dropout drops hangs on the window, so both passes need the same.
            backward=cut if dropout else self._cut_backward(length),
            keep=keep,
        )
        # Whoever drops the last of a pass drops its memory: a graph that nobody asks a gradient of.
        weakref.finalize(batch, _forget, self.memory, self._missing, batch.held).atexit = False
        if remembered:
            self.counts.tokens += hidden.shape[0] * length
        self.cursor = Unit(Phase.FORWARD, 0)
        with torch.no_grad():
            self._run(batch)
        output, batch.output = batch.output, None
        assert output is not None
        return batch, output

    def backward(
        self, batch: Batch, dy: torch.Tensor, wants_input: bool, kept: bool = False
    ) -> torch.Tensor | None:
        """Fills ``batch.grads``; the gradient of what went into the first layer if that is asked for.

        Another backward pass may follow if ``kept``.
        """
        self._heed()
        if batch.writes != self._held_weights.writes:
            raise RuntimeError(WRITTEN_BETWEEN)
        batch.kept, batch.grads, batch.staging, batch.past = kept, {}, [], []
        batch.trained = [self.layers.parameters(n, True) for n in range(len(self.layers))]
        trained = (n for n, parameters in enumerate(batch.trained) if parameters)
        batch.wants_input = wants_input
        batch.lowest = 0 if wants_input else min(trained, default=len(self.layers))
        batch.turns = [dy.detach().clone(), torch.empty_like(dy)]
        top = len(self.layers) - 1
        self.cursor = Unit(Phase.BACKWARD, top) if batch.lowest <= top else Unit(Phase.DONE)
        with torch.enable_grad():
            self._run(batch)
        dx = batch.turns[0].to(batch.first.dtype) if wants_input else None
        batch.turns = []
        if not kept:
            _forget(self.memory, self._missing, batch.held)
        return dx

    @contextmanager
    def as_it_is(self, layer: int) -> Iterator[None]:
        """Around a call of a layer that is no unit: generation, say. It cannot be done again."""
        name = Held(layer, Kind.WEIGHTS)
        self._heed()
        self.memory.needs({name})
        self._around = None
        while name in self._missing:
            self._reload(name)
        self.memory.fetch([name] if name in self._held_weights else [])
        yield
        self._settle()
        if name in self._missing:
            raise RuntimeError(TAKEN_OUTSIDE.format(layer=layer))

    def _run(self, batch: Batch) -> None:
        self._around = None
        try:
            while self.cursor.phase is not Phase.DONE:
                self.advance(batch)
        except BaseException:
            # A unit that broke off may have read garbage, and the script goes on with the weights.
            self._settle()
            raise

    def advance(self, batch: Batch) -> None:
        """Runs one unit, and commits its layer if that was the last."""
        unit = self.cursor
        if self._before_unit is not None:
            self._before_unit(unit)
        around = self._around
        if around is None:
            around = self._around = self._look(batch, unit)
            self.memory.needs(around.touches)
        if self._missing:
            self._present(batch, around.reads, around.touches)
        window = unit.window
        self.memory.fetch(around.fetched[window > 0])
        if around.forward:
            self._forward(batch, unit)
            self.counts.units += 1
            self.memory.store(around.writes)
        else:
            self._backward(batch, unit)
            self.counts.units += 1
        self._settle()
        if self._missing and not self._missing.isdisjoint(around.touches):
            self._start_over(batch, unit)
            return
        window += 1
        if window < len(around.units):
            self.cursor = around.units[window]
            return
        self.cursor, self._around = around.then, None
        self._commit(batch, unit, around)

    def _units_of(self, phase: Phase, layer: int, windows: int) -> list[Unit]:
        """A layer's, the same in each pass."""
        units = self._units.setdefault((phase, layer), [])
        units += (Unit(phase, layer, window) for window in range(len(units), windows))
        return units if len(units) == windows else units[:windows]

    def _then(self, batch: Batch, unit: Unit) -> Unit:
        """What comes behind a layer."""
        if unit.phase is Phase.FORWARD and unit.layer + 1 < len(self.layers):
            return Unit(Phase.FORWARD, unit.layer + 1)
        if unit.phase is Phase.BACKWARD and unit.layer > batch.lowest:
            return Unit(Phase.BACKWARD, unit.layer - 1)
        return Unit(Phase.DONE)

    # What a unit reads, and what its layer may not lose.

    def _look(self, batch: Batch, unit: Unit) -> Around:
        n, forward = unit.layer, unit.phase is Phase.FORWARD
        reads = self._reads(batch, unit)
        writes = self._writes(batch, n, output=True) if forward else []
        there = reads if reads[0] in self._held_weights else reads[1:]
        windows = batch.forward if forward else batch.backward
        return Around(
            forward,
            reads,
            {*reads, *writes},
            writes,
            [there, [*there, *writes[:2]]],
            self._units_of(unit.phase, n, len(windows)),
            self._then(batch, unit),
        )

    def _reads(self, batch: Batch, unit: Unit) -> list[Held]:
        """The weights, and then what is of the pass."""
        n, number = unit.layer, batch.number
        reads = [self._weights[n]]
        if n > 0:
            reads.append(Held(n, Kind.INPUT, number))
        if unit.phase is Phase.BACKWARD:
            reads += (Held(n, Kind.KEYS, number), Held(n, Kind.VALUES, number))
        return reads

    def _fetch(self, batch: Batch, layer: int, reads: Sequence[Held]) -> None:
        """What a unit reads: also the keys and values of the layer's earlier windows, once there are any."""
        past = (batch.name(layer, kind) for kind in (Kind.KEYS, Kind.VALUES))
        names = dict.fromkeys((*reads, *past))
        self.memory.fetch(name for name in names if name in batch.held or name in self._held_weights)

    def _writes(self, batch: Batch, layer: int, output: bool) -> list[Held]:
        """Keys and values, and the input of the next layer."""
        number = batch.number
        names = [Held(layer, Kind.KEYS, number), Held(layer, Kind.VALUES, number)]
        if output and layer + 1 < len(self.layers):
            names.append(Held(layer + 1, Kind.INPUT, number))
        return names

    def _settle(self) -> None:
        """Waits for the device, then asks what was lost: in this order, or a loss is seen too early."""
        if self._cuda is not None:
            self._wait()
        if lost := set(self.memory.poll()):
            self.counts.reclaims += 1
            self._missing |= lost
            self._held_weights.lost(lost)

    def _wait(self) -> None:
        if self._cuda is not None:
            torch.cuda.current_stream(self._cuda).synchronize()

    def _start_over(self, batch: Batch, unit: Unit) -> None:
        self.counts.units_redone += unit.window + 1
        for tensor in (*batch.staging, *batch.past):
            tensor.zero_()
        if unit.phase is Phase.FORWARD:
            # What the layer writes: memory for it comes again, with any content, as it came first.
            for name in self._writes(batch, unit.layer, output=True):
                if name in self._missing:
                    self._regain(name)
        self.cursor = Unit(unit.phase, unit.layer)

    def _commit(self, batch: Batch, unit: Unit, around: Around) -> None:
        """A layer is done and nothing that it touched was lost."""
        if not around.forward:
            for parameter, staged in zip(batch.trained[unit.layer], batch.staging, strict=False):
                staged = staged.to(parameter.dtype)
                before = batch.grads.get(parameter)
                # A parameter that several layers share has a part of each.
                batch.grads[parameter] = staged if before is None else before + staged
            batch.staging = []
            batch.turns.reverse()
            batch.past = []
        elif batch.keep is not None:
            keys, values = (batch.held[batch.name(unit.layer, kind)] for kind in (Kind.KEYS, Kind.VALUES))
            batch.keep(keys.clone(), values.clone(), unit.layer)
        if not (batch.remembered if around.forward else batch.kept):
            for name in (*around.reads[1:], *around.writes[:2]):
                self._drop(batch, name)

    # Making again what is missing.

    def _present(self, batch: Batch, names: Sequence[Held], touched: AbstractSet[Held]) -> None:
        """Makes what is missing of these, of all that is touched next."""
        while missing := [name for name in names if name in self._missing]:
            self.memory.needs(touched)
            self._make(batch, missing[0])
            # What it took to make it may leave again, and this may not.
            self.memory.needs(touched)

    def _regain(self, name: Held) -> None:
        self.memory.again(name)
        self._missing.discard(name)

    def _make(self, batch: Batch, name: Held) -> None:
        n = name.layer
        match name.kind:
            case Kind.WEIGHTS:
                self._reload(name)
            case Kind.INPUT:
                self._make_by_layer(batch, n - 1, name)
            case _:
                self._make_by_layer(batch, n, None)

    def _reload(self, name: Held) -> None:
        self._regain(name)
        self._held_weights.load(name)
        self.memory.store([name])
        # A loss while it was made is found here, and it is missing again.
        self._settle()

    def _make_by_layer(self, batch: Batch, layer: int, output: Held | None) -> None:
        """Runs a layer's forward again: its keys and values, and its output where that is missing."""
        reads = self._reads(batch, Unit(Phase.FORWARD, layer))
        writes = [batch.name(layer, Kind.KEYS), batch.name(layer, Kind.VALUES)]
        writes += [output] if output else []
        touched = {*reads, *writes}
        self.memory.needs(touched)
        while True:
            self._present(batch, reads, touched)
            for name in writes:
                if name in self._missing:
                    self._regain(name)
            for window in range(len(batch.forward)):
                self._fetch(batch, layer, reads)
                self._forward_window(batch, layer, window, output is not None)
                self.memory.store(self._writes(batch, layer, output is not None))
                self.counts.units_redone += 1
            self._settle()
            # Later windows read the keys and values of earlier ones: one loss makes garbage of all of it.
            if self._missing.isdisjoint(touched):
                return

    # The units.

    def _place(self, batch: Batch, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        tensor = batch.held.get(name)
        if tensor is None:
            tensor = batch.held[name] = self.memory.place(name, shape, like)
        return tensor

    def _drop(self, batch: Batch, name: Held) -> None:
        if batch.held.pop(name, None) is not None:
            self.memory.drop(name)
        self._missing.discard(name)

    @contextmanager
    def _seeded(self, batch: Batch, layer: int, window: Window) -> Iterator[None]:
        """The random state of a window, the same whenever it is computed."""
        if batch.seed is None:
            yield
            return
        devices = [batch.first.device] if batch.first.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed((batch.seed + layer * 1_000_003 + window[0]) % 2**63)
            yield

    def _forward(self, batch: Batch, unit: Unit) -> None:
        self._forward_window(batch, unit.layer, unit.window, True)

    def _forward_window(self, batch: Batch, layer: int, window: int, output: bool) -> None:
        lo, hi = batch.forward[window]
        past = self._past(batch, layer, lo)
        with torch.no_grad(), self._seeded(batch, layer, (lo, hi)):
            hidden = batch.input(layer)[:, lo:hi]
            out, keys, values = self.layers.forward(layer, hidden, batch.given, (lo, hi), past)
            length = batch.first.shape[1]
            for kind, new in ((Kind.KEYS, keys), (Kind.VALUES, values)):
                shape = (*new.shape[:-2], length, new.shape[-1])
                self._place(batch, batch.name(layer, kind), shape, new)[..., lo:hi, :] = new
            if not output:
                return
            shape = (out.shape[0], length, out.shape[2])
            if layer + 1 < len(self.layers):
                into = self._place(batch, batch.name(layer + 1, Kind.INPUT), shape, out)
            else:
                into = batch.output = out.new_empty(shape) if batch.output is None else batch.output
            into[:, lo:hi] = out

    def _past(self, batch: Batch, layer: int, lo: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        if lo == 0:
            return None
        keys, values = (batch.held[batch.name(layer, kind)] for kind in (Kind.KEYS, Kind.VALUES))
        return keys[..., :lo, :], values[..., :lo, :]

    def _backward(self, batch: Batch, unit: Unit) -> None:
        n = unit.layer
        lo, hi = batch.backward[-1 - unit.window]
        hidden = batch.input(n)[:, lo:hi].detach()
        hidden.requires_grad_(n > batch.lowest or batch.wants_input)
        past = self._past(batch, n, lo)
        leaves = [t.detach().requires_grad_() for t in past] if past else []
        trained = self._staged(batch, n)
        with self._seeded(batch, n, (lo, hi)):
            window_past = (leaves[0], leaves[1]) if leaves else None
            outputs = self.layers.forward(n, hidden, batch.given, (lo, hi), window_past)
        if not batch.past:
            # Sums over windows are kept in f32 at least: bf16 would lose the small ones.
            held = [batch.held[batch.name(n, kind)] for kind in (Kind.KEYS, Kind.VALUES)]
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
        trained = batch.trained[layer]
        if not batch.staging:
            batch.staging = [torch.zeros_like(p, dtype=_wide(p.dtype)) for p in trained]
        return trained


def _forget(memory: Memory, missing: set[Held], held: dict[Held, torch.Tensor]) -> None:
    """Gives back what is left of a pass."""
    for name in list(held):
        del held[name]
        memory.drop(name)
        missing.discard(name)


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
