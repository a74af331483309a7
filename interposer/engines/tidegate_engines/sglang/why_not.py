"""Why nothing may be taken from a SGLang engine, in words for its log: what was not tested is refused by name."""

from __future__ import annotations

from typing import Any

from . import ways

#: The memory that was tested, by module and name.
POOL = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool"

#: Slots of a page: the lengths that were run.
PAGES = (1, 8, 16, 32, 64, 128)

ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")

#: Arguments that count ranks, replicas or stages. A step is in more than one process at a time, and a job has one log.
RANKS = ("tp_size", "pp_size", "dp_size", "attn_cp_size", "dcp_size", "dwdp_size", "ep_size", "moe_dp_size")

#: Arguments that turn on what was not tested, and what they turn on.
FEATURES = {
    "enable_dp_attention": "data-parallel attention is on",
    "speculative_algorithm": "speculative decoding is on",
    "dllm_algorithm": "it is a diffusion model",
    "enable_hierarchical_cache": "a hierarchical cache keeps copies of its KV cache",
    "enable_lmcache": "LMCache keeps copies of its KV cache",
    "enable_flexkv": "FlexKV keeps copies of its KV cache",
    "enable_unified_cache_external_linker": "an external store keeps copies of its KV cache",
    "enable_hisparse": "sparse KV memory is on",
    "enable_unified_memory": "its memory pools share one buffer",
    "enable_page_major_kv_layout": "its KV cache is laid out by the page",
    "enable_kv_cache_sharding": "its KV cache is sharded",
    "enable_dsa_cache_layer_split": "its KV cache is split by layers",
    "enable_prefill_cp": "context parallelism is on",
    "enable_memory_saver": "the memory saver moves the same memory",
    "enable_lora": "LoRA was not tested",
    "enable_mixed_chunk": "steps that mix prompts and tokens were not tested",
    "enable_priority_scheduling": "priorities were not tested",
    "enable_streaming_session": "sessions keep slots between their requests",
    "enable_session_radix_cache": "sessions keep slots between their requests",
    "enable_pdmux": "prompts and tokens share the GPU",
    "enable_return_routed_experts": "routed experts are returned per slot",
    "enable_return_indexer_topk": "an indexer's choice is returned per slot",
    "enable_elastic_ep": "elastic experts are on",
    "elastic_ep_backend": "elastic experts are on",
    "prefill_only_disable_kv_cache": "it keeps no KV cache",
    "strip_thinking_cache": "it keeps part of its answers out of the prefix cache",
    "radix_cache_backend": "its prefix cache is of another's making",
    "is_embedding": "it makes embeddings",
}

#: Values of these that say that nothing is on.
OFF = (None, False, "", "none", "null", "off", 0)

#: What the plugin stands around, or calls, by part of the scheduler.
PARTS = {
    "": (
        "get_next_batch_to_run",
        "run_batch",
        "waiting_queue",
        "running_batch",
        "last_batch",
        "chunked_req",
        "chunked_prefill_size",
        "enable_overlap",
        "device",
        "device_module",
        "max_total_num_tokens",
    ),
    "tree_cache": ("evictable_size", "protected_size"),
    "req_to_token_pool": ("free", "req_to_token"),
    "token_to_kv_pool_allocator": (
        "available_size",
        "clear",
        "free",
        "free_pages",
        "get_kvcache",
        "merge_and_sort_free",
        "page_size",
    ),
}


def arguments(args: Any) -> str | None:
    """What an engine's arguments have against it."""
    for name in RANKS:
        if (getattr(args, name, 1) or 1) != 1:
            return f"it has several ranks ({name} is {getattr(args, name)})"
    if getattr(args, "disaggregation_mode", "null") not in OFF:
        return "prefill and decode are engines apart"
    return next((why for name, why in FEATURES.items() if getattr(args, name, None) not in OFF), None)


def parts(scheduler: Any) -> str | None:
    """What a scheduler's parts have against it."""
    for owner, names in PARTS.items():
        part = getattr(scheduler, owner, None) if owner else scheduler
        if part is None:
            return f"SGLang's Scheduler has no {owner}"
        missing = [name for name in names if not hasattr(part, name)]
        if missing:
            return f"SGLang's {owner or 'Scheduler'} has no {', '.join(missing)}"
    model = getattr(scheduler, "model_config", None)
    cache, allocator = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    pool = allocator.get_kvcache()
    layout = getattr(pool, "kv_cache_layout", "nhd")
    components = [str(getattr(part, "value", part)) for part in getattr(cache, "tree_components", ())]
    reasons = {
        "it makes embeddings": not getattr(scheduler, "is_generation", True),
        "it is a multimodal model": getattr(model, "is_multimodal", False),
        "it is an encoder-decoder model": getattr(model, "is_encoder_decoder", False),
        "its model has a sliding window or a recurrent state": any(
            getattr(scheduler, name, False) for name in ("is_hybrid_swa", "is_hybrid_ssm", "is_hybrid_gdn")
        ),
        f"its KV memory is a {ways.name_of(pool)}": ways.name_of(pool) != POOL,
        f"its KV memory is laid out as {layout}": layout != "nhd" or getattr(pool, "use_hnd", False),
        "its KV memory is quantised with scales": getattr(pool, "k_scale_buffer", None) is not None,
        "its KV memory is backed by SGLang itself": bool(getattr(pool, "post_capture_active", False)),
        f"its allocator is a {ways.name_of(allocator)}": type(allocator).__name__ not in ALLOCATORS
        or not type(allocator).__module__.startswith("sglang.srt.mem_cache.allocator"),
        f"its prefix cache is a {ways.name_of(cache)}": ways.name_of(cache) not in ways.TREES
        or getattr(cache, "cache_controller", None) is not None
        or getattr(cache, "linker", None) is not None,
        f"its prefix cache has several parts ({', '.join(components)})": len(components) > 1,
        "its prefix cache is of an unknown make": ways.ways_of(cache) is None,
        f"its pages are of {allocator.page_size} slots": allocator.page_size not in PAGES,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
