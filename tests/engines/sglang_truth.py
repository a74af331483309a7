"""What a GPT-2 answers, and what the slots of its KV cache hold: computed from tokens alone, in f64, by no code of SGLang.

``Model`` takes weights by their names in SGLang's model; what it says of logits and KV is the formula of GPT-2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch


class Model:
    """A GPT-2 with these weights."""

    def __init__(self, weights: dict[str, torch.Tensor], layers: int, heads: int) -> None:
        self.weights = {name: tensor.detach().double().clone() for name, tensor in weights.items()}
        self.layers, self.heads = layers, heads
        self.compute = lru_cache(maxsize=4096)(self._compute)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        mean, spread = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (spread + 1e-5).sqrt() * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _compute(self, tokens: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The logits behind each token; by layer, its key and value."""
        w, n = self.weights, len(tokens)
        x = w["transformer.wte.weight"][list(tokens)] + w["transformer.wpe.weight"][:n]
        width = x.shape[1] // self.heads
        kv = []
        for layer in range(self.layers):
            at = f"transformer.h.{layer}"
            q, k, v = self._linear(f"{at}.attn.c_attn", self._norm(f"{at}.ln_1", x)).chunk(3, dim=-1)
            kv.append(torch.stack((k, v), 1))
            q, k, v = (part.view(n, self.heads, width).transpose(0, 1) for part in (q, k, v))
            scores = q @ k.transpose(1, 2) / math.sqrt(width)
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
            seen = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
            x = x + self._linear(f"{at}.attn.c_proj", seen)
            h = self._linear(f"{at}.mlp.c_fc", self._norm(f"{at}.ln_2", x))
            h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
            x = x + self._linear(f"{at}.mlp.c_proj", h)
        logits = self._norm("transformer.ln_f", x) @ w["transformer.wte.weight"].T
        return logits, kv

    def answer(self, prompt: Sequence[int], tokens: int) -> tuple[list[int], float]:
        """The most likely answer, and by how much its closest decision was one."""
        said: list[int] = []
        closest = math.inf
        for _ in range(tokens):
            logits = self.compute((*prompt, *said))[0][-1]
            best = logits.topk(2)
            closest = min(closest, float(best.values[0] - best.values[1]))
            said.append(int(best.indices[0]))
        return said, closest

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Of each token but the first, how likely it was."""
        logits = self.compute(tuple(tokens))[0].log_softmax(-1)
        return [float(logits[i, token]) for i, token in enumerate(tokens[1:])]
