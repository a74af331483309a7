"""The plugin for vLLM: no line of the engine changes.

``register``  what vLLM calls in each of its processes
``versions``  what differs between versions, and which engines are refused
``worker``    KV memory that can be taken, and where its blocks lie (``regions``)
``hooks``     where the scheduler is listened to
``lost``      an offline scheduler whose blocks are taken
``together``  which free blocks an offline request gets
``grown``     an online scheduler whose blocks come when needed
``withheld``  what both share: blocks that the allocator passes over

An engine's role is ``TIDEGATE_ROLE``. Without the preloaded library nothing happens. Without the variable, and in
a vLLM that this plugin does not know, the engine is gated as any program is, and its log says that nothing is shared.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from .. import abi
from .versions import TESTED

#: vLLM shows what its own loggers say, and of others only warnings.
log = logging.getLogger("vllm.tidegate")


def register() -> None:
    """Called by vLLM in its engine core, its workers and its front end. It never fails: it would take vLLM along."""
    if abi.library() is None:
        return
    role = os.environ.get("TIDEGATE_ROLE", "")
    if role not in ("online", "offline"):
        said = f"TIDEGATE_ROLE is {role!r}" if role else "TIDEGATE_ROLE is not set"
        log.warning("Tidegate shares no KV memory of this engine: %s; it takes online or offline", said)
        return
    try:
        install(role)
    except (ImportError, AttributeError, KeyError) as error:
        # What this plugin looks for is elsewhere in this version.
        import vllm

        version = getattr(vllm, "__version__", "of an unknown version")
        log.warning(
            "Tidegate shares no KV memory of this engine: vLLM %s was not tested (%s were): %s",
            version,
            ", ".join(TESTED),
            error,
        )


def install(role: str) -> None:
    """Puts the hooks in place, in a vLLM that has what they stand around."""
    import vllm
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_worker import Worker

    from . import hooks, worker

    hooks.install(Scheduler, KVCacheManager, BlockPool)

    def initialize(original: Any, self: Any, kv: Any) -> Any:
        return worker.initialize(original, self, kv, role, vllm.__version__)

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch(self, role, vllm.__version__)

    hooks.around(Worker, "initialize_from_config", initialize)
    hooks.around(Scheduler, "__init__", made)


def watch(scheduler: Any, role: str, version: str) -> None:
    """Gives a new scheduler its state, if memory may be taken from its engine."""
    from . import hooks, versions, worker
    from .grown import GrownBlocks
    from .lost import LostBlocks

    library = abi.library()
    why = versions.why_not(version, scheduler.vllm_config, scheduler.kv_cache_config)
    if library is None or why is not None:
        return  # the worker has said why
    state: LostBlocks | GrownBlocks
    if role == "offline":
        library.attach(0, scheduler.parallel_config.world_size)
        run = worker.stripe_run(scheduler.kv_cache_config)
        state = LostBlocks(scheduler, abi.Offline(library), versions.engine(type(scheduler)), run)
    elif worker.registered is not None:
        state = GrownBlocks(scheduler, abi.Online(library, worker.registered))
    else:
        return
    hooks.watch(scheduler, state)
    hooks.start_looking(state)
    log.info("Tidegate shares this engine's KV memory (%s)", role)
