"""A vLLM worker's side: its KV cache is allocated so that it can be taken, and registered."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from .. import abi, around
from ..job import Region
from . import held, hints, links, ranks, regions, resumed, versions
from .withheld import NULL_BLOCK

log = logging.getLogger("vllm.tidegate")

#: Functions that make the KV cache's tensors and nothing else, by module and name: the first model
#: runner's method and the second one's function (to 0.28), and the function both import.
ALLOCATORS = (
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._allocate_kv_cache_tensors"),
    ("vllm.v1.worker.gpu.attn_utils", "_allocate_kv_cache"),
    ("vllm.v1.worker.gpu_model_runner", "allocate_kv_cache"),
    ("vllm.v1.worker.gpu.attn_utils", "allocate_kv_cache"),
)

#: How long an engine waits for an agent to say that it is online, in seconds. One that is there has said so by then.
ROLE_WAIT_S = 1.0

#: The number of the KV cache that this process registered.
registered: int | None = None
#: Whether that cache grows: only the blocks that its scheduler reserves have memory.
grows = False
#: From a block to the next one, bytes, in that cache.
_stride: int | None = None
#: Whether the runner of this process is mended after a dropped step (``resumed``).
mended = False


@contextlib.contextmanager
def scope(library: abi.Library, flags: int) -> Iterator[None]:
    """What this thread allocates meanwhile can be taken and given back."""
    import torch

    # Memory that torch already holds would be handed out again without asking the driver.
    torch.cuda.empty_cache()
    library.begin_scope(abi.handle_bytes(log), flags)
    try:
        yield
    finally:
        library.end_scope()


def _owner(module: str, name: str) -> tuple[Any, str] | None:
    owner: Any = sys.modules.get(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    return (owner, last) if owner is not None and hasattr(owner, last) else None


@contextlib.contextmanager
def allocators_in_scope(library: abi.Library, flags: int) -> Iterator[None]:
    """The KV cache's tensors, and nothing else, are allocated in a scope."""
    replaced = []
    for module, name in ALLOCATORS:
        found = _owner(module, name)
        if found is None:
            continue
        owner, last = found
        original = getattr(owner, last)

        def allocate(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            with scope(library, flags):
                return _original(*args, **kwargs)

        replaced.append((owner, last, original))
        setattr(owner, last, allocate)
    if not replaced:
        raise RuntimeError("no function of this vLLM is known to allocate the KV cache")
    try:
        yield
    finally:
        for owner, last, original in replaced:
            setattr(owner, last, original)


def layer_regions(runner: Any, kv: Any) -> list[Region]:
    """Where the blocks of every layer of a worker lie."""
    context = runner.vllm_config.compilation_config.static_forward_context
    found: dict[Region, None] = {}
    for group in [group for groups in runner.attn_groups for group in groups]:
        for layer in group.layer_names:
            tensor = context[layer].kv_cache
            tensor = tensor[0] if isinstance(tensor, (list, tuple)) else tensor
            dim = block_dim(group, runner)
            for region in regions.regions(
                tensor.data_ptr(),
                tensor.shape,
                tensor.stride(),
                tensor.element_size(),
                dim,
                kv.num_blocks,
            ):
                found.setdefault(region)
    return list(found)


def block_dim(group: Any, runner: Any) -> int:
    """Which dimension of a layer's tensor counts blocks."""
    ask = getattr(group.backend, "get_kv_cache_block_dim", None)
    if ask is None:
        return 0  # since views are [block, head, token, content]
    spec = group.kv_cache_spec
    return ask(
        spec.block_size,
        spec.num_kv_heads,
        spec.head_size,
        cache_dtype_str=runner.cache_config.cache_dtype,
    )


def _why_fixed(library: abi.Library) -> str | None:
    """Why an online engine's cache begins with all of its memory; None: an agent gives it what it needs."""
    if library.role(ROLE_WAIT_S) == "online":
        return None
    return (
        "no agent makes it online, so the reservation of this engine is fixed "
        f"(`tidegate explain pid {os.getpid()}`)"
    )


def _keep_all(library: abi.Library, error: Exception) -> None:
    """Puts memory behind all of a cache that was to grow and was not registered."""
    try:
        library.back_unclaimed()
    except abi.TidegateError as short:
        # The engine would write over its own tokens.
        raise RuntimeError(f"This engine's KV cache has no memory: {short} (Tidegate cannot share it: {error})") from error


def initialize(original: Any, worker: Any, kv: Any, role: str, version: str) -> Any:
    """Around ``Worker.initialize_from_config``."""
    global registered, grows, _stride, mended
    # Of this engine: one before it in this process has ended, or has its scheduler.
    registered, grows, _stride, mended = None, False, None, False
    library = abi.library()
    why = versions.why_not(version, worker.vllm_config, kv, role)
    world = worker.parallel_config.world_size
    link = finish = None
    if why is None and library is not None and role == "online":
        why = _why_fixed(library)
        if why is None and not (world == 1 and links.is_core()):
            link, finish = links.connect(), held.finisher()
            if link is None or finish is None:
                why = "no scheduler is in this process or could be found from it, so the reservation of this engine is fixed"
    if library is None or why is not None:
        log.warning("Tidegate takes no memory from this engine: %s", why or "no library")
        if link is not None:
            link.close()
        return original(worker, kv)
    flags = abi.ELASTIC if role == "online" else 0
    library.attach(worker.rank, world)
    if not flags and links.is_core() and not abi.Offline(library).alone():
        # Its scheduler would end the engine, after what it has was taken by the numbers of the other's blocks.
        job = os.environ.get("TIDEGATE_JOB", "")
        why = f"another engine has job {job!r}; give each a TIDEGATE_JOB of its own"
        raise RuntimeError(f"Tidegate cannot share this engine's KV memory: {why}")
    with allocators_in_scope(library, flags):
        result = original(worker, kv)
    try:
        rows = layer_regions(worker.model_runner, kv)
        registered = library.register(rows, NULL_BLOCK + 1, flags)
        grows = role == "online"
        _stride = min(row.stride for row in rows)
        mended = role == "offline" and mend(worker.model_runner)
    except (abi.TidegateError, ValueError) as error:
        if flags:
            _keep_all(library, error)
        log.warning("Tidegate takes no memory from this engine: %s", error)
        if link is not None:
            link.close()
        return result
    if link is not None and finish is not None:
        for owner in type(worker).__mro__:
            ranks.listen(owner, lambda: role)
        hints.Word.spoken = True  # by the scheduler's process
        held.begin(library, link, registered, worker.rank, kv.num_blocks, finish)
    return result


def mend(runner: Any) -> bool:
    """Puts ``resumed`` into the first model runner; whether this one is of that kind."""
    first = _owner("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._update_states")
    if first is None or not isinstance(runner, first[0]):
        return False
    around.of_class(first[0], "_update_states", resumed.update_states)
    return True


def mends(config: Any) -> bool:
    """Whether the workers of an engine mend their runners, as far as the scheduler's process can tell."""
    if registered is not None:
        return mended
    # In processes of their own: vLLM's worker makes vLLM's runner.
    return config.parallel_config.worker_cls == "vllm.v1.worker.gpu_worker.Worker"


def stripe_run(kv: Any) -> int:
    """How many blocks share a handle, as the library counts them; at least one.

    Where the workers are other processes than the scheduler's, a block is taken to have one layer's
    keys and values in one place.
    """
    spec = kv.kv_cache_groups[0].kv_cache_spec
    return max(1, abi.handle_bytes(log) // (_stride or spec.page_size_bytes))
