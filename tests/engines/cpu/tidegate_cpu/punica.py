"""Adapters of a mixed batch in torch.

vLLM 0.24 has such a wrapper for its processor builds, and it is wrong for rows without an adapter (index -1 reads the
last slot). One that is right for all versions is shorter than a correction.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


@torch.library.custom_op("tidegate_cpu::product", mutates_args=())
def product(x: torch.Tensor, stacked: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Each row of ``x`` times the transposed matrix of its slot; rows of slot -1 are zero.

    An operator of its own, because which slots there are is not known when a model is traced.
    """
    matrices = stacked.squeeze(1) if stacked.dim() == 4 else stacked
    out = x.new_zeros(x.shape[0], matrices.shape[-2])
    for slot in slots[: x.shape[0]].unique().tolist():
        if slot >= 0:
            rows = (slots[: x.shape[0]] == slot).nonzero()[:, 0]
            out[rows] = x[rows] @ matrices[slot].to(x.dtype).T
    return out


@product.register_fake
def _(x: torch.Tensor, stacked: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], stacked.shape[-2])


class Punica(PunicaWrapperCPU):
    """Shrinks and expands by the slot of each row, in every phase.

    The whole buffers of slots are handed over: a traced model would keep the length of the pass it was traced with.
    """

    def _apply_shrink(self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float) -> None:
        y.view(-1, y.shape[-1]).copy_(scale * product(x, w_t_all, self._token_lora_indices))

    def _apply_expand(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool = True,
    ) -> None:
        part = y[:, y_offset : y_offset + y_slice_size]
        found = product(x, w_t_all, self._token_lora_indices)[:, :y_slice_size]
        part.copy_(part + found if add_inputs else found)

    def add_lora_embedding(
        self, y: torch.Tensor, x: torch.Tensor, lora_b_stacked: torch.Tensor, add_inputs: bool = True, **kwargs: Any
    ) -> None:
        found = product(x, lora_b_stacked, self._token_lora_indices)
        y.copy_(y + found if add_inputs else found)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        slots = self._sampler_indices
        inner = scale * product(x.view(-1, x.shape[-1]), lora_a_stacked, slots)
        found = product(inner, lora_b_stacked, slots)
        rows = y.view(-1, y.shape[-1])
        rows[:, : found.shape[1]] += found
