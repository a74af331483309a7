"""Which models can be run layer by layer and window by window, and why the others cannot.

A model that cannot is trained by the framework as it is: gated like any program, and nothing of it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Families (``model_type``) whose layers are compared with autograd by ``scripts/finetune exact``.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

#: What computes attention from a mask alone. Others take lengths or build a mask of their own.
ATTENTION = ("sdpa", "eager")

#: The minor versions of transformers that were tested.
TRANSFORMERS = ("5.17",)


def decoder(model: Any) -> Any:
    """The part of a causal language model that has the layers, or None: past adapters and wrappers."""
    while hasattr(model, "module"):
        model = model.module
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner = getattr(base, "model", base)
    return inner if hasattr(inner, "layers") else None


def why_not(model: Any) -> str | None:
    """Why a model cannot be run in windows, in one line; None where it can."""
    import torch
    import transformers

    minor = ".".join(transformers.__version__.split(".")[:2])
    if minor not in TRANSFORMERS:
        return f"transformers {transformers.__version__} was not tested ({', '.join(TRANSFORMERS)} were)"
    inner = decoder(model)
    config = getattr(model if inner is None else inner, "config", None)
    family = getattr(config, "model_type", type(model).__name__)
    if family not in FAMILIES:
        return f"a model of type '{family}' was not tested ({', '.join(FAMILIES)} were)"
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ATTENTION:
        return f"attention '{attention}' takes no mask by windows; attn_implementation='sdpa' does"
    if len(set(getattr(config, "layer_types", None) or ["full_attention"])) > 1:
        return "its layers differ in what they attend to"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_world_size() > 1:
            return "it is trained by more than one rank"
    layers = list(inner.layers)
    if (reason := _of_parameters(layers)) is not None:
        return reason
    return None


def _of_parameters(layers: Sequence[Any]) -> str | None:
    parameters = [p for layer in layers for p in layer.parameters()]
    if all(p.requires_grad for p in parameters):
        return "none of its weights is frozen, so nothing of it can be made again"
    if not any(p.requires_grad for p in parameters):
        return "no layer has anything that is trained"
    if any(not p.dtype.is_floating_point or hasattr(p, "quant_state") for p in parameters):
        return "its weights are quantised"
    if len({p.device for p in parameters}) > 1:
        return "its layers lie on several devices"
    if any(p.device.type == "meta" for p in parameters):
        return "its weights are not loaded"
    return None
