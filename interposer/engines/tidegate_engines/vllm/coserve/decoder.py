"""One decoder layer as a function over vLLM's own parameters.

vLLM's modules compute without a graph, fuse projections and write keys and values into a cache. This is the same layer
in plain torch, so that autograd can go through it: its tensors are views of vLLM's parameters, and none is copied. For
the window ``[lo, hi)`` of a sample::

    out, K[lo:hi], V[lo:hi] = layer(X[lo:hi], rotations of lo..hi, K[:lo], V[:lo], adapter)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

#: The matrices of a layer that an adapter may be in, in PEFT's words.
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Lora(NamedTuple):
    """What an adapter adds to a matrix: ``scale * B A``."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(linear(x.to(self.a.dtype), self.a), self.b).mul(self.scale).to(x.dtype)


@dataclass(frozen=True)
class Weights:
    """A layer's own tensors."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    gate_up: torch.Tensor
    down: torch.Tensor
    before_attention: torch.Tensor
    before_mlp: torch.Tensor
    #: Norms of each head, in families that have them.
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    #: By position: cosines, then sines, of half a head.
    rotations: torch.Tensor

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each by its name here."""
        for each in fields(self):
            if (tensor := getattr(self, each.name)) is not None:
                yield each.name, tensor


@dataclass(frozen=True)
class Layer:
    """A layer of a model whose attention is causal, with grouped heads, and whose MLP is gated by SiLU."""

    weights: Weights
    heads: int
    kv_heads: int
    head_size: int
    scale: float
    epsilon: float

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor] | None = None,
        adapter: Mapping[str, Lora] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output, keys and values [row, head, value] of a window's rows, given those of all rows before it."""
        w, adapter = self.weights, adapter or {}
        normed = norm(x, w.before_attention, self.epsilon)
        q, k, v = self._projected(normed, adapter)
        if w.q_norm is not None and w.k_norm is not None:
            q, k = norm(q, w.q_norm, self.epsilon), norm(k, w.k_norm, self.epsilon)
        cos, sin = w.rotations[positions].to(q.dtype)[:, None].chunk(2, dim=-1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        keys, values = (k, v) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))
        attended = self._attended(q, keys, values).flatten(1)
        x = x + _add(linear(attended, w.o, w.o_bias), attended, adapter.get("o_proj"))
        normed = norm(x, w.before_mlp, self.epsilon)
        gate, up = linear(normed, w.gate_up).chunk(2, dim=-1)
        gate = _add(gate, normed, adapter.get("gate_proj"))
        up = _add(up, normed, adapter.get("up_proj"))
        inner = silu(gate) * up
        return x + _add(linear(inner, w.down), inner, adapter.get("down_proj")), k, v

    def _projected(self, x: torch.Tensor, adapter: Mapping[str, Lora]) -> Iterator[torch.Tensor]:
        """Queries, keys and values by head."""
        sizes = [heads * self.head_size for heads in (self.heads, self.kv_heads, self.kv_heads)]
        parts = linear(x, self.weights.qkv, self.weights.qkv_bias).split(sizes, dim=-1)
        for part, name in zip(parts, MATRICES, strict=False):
            yield _add(part, x, adapter.get(name)).unflatten(-1, (-1, self.head_size))

    def _attended(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        rows, length = len(q), len(keys)
        seen = torch.ones(rows, length, dtype=torch.bool, device=q.device).tril(diagonal=length - rows)
        q, keys, values = (t.transpose(0, 1)[None] for t in (q, keys, values))
        grouped = self.heads != self.kv_heads
        out = scaled_dot_product_attention(q, keys, values, seen, scale=self.scale, enable_gqa=grouped)
        return out[0].transpose(0, 1)


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Root mean square, in f32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide.to(x.dtype) * weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each head turned by its position: the first half with the second."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _add(out: torch.Tensor, x: torch.Tensor, lora: Lora | None) -> torch.Tensor:
    return out if lora is None else out + lora(x)


def base(module: Any) -> Any:
    """A module of vLLM's without what its LoRA manager has put around it."""
    return getattr(module, "base_layer", module)


def layers(model: Any) -> list[Layer]:
    """The layers of a model of vLLM's. Raises ``ValueError`` in words for one that is none of the families."""
    return [_layer(module) for module in model.model.layers]


def _layer(module: Any) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    qkv, o, rotary = base(attention.qkv_proj), base(attention.o_proj), attention.rotary_emb
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    weights = Weights(
        qkv=qkv.weight,
        qkv_bias=qkv.bias,
        o=o.weight,
        o_bias=o.bias,
        gate_up=base(mlp.gate_up_proj).weight,
        down=base(mlp.down_proj).weight,
        before_attention=module.input_layernorm.weight,
        before_mlp=module.post_attention_layernorm.weight,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        rotations=rotary.cos_sin_cache,
    )
    if not rotary.is_neox_style or rotary.rotary_dim != attention.head_dim:
        raise ValueError(f"{type(module).__name__} turns only a part of each head, or pairs of neighbours")
    return Layer(
        weights,
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        attention.scaling,
        module.input_layernorm.variance_epsilon,
    )
