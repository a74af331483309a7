"""What comes after the last layer: norm, output matrix, loss, and its gradient at the norm's input.

Logits of a whole sample would be larger than all else together, so rows go through in chunks: of each the loss, the
logprobs of its labels and its part of ``dY`` are kept, and its logits are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from .decoder import base, norm

#: Of a row that is not learnt, as everywhere in PyTorch.
IGNORED = -100

#: What a loss gives back to the logprobs of some rows.
Given = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Learnt:
    """What a sample's rows say."""

    #: Sum over labels, each times its weight, over what the caller divides by.
    loss: float
    #: By row; zero for one without a label.
    logprobs: torch.Tensor
    dy: torch.Tensor


@dataclass(frozen=True)
class Head:
    """Views of vLLM's own parameters."""

    weight: torch.Tensor
    norm: torch.Tensor
    epsilon: float

    @classmethod
    def of(cls, model: Any) -> Head:
        """That of a model of vLLM's."""
        last = model.model.norm
        # vLLM pads the matrix to a multiple of 64 rows.
        vocabulary = model.config.vocab_size
        return cls(base(model.lm_head).weight[:vocabulary], last.weight, last.variance_epsilon)

    def __call__(self, x: torch.Tensor, labels: torch.Tensor, divisor: float, rows: int) -> Learnt:
        """Loss of ``x``, the last norm's input, for the labels of its rows, ``rows`` of them at a time.

        ``labels[i]`` is the token that follows row ``i``, or ``IGNORED``.
        """
        dy = torch.zeros_like(x)
        logprobs = x.new_zeros(len(x), dtype=torch.float32)
        learnt = (labels != IGNORED).nonzero()[:, 0]
        loss = 0.0
        for at in learnt.split(rows):
            found, part = self.part(x[at], labels[at], lambda found: torch.full_like(found, -1 / divisor))
            logprobs[at], dy[at] = found, part
            loss += (-found.sum() / divisor).item()
        return Learnt(loss, logprobs, dy)

    def part(self, x: torch.Tensor, targets: torch.Tensor, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs of the targets of some rows, and what goes back to ``x``: zero where ``given`` gives back nothing."""
        hidden = x.detach().requires_grad_()
        with torch.enable_grad():
            logits = linear(norm(hidden, self.norm, self.epsilon), self.weight).float()
            found = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        logprobs = found.detach()
        d = given(logprobs)
        if not d.any():
            return logprobs, torch.zeros_like(x)
        (dy,) = torch.autograd.grad(found, hidden, d)
        return logprobs, dy
