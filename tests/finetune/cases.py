"""Random small models, adapters and batches, from a seed. No weights are downloaded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Window = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """One draw: everything that model, adapter, batch and windows are made from."""

    family: str
    seed: int
    dtype: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    batch: int
    length: int
    #: right, left, packed or none
    padding: str
    #: Share of tokens without a label.
    unlabelled: float
    rank: int
    modules: tuple[str, ...]
    #: Tokens of the batch that the loss is divided by; None: those with a label.
    items: int | None
    checkpointing: bool
    forward: tuple[Window, ...]
    backward: tuple[Window, ...]
    dropout: float = 0.0


def cut(rng: random.Random, length: int) -> tuple[Window, ...]:
    """Windows: of one token, of all, of one size, with a last of one, or anything."""
    kind = rng.choice(["one", "all", "size", "last", "any", "any"])
    if kind == "one":
        ends = list(range(1, length + 1))
    elif kind == "all":
        ends = [length]
    elif kind == "size":
        size = rng.randint(2, max(2, length))
        ends = [*range(size, length, size), length]
    elif kind == "last":
        ends = [length - 1, length] if length > 1 else [length]
    else:
        ends = sorted({rng.randint(1, length) for _ in range(rng.randint(1, 6))} | {length})
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def draw(family: str, seed: int, dtype: str) -> Case:
    """The case of a number."""
    rng = random.Random(f"{family} {seed} {dtype}")
    kv_heads = rng.choice([1, 2, 4])
    length = rng.choice([1, 2, 3, rng.randint(4, 48), rng.randint(4, 48)])
    padding = rng.choice(["none", "right", "left", "packed"])
    return Case(
        family=family,
        seed=seed,
        dtype=dtype,
        layers=rng.randint(1, 4),
        heads=kv_heads * rng.choice([1, 2, 4]),
        kv_heads=kv_heads,
        head_dim=rng.choice([8, 16]),
        tied=rng.random() < 0.3,
        batch=1 if padding == "packed" else rng.randint(1, 3),
        length=length,
        padding=padding,
        unlabelled=rng.choice([0.0, 0.0, 0.3, 0.9]),
        rank=rng.choice([1, 2, 4, 8, 16, 32, 64, rng.randint(1, 64)]),
        modules=tuple(sorted(rng.sample(MODULES, rng.randint(1, len(MODULES))))),
        items=rng.choice([None, rng.randint(1, 200)]),
        checkpointing=rng.random() < 0.2,
        forward=cut(rng, length),
        backward=cut(rng, length),
    )


def model(case: Case) -> nn.Module:
    """A model with an adapter whose every part does something."""
    torch.manual_seed(case.seed)
    words: dict[str, Any] = {"head_dim": case.head_dim} if case.family != "qwen2" else {}
    if case.family == "mistral":
        words["sliding_window"] = None
    config = AutoConfig.for_model(
        case.family,
        vocab_size=96,
        hidden_size=case.heads * case.head_dim,
        intermediate_size=3 * case.heads * case.head_dim,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        max_position_embeddings=256,
        tie_word_embeddings=case.tied,
        **words,
    )
    dtype = getattr(torch, case.dtype)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    lora = LoraConfig(
        r=case.rank,
        lora_alpha=2 * case.rank,
        lora_dropout=case.dropout,
        target_modules=list(case.modules),
        # The default's B is zero, and with it the gradient of A.
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    made = get_peft_model(base, lora).to(dtype)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            # Of the size that training gives it: gradients are then of the order of one, as 1e-6 wants.
            torch.nn.init.normal_(parameter, std=0.02)
    if case.checkpointing:
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if dtype == torch.float64:
        widen(made)
    return made.train()


def widen(model: nn.Module) -> None:
    """transformers' norms and loss compute in f32 whatever the model's dtype is. What is rounded so hides
    1e-10 of a difference; so these two are replaced by the same formulas in f64."""

    def norm(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(hidden: torch.Tensor) -> torch.Tensor:
            mean = hidden.pow(2).mean(-1, keepdim=True)
            return module.weight * hidden * torch.rsqrt(mean + module.variance_epsilon)

        return forward

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm(module)

    def loss(
        logits: torch.Tensor,
        labels: torch.Tensor | None,
        vocab_size: int,
        num_items_in_batch: int | torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        how = "mean" if num_items_in_batch is None else "sum"
        flat = logits.reshape(-1, vocab_size), shift_labels.reshape(-1)
        found = nn.functional.cross_entropy(*flat, reduction=how)
        return found if num_items_in_batch is None else found / num_items_in_batch

    model.get_base_model().loss_function = loss


def batch(case: Case) -> dict[str, torch.Tensor]:
    """What the model's forward takes."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    rng = random.Random(case.seed)
    shape = (case.batch, case.length)
    ids = torch.randint(96, shape, generator=generator)
    labels = ids.clone()
    labels[torch.rand(shape, generator=generator) < case.unlabelled] = -100
    labels[0, -1] = ids[0, -1]
    found = {"input_ids": ids}
    if case.padding in ("left", "right"):
        mask = torch.ones(shape, dtype=torch.long)
        for row in range(case.batch):
            short = rng.randint(0, case.length - 1)
            at = slice(0, short) if case.padding == "left" else slice(case.length - short, None)
            mask[row, at] = 0
            labels[row, at] = -100
        found["attention_mask"] = mask
    elif case.padding == "packed":
        ends = sorted({rng.randint(1, case.length) for _ in range(rng.randint(1, 4))} | {case.length})
        lengths = [hi - lo for lo, hi in zip([0, *ends[:-1]], ends, strict=True)]
        found["position_ids"] = torch.cat([torch.arange(n) for n in lengths])[None]
        # Otherwise the model makes itself a cache and no longer sees the packing.
        found["use_cache"] = False
        for lo in (0, *ends[:-1]):
            labels[0, lo] = -100
    return {**found, "labels": labels}
