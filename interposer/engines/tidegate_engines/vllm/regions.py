"""Where the parts of each KV block lie, from the tensors an engine made of its memory.

One rule for every layout: a layer's tensor has a dimension that counts blocks. Dimensions that step
further than a block does (K and V, or heads, outside the blocks) make regions of their own; the
others are a block's bytes. Memory of several layers within one block, as in block-outermost layouts,
gives interleaved regions with the same stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..job import Region


def regions(
    base: int,
    shape: Sequence[int],
    strides: Sequence[int],
    item_bytes: int,
    block_dim: int,
    blocks: int,
) -> list[Region]:
    """The regions of one layer's tensor.

    ``base`` is its first byte, ``strides`` are in items. A kernel may count smaller blocks than the
    scheduler does: then ``shape[block_dim]`` is a multiple of ``blocks``. Raises ``ValueError`` when
    a block's parts cannot be told.
    """
    kernel_blocks = shape[block_dim]
    if blocks <= 0 or kernel_blocks % blocks:
        raise ValueError(f"{kernel_blocks} blocks of a kernel do not make {blocks} of the scheduler")
    per_block = kernel_blocks // blocks
    stride = strides[block_dim]
    outer = [d for d in range(len(shape)) if d != block_dim and strides[d] > stride and shape[d] > 1]
    inner = [d for d in range(len(shape)) if d != block_dim and d not in outer]
    block_items = 1 + sum((shape[d] - 1) * strides[d] for d in inner)
    if block_items > stride:
        raise ValueError("a block's items overlap the next one's")
    return [
        Region(
            base=base + item_bytes * sum(i * strides[d] for i, d in zip(at, outer, strict=True)),
            stride=per_block * stride * item_bytes,
            block_bytes=((per_block - 1) * stride + block_items) * item_bytes,
            first_block=0,
            blocks=blocks,
        )
        for at in product(*(range(shape[d]) for d in outer))
    ]
