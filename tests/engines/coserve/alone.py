"""The layer function by itself against transformers' layer, in f64."""

from __future__ import annotations

import random

import cases
import torch
from tidegate_engines.vllm.coserve import decoder
from torch import nn
from transformers import DynamicCache

import rig


class Norm(nn.Module):
    """As transformers' norms, which go through f32 whatever they are given."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight), epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def in_f64(module: nn.Module) -> nn.Module:
    """The layer with all that it computes in f64."""
    module = module.double()
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, Norm(child.weight.detach(), child.variance_epsilon))
    return module


def of_transformers(module: nn.Module, config: object, rotations: torch.Tensor) -> decoder.Layer:
    """The layer function over the tensors of a layer of transformers'."""
    attention, mlp = module.self_attn, module.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [part.bias for part in parts if part.bias is not None]
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    weights = decoder.Weights(
        qkv=torch.cat([part.weight for part in parts]),
        qkv_bias=torch.cat(biases) if biases else None,
        o=attention.o_proj.weight,
        o_bias=None,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
        before_attention=module.input_layernorm.weight,
        before_mlp=module.post_attention_layernorm.weight,
        q_norm=None if norms[0] is None else norms[0].weight,
        k_norm=None if norms[1] is None else norms[1].weight,
        rotations=rotations,
    )
    size = attention.head_dim
    return decoder.Layer(
        weights, config.num_attention_heads, config.num_key_value_heads, size, size**-0.5, config.rms_norm_eps
    )


def layers(family: str, seed: int, figures: cases.Figures, count: int = 10) -> None:
    """``count`` random layers, windows and adapters of a family."""
    for number in range(count):
        rng = random.Random(f"{family} {seed + number} alone")
        kv_heads = rng.choice([1, 2, 4])
        model = rig.Model(
            family,
            seed + number,
            layers=1,
            heads=kv_heads * rng.choice([1, 2]),
            kv_heads=kv_heads,
            head_dim=rng.choice([8, 16]),
            inner=rng.choice([32, 80]),
        )
        figures.see("layer_worst", _one(model, rng))
        figures.count("layers_alone")


def _one(model: rig.Model, rng: random.Random) -> float:
    made = model.make()
    length, past = rng.randint(1, 30), rng.choice([0, rng.randint(1, 20)])
    x = torch.randn(1, past + length, model.hidden, dtype=torch.float64)
    positions = torch.arange(past + length)[None]
    cos, sin = made.model.rotary_emb(x, positions)
    half = model.head_dim // 2
    module = in_f64(made.model.layers[0])
    theirs_x = x.clone().requires_grad_()
    seen = torch.ones(past + length, past + length, dtype=torch.bool).tril()[None, None]
    cache = DynamicCache()
    theirs = module(
        theirs_x,
        attention_mask=seen,
        position_ids=positions,
        position_embeddings=(cos, sin),
        past_key_values=cache,
        use_cache=True,
    )
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    keys, values = (t[0].transpose(0, 1) for t in (cache.layers[0].keys, cache.layers[0].values))
    layer = of_transformers(module, made.config, torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1))
    ours_x = x[0].clone().requires_grad_()
    before = (keys[:past].detach(), values[:past].detach()) if past else None
    out, k, v = layer(ours_x[past:], positions[0, past:], before)
    dy = torch.randn_like(out)
    (theirs_dx,) = torch.autograd.grad((theirs[0, past:] * dy).sum(), theirs_x)
    (ours_dx,) = torch.autograd.grad((out * dy).sum(), ours_x)
    pairs = [(out, theirs[0, past:]), (k, keys[past:]), (v, values[past:])]
    if not past:
        # With rows before it, what goes back through their keys and values is not this window's.
        pairs.append((ours_dx, theirs_dx[0]))
    return max(cases.apart(ours.detach(), other.detach()) for ours, other in pairs)
