"""Attention over vLLM's paged cache in torch, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder


@dataclass
class Batch:
    """What a pass needs to know of its rows."""

    starts: list[int]
    lengths: list[int]
    tables: torch.Tensor
    slots: torch.Tensor


class Builder(AttentionMetadataBuilder[Batch]):
    """Makes it of what both runners give all backends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Batch:
        common = common_attn_metadata
        return Batch(
            common.query_start_loc[: common.num_reqs + 1].tolist(),
            common.seq_lens[: common.num_reqs].tolist(),
            common.block_table_tensor,
            common.slot_mapping,
        )


def halves(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer's cache as [block, position, head, value], in the layouts of 0.24 and of 0.33."""
    if cache.dim() == 5:
        return cache[:, 0], cache[:, 1]
    keys, values = cache.transpose(1, 2).chunk(2, dim=-1)
    return keys, values


class Attention(AttentionImpl[Batch]):
    """Causal attention with grouped heads."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        if alibi_slopes or sliding_window or logits_soft_cap or kv_sharing_target_layer_name or attn_type != "decoder":
            raise NotImplementedError("this test attention is plainly causal")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_size, self.scale = head_size, scale
        self.kv_cache_dtype = kv_cache_dtype

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Batch | None,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if attn_metadata is None:
            return output.zero_()
        batch = attn_metadata
        keys, values = halves(kv_cache)
        rows = batch.starts[-1]
        slots = batch.slots[:rows].long()
        size = keys.shape[1]
        at = (slots // size, slots % size)
        keys[at] = key[:rows].view(rows, self.num_kv_heads, self.head_size)
        values[at] = value[:rows].view(rows, self.num_kv_heads, self.head_size)
        queries = query.view(-1, self.num_heads, self.head_size)
        into = output.view(-1, self.num_heads, self.head_size)
        for number, length in enumerate(batch.lengths):
            lo, hi = batch.starts[number : number + 2]
            if lo == hi:
                continue
            blocks = batch.tables[number, : -(-length // size)].long()
            own_keys = keys[blocks].flatten(0, 1)[:length]
            own_values = values[blocks].flatten(0, 1)[:length]
            seen = torch.ones(hi - lo, length, dtype=torch.bool).tril(diagonal=length - (hi - lo))
            into[lo:hi] = self._attend(queries[lo:hi], own_keys, own_values, seen)
        return output

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, seen, scale=self.scale, enable_gqa=True)
        return out[0].transpose(0, 1)


class Backend(AttentionBackend):
    """Names the parts."""

    supported_dtypes = [torch.float32, torch.float64]
    accept_output_buffer = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Attention]:
        return Attention

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Asked by 0.24; later versions lay the cache out themselves."""
        return (num_blocks, 2, block_size, num_kv_heads, head_size)
