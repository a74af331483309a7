"""Engines in which nothing may be trained: each says why, and the engine of the cases says nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cases
from tidegate_engines.vllm.coserve import why_not


def _set(part: str, name: str, value: Any) -> Callable[[Any], None]:
    """Changes a part of a configuration, on a copy of it."""

    def change(config: Any) -> None:
        own = copy.copy(getattr(config, part))
        object.__setattr__(own, name, value)
        object.__setattr__(config, part, own)

    return change


#: What is changed in the configuration of an engine that trains, and a word of what it says.
CONFIGURATIONS: dict[str, Callable[[Any], None]] = {
    "--enable-lora": lambda config: object.__setattr__(config, "lora_config", None),
    "--max-loras 2": _set("lora_config", "max_loras", 1),
    "--fully-sharded-loras": _set("lora_config", "fully_sharded_loras", True),
    "tensor parallelism is on (2": _set("parallel_config", "tensor_parallel_size", 2),
    "pipeline parallelism is on (2": _set("parallel_config", "pipeline_parallel_size", 2),
    "data parallelism is on (3": _set("parallel_config", "data_parallel_size", 3),
    "context parallelism": _set("parallel_config", "decode_context_parallel_size", 2),
    "speculative": lambda config: object.__setattr__(config, "speculative_config", object()),
    "connector": lambda config: object.__setattr__(config, "kv_transfer_config", object()),
    "quantised": lambda config: object.__setattr__(config, "quant_config", object()),
    "fp8_e4m3": _set("cache_config", "cache_dtype", "fp8_e4m3"),
    "sleep mode": _set("model_config", "enable_sleep_mode", True),
}


def run(bench: cases.Bench, figures: cases.Figures) -> None:
    """Each of them on the engine of the cases, which is left as it was."""
    config, model = bench.core.vllm_config, bench.runner.model
    if (why := why_not.why_not(config, model)) is not None:
        figures.wrong.append(f"this engine is refused: {why}")
    for words, change in CONFIGURATIONS.items():
        other = copy.copy(config)
        change(other)
        why = why_not.why_not(other, model)
        figures.count("refused")
        if why is None or words not in why:
            figures.wrong.append(f"an engine with {words} is refused with {why!r}")
    layer = model.model.layers[0]
    for owner, name, value, words in (
        (layer.self_attn.attn, "sliding_window", 64, "sliding window"),
        (layer.self_attn, "do_llama_4_scaling", True, "scaled by position"),
        (layer.self_attn.rotary_emb, "is_neox_style", False, "part of each head"),
        (layer.mlp, "act_fn", layer, "SiLU"),
    ):
        before = getattr(owner, name, None)
        setattr(owner, name, value)
        why = why_not.why_not(config, model)
        setattr(owner, name, before)
        figures.count("refused")
        if why is None or words not in why:
            figures.wrong.append(f"a model with {name} {value} is refused with {why!r}")
    if "LlamaForCausalLM" not in (why_not.why_not(config, layer) or ""):
        figures.wrong.append("a model that nobody knows is not refused")
