"""A machine whose memory is taken at random instants, in the middle of units too.

Each case is run undisturbed and robbed; gradients and loss have to be the same bytes. Then each clause of
the machine is left out, and that has to be found: an ablation under which every case is right means that
this test sees nothing.

The thief strikes between two operations of the framework, forward or backward. What it takes reads as
finite numbers that are wrong, and so does whatever is written there, until the machine says that nobody
uses it and there is memory again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cases
from cases import Case
from tidegate_engines.finetune.held import Held, Kind
from tidegate_engines.finetune.machine import Machine, Unit
from tidegate_engines.finetune.seam import attach


class Thief:
    """A memory that is taken: which pieces, before which operations, is drawn."""

    outlived = False

    def __init__(self, rng: random.Random, strikes: set[int]) -> None:
        self._rng = rng
        self._strikes = strikes
        self._tensors: dict[Held, list[torch.Tensor]] = {}
        self._lost: set[Held] = set()
        self._untold: set[Held] = set()
        self._acting = False
        self.operations = 0
        self.taken = 0

    # What the machine asks of a memory.

    def adopt(self, name: Held, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors[name] = list(tensors)

    def place(self, name: Held, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        self.drop(name)
        tensor = like.new_empty(tuple(shape))
        self._tensors[name] = [tensor]
        return tensor

    def drop(self, name: Held) -> None:
        self._tensors.pop(name, None)
        self._lost.discard(name)
        self._untold.discard(name)

    def fetch(self, names: Iterable[Held]) -> None:
        return None

    def store(self, names: Iterable[Held]) -> None:
        return None

    def needs(self, names: AbstractSet[Held]) -> None:
        return None

    def poll(self) -> set[Held]:
        told, self._untold = self._untold, set()
        return told

    def again(self, name: Held) -> None:
        if name not in self._lost or name in self._untold:
            raise AssertionError(f"{name} was not said to be lost")
        self._lost.discard(name)

    # What is done to it.

    def operation(self) -> None:
        """Called after each operation of the framework."""
        if self._acting:
            return
        self._acting = True
        self.operations += 1
        if self.operations in self._strikes and self._tensors:
            names = sorted(self._tensors, key=lambda name: (name.layer, name.kind.value))
            for name in self._rng.sample(names, min(len(names), self._rng.choice([1, 1, 1, 3]))):
                if name not in self._lost:
                    self._lost.add(name)
                    self._untold.add(name)
                    self.taken += 1
        for name in self._lost:
            for tensor in self._tensors[name]:
                _scribble(tensor)
        self._acting = False


def _scribble(tensor: torch.Tensor) -> None:
    # By the storage: as when a page is replaced, nothing that guards tensors sees it.
    flat = tensor.detach().untyped_storage()
    words = torch.tensor([], dtype=tensor.dtype).set_(flat)
    words.fill_(0.37)


class Watching(TorchDispatchMode):
    """Tells a thief of each operation."""

    def __init__(self, thief: Thief) -> None:
        super().__init__()
        self._thief = thief

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._thief.operation()
        return result


# What is left out. Each has to be found.


class NoPoll(Machine):
    """Nobody asks what was lost."""

    def _settle(self) -> None:
        self._wait()


class PollBefore(Machine):
    """What was lost is asked before a unit's work is done."""

    def advance(self, batch: Any) -> None:
        super()._settle()
        super().advance(batch)

    def _settle(self) -> None:
        self._wait()


class StagingNotZeroed(Machine):
    """A layer that starts over adds to what it had staged."""

    def _start_over(self, batch: Any, unit: Unit) -> None:
        kept = [t.clone() for t in batch.staging]
        super()._start_over(batch, unit)
        for staged, before in zip(batch.staging, kept, strict=True):
            staged.copy_(before)


class PastNotZeroed(Machine):
    """A layer that starts over adds to the dK and dV it had."""

    def _start_over(self, batch: Any, unit: Unit) -> None:
        kept = [t.clone() for t in batch.past]
        super()._start_over(batch, unit)
        for past, before in zip(batch.past, kept, strict=True):
            past.copy_(before)


class OneBuffer(Machine):
    """dX is written over the dY that it is made from."""

    def _backward(self, batch: Any, unit: Unit) -> None:
        batch.turns[1] = batch.turns[0]
        super()._backward(batch, unit)


class WeightsNotLoaded(Machine):
    """Weights that were lost are used as they are when there is memory again."""

    def _reload(self, name: Held) -> None:
        self._regain(name)
        self._settle()


class NotWithheld(Machine):
    """What was lost is used on, without waiting for memory."""

    def _regain(self, name: Held) -> None:
        self._missing.discard(name)


class CommitPerWindow(Machine):
    """Each window's part goes into the gradient at once."""

    def _backward(self, batch: Any, unit: Unit) -> None:
        super()._backward(batch, unit)
        for parameter, staged in zip(self.layers.parameters(unit.layer, True), batch.staging, strict=True):
            before = batch.grads.get(parameter)
            batch.grads[parameter] = staged.clone() if before is None else before + staged
            staged.zero_()


class RandomStateNotRestored(Machine):
    """What is computed again drops something else."""

    def _seeded(self, batch: Any, layer: int, window: Any) -> Any:
        batch.seed = batch.seed and batch.seed + 1
        return super()._seeded(batch, layer, window)


