"""The plugin with one clause left out, by name: each must make ``coserve exact`` fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tidegate_engines.vllm.coserve import adapters, riding, seam, units


def wrong_layer() -> None:
    """A layer is computed again from the input of the one below."""
    original = seam.Seam.sample

    def sample(self: seam.Seam, ridden: seam.Ridden) -> units.Sample:
        found = original(self, ridden)
        return units.Sample([found.inputs[0], *found.inputs[:-1]], found.past)

    seam.Seam.sample = sample


def same_salt() -> None:
    """All rides of all samples have one salt."""
    riding.Riding.salt = lambda self, serial, version: "tidegate sample"


def same_key() -> None:
    """The prefix cache knows the adapter by its name alone."""
    riding.Riding.published = lambda self, number: None


def not_pinned() -> None:
    """The adapter may leave its slot."""
    adapters.Adapter.pin = lambda self, manager, number: None


def not_reserved() -> None:
    """vLLM's scheduler may fill all slots, the pinned adapter's too."""
    riding.Riding.reserve = lambda self: True


def in_the_middle() -> None:
    """The slot is rewritten while a pass is at its last layer."""
    original = adapters.Adapter.publish

    def publish(self: adapters.Adapter, manager: Any, number: int) -> None:
        def begin(*given: Any) -> None:
            hook.remove()
            original(self, manager, number)

        hook = manager.model.model.layers[-1].register_forward_pre_hook(begin)

    adapters.Adapter.publish = publish


def unscaled() -> None:
    """B is written without alpha / r."""
    adapters.Adapter._scaled = lambda self, b: b


def late() -> None:
    """Rows are copied when the next pass has begun."""
    original = seam.Seam._copy
    waiting: list[tuple[Any, ...]] = []

    def copy(self: seam.Seam, ridden: seam.Ridden, where: seam.Rows, outputs: list[torch.Tensor]) -> None:
        waiting.append((self, ridden, where, outputs))
        ridden.upto = max(ridden.upto, min(where.position + where.count, ridden.length))

    def sample(self: seam.Seam, ridden: seam.Ridden) -> units.Sample:
        settle()
        return made(self, ridden)

    def settle() -> None:
        while waiting:
            original(*waiting.pop(0))

    def sample_tokens(self: seam.Seam, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        settle()
        return before(self, run, *args, **kwargs)

    made, before = seam.Seam.sample, seam.Seam._sample_tokens
    seam.Seam._copy, seam.Seam.sample, seam.Seam._sample_tokens = copy, sample, sample_tokens


def not_carried() -> None:
    """What a window gives back to keys and values of earlier ones is dropped."""
    units.Backward._carry = lambda self, into, grad: None


def not_held() -> None:
    """A sample's blocks are free when its request ends."""
    original = seam.Seam._hold

    def hold(self: seam.Seam, name: str, ridden: seam.Ridden) -> None:
        original(self, name, ridden)
        self._pool.free_blocks(reversed(ridden.blocks))

    def forget(self: seam.Seam, name: str) -> None:
        self._riding.pop(name, None)

    seam.Seam._hold, seam.Seam.forget = hold, forget


def switched_late() -> None:
    """The outputs are asked for when the model has been compiled."""
    original = seam.Seam.__init__

    def made(self: seam.Seam, runner: Any, scheduler: Any) -> None:
        seam.switch_on(runner)
        original(self, runner, scheduler)

    seam.at_load, seam.Seam.__init__ = lambda worker: None, made


def untold() -> None:
    """vLLM may take a compiled model that returns something else."""
    seam.tell_compiler = lambda config: None


CLAUSES: dict[str, Callable[[], None]] = {
    "layer": wrong_layer,
    "salt": same_salt,
    "key": same_key,
    "middle": in_the_middle,
    "pin": not_pinned,
    "reserve": not_reserved,
    "scale": unscaled,
    "copy": late,
    "carry": not_carried,
    "hold": not_held,
    "switch": switched_late,
    "told": untold,
}
