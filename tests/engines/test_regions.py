"""Where a block's parts lie, against every byte that an element of it occupies."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from tidegate_engines.vllm.regions import regions


def bytes_of(tensor, dim: int, block: int, per_block: int) -> set[int]:
    part = tensor.narrow(dim, block * per_block, per_block)
    offsets = torch.zeros(part.shape, dtype=torch.int64)
    for d in range(part.dim()):
        index = torch.arange(part.shape[d]).view([-1 if i == d else 1 for i in range(part.dim())])
        offsets += index * part.stride(d)
    first = part.data_ptr() - tensor.data_ptr()
    size = tensor.element_size()
    return {first + int(o) * size + b for o in offsets.flatten() for b in range(size)}


def named(rows, block: int) -> set[int]:
    return {
        r.base + r.stride * block + b
        for r in rows
        for b in range(r.block_bytes)
    }


# Blocks, K and V, tokens, heads, content: in memory in any order.
@pytest.mark.parametrize("order", list(permutations(range(5))), ids=str)
@pytest.mark.parametrize("per_block", (1, 2))
def test_a_block_is_all_its_bytes_and_no_other_blocks(order, per_block):
    shape = (3 * per_block, 2, 4, 2, 3)
    stored = torch.empty([shape[d] for d in order], dtype=torch.float16)
    tensor = stored.permute([order.index(d) for d in range(5)])
    assert tuple(tensor.shape) == shape
    rows = regions(0, shape, tensor.stride(), tensor.element_size(), 0, 3)
    for block in range(3):
        own = bytes_of(tensor, 0, block, per_block)
        assert named(rows, block) == own, order
    assert len(set().union(*(named(rows, b) for b in range(3)))) == tensor.nbytes


@pytest.mark.parametrize("layers_outside", (True, False))
def test_layers_share_a_block_in_block_outermost_layouts(layers_outside):
    layers, blocks, page = 3, 4, 10
    memory = torch.empty(layers * blocks * page, dtype=torch.int8)
    claimed: dict[int, int] = {}
    for layer in range(layers):
        if layers_outside:
            tensor = memory.view(layers, blocks, page)[layer]
        else:
            tensor = memory.view(blocks, layers, page)[:, layer]
        rows = regions(
            tensor.data_ptr() - memory.data_ptr(), tensor.shape, tensor.stride(), 1, 0, blocks
        )
        assert [r.stride for r in rows] == [page if layers_outside else layers * page]
        for block in range(blocks):
            for byte in named(rows, block):
                assert claimed.setdefault(byte, block) == block
    assert len(claimed) == memory.nbytes


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="7 blocks of a kernel do not make 3"):
        regions(0, (7, 4), (4, 1), 2, 0, 3)
    with pytest.raises(ValueError, match="overlap"):
        regions(0, (4, 4), (2, 1), 2, 0, 4)
