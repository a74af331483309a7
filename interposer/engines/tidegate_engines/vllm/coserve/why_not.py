"""Why nothing is trained in an engine, in words for its log. Serving goes on as it is."""

from __future__ import annotations

from typing import Any

from .adapters import Adapter

#: Model classes of vLLM's that ``decoder`` computes.
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

#: What a KV cache may hold.
PLAIN = ("auto", "float16", "bfloat16", "float32")


def why_not(config: Any, model: Any) -> str | None:
    """Why no adapter may be trained in an engine of this configuration and loaded model; None: one may."""
    found = [reason for reason, holds in _of_engine(config).items() if holds]
    name = type(model).__name__
    if name not in FAMILIES:
        found.append(f"its model is {name}; known are {', '.join(FAMILIES)}")
    else:
        found += [reason for reason, holds in _of_model(model).items() if holds]
    return found[0] if found else None


def _of_engine(config: Any) -> dict[str, bool]:
    parallel, lora = config.parallel_config, config.lora_config
    # The stored and the computed cache would differ, and so would the model and its adapter.
    cache = getattr(config.cache_config, "cache_dtype", "auto")
    return {
        "LoRA is off: start with --enable-lora --max-loras 2 or more": lora is None,
        "its adapters have one slot: start with --max-loras 2 or more": lora is not None and lora.max_loras < 2,
        "each rank has a part of an adapter only (--fully-sharded-loras)": bool(lora and lora.fully_sharded_loras),
        f"tensor parallelism is on ({parallel.tensor_parallel_size} ranks)": parallel.tensor_parallel_size > 1,
        f"pipeline parallelism is on ({parallel.pipeline_parallel_size} stages)": parallel.pipeline_parallel_size > 1,
        f"data parallelism is on ({parallel.data_parallel_size} replicas)": parallel.data_parallel_size > 1,
        "context parallelism is on": max(
            getattr(parallel, f"{phase}_context_parallel_size", 1) for phase in ("decode", "prefill")
        )
        > 1,
        "speculative decoding uses the inputs of layers itself": config.speculative_config is not None,
        "a KV connector may move blocks": config.kv_transfer_config is not None,
        "its weights are quantised": config.quant_config is not None,
        f"its KV cache holds {cache}": cache not in PLAIN,
        "sleep mode takes its weights away": bool(config.model_config.enable_sleep_mode),
    }


def _of_model(model: Any) -> dict[str, bool]:
    layers = model.model.layers
    rotary = [layer.self_attn.rotary_emb for layer in layers]
    mlp = [getattr(layer.mlp, "base_layer", layer.mlp) for layer in layers]
    parts = [getattr(m, "base_layer", m) for each in mlp for m in (each.gate_up_proj, each.down_proj)]
    return {
        "it does not return the inputs of its layers": not hasattr(model, "set_aux_hidden_state_layers"),
        "its attention has a sliding window": any(layer.self_attn.attn.sliding_window for layer in layers),
        "its queries are scaled by position": any(
            getattr(layer.self_attn, "do_llama_4_scaling", False) for layer in layers
        ),
        "only a part of each head is rotated": any(
            not hasattr(each, "cos_sin_cache") or not each.is_neox_style or each.rotary_dim != each.head_size
            for each in rotary
        ),
        "its MLP has biases": any(getattr(part, "bias", None) is not None for part in parts),
        "its MLP is not gated by SiLU": any(type(each.act_fn).__name__ != "SiluAndMul" for each in mlp),
    }


def why_not_adapter(config: Any, adapter: Adapter) -> str | None:
    """Why this adapter may not be trained in an engine that trains."""
    most = config.lora_config.max_lora_rank
    if adapter.rank > most:
        return f"rank {adapter.rank} is more than --max-lora-rank {most}"
    return None
