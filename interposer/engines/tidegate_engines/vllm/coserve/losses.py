"""What a loss is, and what it gives back to the logprob of each target.

All of them are sums over positions of a function of that position's logprob alone, so a chunk of rows needs no other.
``r`` is the ratio of the new probability to that of the policy which drew the sample.

```
cross_entropy         - w logprob
importance_sampling   - w r A
ppo                   - w min(r A, clip(r) A)
cispo                 - w clip(r) A logprob       nothing goes back through the ratio
custom                d is given; the sum is not known
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from .messages import Datum

#: The lists of a datum that a loss needs.
NEEDS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
    "custom": ("d",),
}


class Given(NamedTuple):
    """Of a chunk of rows: its part of the loss, and dL/dlogprob."""

    loss: float
    d: torch.Tensor


#: Of the first row of a chunk and the logprobs of its rows.
Loss = Callable[[int, torch.Tensor], Given]


def loss(name: str | None, datum: Datum, clip: tuple[float, float]) -> Loss:
    """The loss of a datum; None: there is none, and nothing goes back."""

    def part(values: list[float] | None, lo: int, like: torch.Tensor, missing: float) -> torch.Tensor:
        if values is None:
            return torch.full_like(like, missing)
        return torch.tensor(values[lo : lo + len(like)], dtype=like.dtype, device=like.device)

    def of(lo: int, logprobs: torch.Tensor) -> Given:
        if name is None:
            return Given(0.0, torch.zeros_like(logprobs))
        if name == "custom":
            return Given(0.0, part(datum.d, lo, logprobs, 0.0))
        weights = part(datum.weights, lo, logprobs, 1.0)
        if name == "cross_entropy":
            return Given(-(weights * logprobs).sum().item(), -weights)
        weights = weights * part(datum.advantages, lo, logprobs, 0.0)
        ratio = (logprobs - part(datum.logprobs, lo, logprobs, 0.0)).exp()
        if name == "importance_sampling":
            return Given(-(weights * ratio).sum().item(), -weights * ratio)
        clipped = ratio.clamp(*clip)
        if name == "cispo":
            return Given(-(weights * clipped * logprobs).sum().item(), -weights * clipped)
        plain, least = weights * ratio, torch.minimum(weights * ratio, weights * clipped)
        return Given(-least.sum().item(), torch.where(plain <= least, -plain, 0.0))

    return of


def learnt(name: str | None, datum: Datum) -> int:
    """Positions that count."""
    if name is None:
        return 0
    values = {"cross_entropy": datum.weights, "custom": datum.d}.get(name, datum.advantages)
    mask = datum.weights if name in ("importance_sampling", "ppo", "cispo") else None
    if values is None:
        return len(datum.tokens)
    return sum(v != 0 and (mask is None or mask[i] != 0) for i, v in enumerate(values))
