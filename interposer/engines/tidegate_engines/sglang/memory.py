"""KV memory of a SGLang engine that can be taken: allocated in the library's scope, and registered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ..abi import Library, handle_bytes
from ..job import Region
from ..vllm.regions import regions
from .slots import run_of

log = logging.getLogger("sglang.tidegate")

#: Where SGLang's memory pools are, and the method of one that makes its tensors and nothing else: first of 0.5.23.
MODULE = "sglang.srt.mem_cache.memory_pool"
OWNER = "MHATokenToKVPool"
ALLOCATORS = ("_create_buffers_normal", "_create_buffers")


@contextlib.contextmanager
def in_scope(library: Library, wanted: Callable[[], bool]) -> Iterator[None]:
    """Tensors of KV pools that are made meanwhile lie in memory that can be taken, if ``wanted`` says so then."""
    import importlib

    owner = getattr(importlib.import_module(MODULE), OWNER)
    name = next(name for name in ALLOCATORS if name in vars(owner))
    original = vars(owner)[name]

    def begun() -> bool:
        """Without a scope nothing can be registered, and the line that says so is about that."""
        try:
            if not wanted():
                return False
            import torch

            # Memory that torch already holds would be handed out again without asking the driver.
            torch.cuda.empty_cache()
            library.begin_scope(handle_bytes(log), 0)
        except Exception as error:  # noqa: BLE001 # the engine goes on without
            log.warning("Tidegate takes no memory from this engine: %s: %s", type(error).__name__, error)
            return False
        return True

    def allocate(self: Any) -> Any:
        if not begun():
            return original(self)
        try:
            return original(self)
        finally:
            library.end_scope()

    setattr(owner, name, allocate)
    try:
        yield
    finally:
        setattr(owner, name, original)


def slots(pool: Any) -> int:
    """How many slots a pool's tensors have, with the padding."""
    return pool.k_buffer[0].shape[0]


def pool_regions(pool: Any) -> list[Region]:
    """Where the blocks of every layer lie. What is left over behind the last whole block goes with it (``Slots``)."""
    run = run_of(pool.page_size)
    blocks = slots(pool) // run
    return [
        region
        for tensor in (*pool.k_buffer, *pool.v_buffer)
        for region in regions(
            tensor.data_ptr(),
            (blocks * run, *tensor.shape[1:]),
            tensor.stride(),
            tensor.element_size(),
            0,
            blocks,
        )
    ]