class InputNotMade(Machine):
    """Only what a layer reads first is made again: lost keys and values are used as they are."""

    def _make(self, batch: Any, name: Held) -> None:
        if name.kind in (Kind.KEYS, Kind.VALUES):
            self._regain(name)
            self._settle()
        else:
            super()._make(batch, name)


ABLATIONS = (
    NoPoll,
    PollBefore,
    StagingNotZeroed,
    PastNotZeroed,
    OneBuffer,
    WeightsNotLoaded,
    NotWithheld,
    CommitPerWindow,
    RandomStateNotRestored,
    InputNotMade,
)


@dataclass
class Result:
    """What one run left."""

    loss: bytes
    grads: dict[str, bytes]
    operations: int
    taken: int
    redone: int
    reclaims: int


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def run(kind: type[Machine], case: Case, strikes: set[int], micro_batches: int = 2) -> Result:
    """Some micro-batches of a case, with memory taken before those operations."""
    model = cases.model(case)
    thief = Thief(random.Random(case.seed), strikes)
    words = {"forward": lambda _: list(case.forward), "backward": lambda _: list(case.backward)}
    machine = attach(model, lambda layers: kind(layers, thief, **words))
    machine.copy_weights()
    torch.manual_seed(case.seed)
    loss = torch.zeros(())
    with Watching(thief):
        for index in range(micro_batches):
            found = model(**cases.batch(replace(case, seed=case.seed + index))).loss
            found.backward()
            loss = loss + found.detach()
    grads = {n: _bytes(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    counts = machine.counts
    return Result(
        _bytes(loss), grads, thief.operations, thief.taken, counts.units_redone, counts.reclaims
    )


def drawn(seed: int) -> Case:
    """A case of this test: every second one with dropout, and never in one window only."""
    family = cases.FAMILIES[seed % len(cases.FAMILIES)]
    case = cases.draw(family, seed, "float32")
    rng = random.Random(seed)
    length = max(case.length, 12)
    return replace(
        case,
        length=length,
        forward=_several(rng, length),
        backward=_several(rng, length),
        dropout=0.25 if seed % 2 else 0.0,
        checkpointing=False,
    )


def _several(rng: random.Random, length: int) -> tuple[cases.Window, ...]:
    """Two windows to eight: a case has some hundred operations for each."""
    while not 2 <= len(windows := cases.cut(rng, length)) <= 8:
        pass
    return windows


def strikes(case: Case, operations: int) -> set[int]:
    """Before which operations memory is taken: rarely enough for a layer to get through."""
    rng = random.Random(case.seed + 7)
    return {rng.randint(1, operations) for _ in range(rng.randint(1, 4))}


def right(kind: type[Machine], case: Case, calm: Result) -> tuple[bool, Result | None]:
    """Whether a robbed run leaves what the undisturbed one of the whole machine left."""
    try:
        robbed = run(kind, case, strikes(case, calm.operations))
    except (AssertionError, KeyError, RuntimeError):
        if kind is Machine:
            raise
        return False, None
    return (robbed.loss, robbed.grads) == (calm.loss, calm.grads), robbed


@dataclass
class Measured:
    """What a run over cases found."""

    cases: int = 0
    wrong_adapters: list = field(default_factory=list)
    pieces_taken: int = 0
    reclaims: int = 0
    units_redone: int = 0
    #: Cases that needed more units again than a layer's windows, both ways, for each piece taken.
    too_many: int = 0
    #: By clause left out: cases that were wrong without it.
    ablations: dict[str, int] = field(default_factory=dict)

    def good(self) -> bool:
        return not self.wrong_adapters and not self.too_many and all(self.ablations.values())


def measure(count: int, seed: int, ablations: Sequence[type[Machine]] = ABLATIONS) -> Measured:
    """So many cases, whole and with each clause left out."""
    found = Measured(ablations={kind.__name__: 0 for kind in ablations})
    for index in range(count):
        case = drawn(seed * 10_000 + index)
        calm = run(Machine, case, set())
        ok, robbed = right(Machine, case, calm)
        assert robbed is not None
        found.cases += 1
        found.pieces_taken += robbed.taken
        found.reclaims += robbed.reclaims
        found.units_redone += robbed.redone
        windows = len(case.forward) + len(case.backward) + 1
        found.too_many += robbed.redone > robbed.taken * windows
        if not ok:
            found.wrong_adapters.append(asdict(case))
        for kind in ablations:
            found.ablations[kind.__name__] += not right(kind, case, calm)[0]
    return found


def tell(found: Measured) -> None:
    """Prints it."""
    print(
        f"robbed: {found.cases} cases, {found.pieces_taken} pieces taken in {found.reclaims} reclaims,"
        f" {found.units_redone} units done again"
    )
    print(f"wrong adapters: {len(found.wrong_adapters)}; more units again than a layer has: {found.too_many}")
    for name, count in found.ablations.items():
        print(f"without a clause: {name:<24} {count:>4} wrong" + ("" if count else "   NOT FOUND"))
    for case in found.wrong_adapters[:3]:
        print(f"WRONG: {case}")
