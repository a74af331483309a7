"""The plugin for vLLM: no line of the engine changes.

``register``  what vLLM calls in each of its processes
``shape``     whether this vLLM is as one that was tested
``versions``  what differs between versions, and which engines are refused
``worker``    KV memory that can be taken, and where its blocks lie (``regions``)
``resumed``   what a worker's runner keeps of a request whose step is dropped
``hooks``     where the scheduler is listened to
``lost``      an offline scheduler whose blocks are taken, from the tables of each group of layers (``tables``)
``together``  which free blocks an offline request gets
``grown``     an online scheduler whose blocks come when needed
``fitted``    the part of a prompt that there is memory for is read while the rest is mapped
``hints``     an online scheduler that is refused: whether requests are in flight
``beats``     what an online scheduler says of its steps: a trainer may run between two of them
``arrivals``  requests that are sent while a step runs: what they will need is asked for at once
``announced`` requests that a front end has accepted: offline work is off the GPU before the first is sent
``ranks``     the same of a worker with a process of its own
``agreed``    an online scheduler of several ranks: granted is what all of them have; ``held`` is a rank's side, ``links``
              what is between them
``withheld``  what offline and online share: blocks that the allocator passes over
``background`` requests that ride in the steps of others (``TIDEGATE_BACKGROUND``)
``coserve``   training in the engine's own process (``TIDEGATE_TUNE``)

An engine's role is ``TIDEGATE_ROLE``, or else what a rule of the agent's says. Without the preloaded library nothing
is shared. Where neither gives a role, and in a vLLM that this plugin does not know, the engine is gated as any program is,
and its log says that nothing is shared.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
from functools import cache
from typing import Any

from .. import abi, around
from . import shape

#: vLLM shows what its own loggers say, and of others only warnings.
log = logging.getLogger("vllm.tidegate")

#: Roles with memory to share.
SHARING = ("online", "offline")

#: How long an engine without ``TIDEGATE_ROLE`` waits for an agent to say what it is, in seconds.
PATIENCE_S = 5.0


def register() -> None:
    """Called by vLLM in its engine core, its workers and its front end. It never fails: it would take vLLM along."""
    share()
    if os.environ.get("TIDEGATE_TUNE"):
        try:
            from .coserve import live

            live.register()
        except Exception as error:  # noqa: BLE001 # torch itself may be missing
            log.warning("Tidegate trains nothing in this engine: %s: %s", type(error).__name__, error)
    elif os.environ.get("TIDEGATE_BACKGROUND"):
        from . import background

        background.register()


def share() -> None:
    """Has the engine share its memory, where it was started with the library."""
    try:
        if abi.library() is None:
            return
        role = os.environ.get("TIDEGATE_ROLE", "")
        if role and role not in SHARING:
            log.warning(
                "Tidegate shares no KV memory of this engine: TIDEGATE_ROLE is %r; it takes online or offline", role
            )
            return
        install(role)
    except Exception as error:  # noqa: BLE001 # whatever another version does to what is looked for
        log.warning("Tidegate shares no KV memory of this engine: %s: %s", type(error).__name__, error)


@cache
def given() -> str:
    """The role that the agent's rules give this process, which has its context or makes none."""
    library = abi.library()
    role = library.role(PATIENCE_S) if library is not None else ""
    if role not in SHARING:
        log.warning(
            "Tidegate shares no KV memory of this engine: TIDEGATE_ROLE is not set, and no agent's rule makes it online "
            "or offline (`tidegate explain pid %d`)",
            os.getpid(),
        )
    return role


def install(asked: str) -> None:
    """Puts the hooks in place, in a vLLM that has what they stand around.

    The role is what the environment asks for. Without that it is asked of the agent when memory is about to be
    allocated: vLLM calls this in its front end too, and before a worker has its context.
    """
    import vllm

    version = getattr(vllm, "__version__", "of an unknown version")
    shape.found.cache_clear()
    why = shape.why_not(version)
    if why is not None:
        log.warning("Tidegate shares no KV memory of this engine: %s", why)
        if asked != "offline":
            listen(asked)
        return

    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_worker import Worker

    from . import hooks, ranks, worker

    if shape.known() != version:
        log.info("Tidegate takes vLLM %s for %s, whose shape it has", version, shape.known())
    hooks.install(Scheduler, KVCacheManager, BlockPool)

    def initialize(original: Any, self: Any, kv: Any) -> Any:
        role = asked or given()
        return worker.initialize(original, self, kv, role, version) if role in SHARING else original(self, kv)

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        role = asked or given()
        if role in SHARING:
            watch(self, role, version)
        listens(self)

    ranks.listen(Worker, lambda: asked or given())
    if asked != "offline":
        opening()
    arriving()
    around.of_class(Worker, "initialize_from_config", initialize)
    around.of_class(Scheduler, "__init__", made)


def listens(scheduler: Any) -> None:
    """Raises ``RuntimeError`` for a scheduler that does not ask for the memory of a cache that grows.

    Whatever kept it from its state, an engine that goes on without it computes in blocks without memory.
    """
    from . import agreed, hooks, worker
    from .grown import GrownBlocks

    if not isinstance(getattr(scheduler, hooks.STATE, None), GrownBlocks) and (worker.grows or agreed.anybody()):
        why = "its cache grows with what its scheduler asks for, and its scheduler asks for nothing"
        raise RuntimeError(f"Tidegate cannot share this engine's KV memory: {why}; unset TIDEGATE_ROLE")


def listen(asked: str) -> None:
    """Where it is online, has the agent hear whether requests are in flight, in a vLLM that is not known, if it has such a scheduler."""
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError:
        return  # the line that refuses this vLLM says what is missing
    if "__init__" not in vars(Scheduler):
        return

    from . import hooks

    def hinting(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if (asked or given()) == "online":
            hint(self)

    hooks.listen(Scheduler, hooks.STEPS)
    around.of_class(Scheduler, "__init__", hinting)
    arriving()
    with contextlib.suppress(ImportError):
        from vllm.v1.worker.gpu_worker import Worker

        from . import ranks

        ranks.listen(Worker, lambda: asked or given())


def arriving() -> None:
    """Listens to where an engine core takes in requests; without that, the scheduler is the first to know of them."""
    with contextlib.suppress(ImportError):
        from vllm.v1.engine.core import EngineCore

        from . import hooks

        hooks.listen_to_core(EngineCore)
        if "_initialize_kv_caches" in vars(EngineCore):
            around.of_class(EngineCore, "_initialize_kv_caches", begun)
    accepting()


def begun(original: Any, core: Any, *args: Any, **kwargs: Any) -> Any:
    """Around what has an engine core's workers allocate their caches: the core is about to make its scheduler."""
    from . import links

    links.begin_core()
    return original(core, *args, **kwargs)


def opening() -> None:
    """Has a core be found by its workers, where an executor starts them that is known."""
    with contextlib.suppress(ImportError):
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        from . import links

        if "_init_executor" in vars(MultiprocExecutor):
            around.of_class(MultiprocExecutor, "_init_executor", links.open_door)


def accepting() -> None:
    """Rings where a front end accepts a request, as far as this vLLM has such places."""
    if multiprocessing.current_process().name.startswith(("EngineCore", "VllmWorker")):
        return  # nothing is accepted there, and the front end's modules take time to import

    from . import announced

    announced.lay()
    bell = announced.Bell()
    for module, owner, name in announced.ACCEPTING:
        with contextlib.suppress(ImportError):
            found = getattr(importlib.import_module(module), owner, None)
            if name in vars(found or object):
                around.of_class(found, name, announced.ringing(bell))


def hint(scheduler: Any) -> None:
    """Has the agent hear of a scheduler's requests; nothing of it fails."""
    from . import announced, beats, hooks
    from .hints import Hints

    library = abi.library()
    if library is not None:
        for owner in type(scheduler).__mro__:
            hooks.listen(owner, hooks.STEPS)
        state = Hints(scheduler, library)
        state.beats = beats.Said(scheduler, library, log)
        setattr(scheduler, hooks.STATE, state)
        announced.hear(scheduler, state)


def watch(scheduler: Any, role: str, version: str) -> None:
    """Gives a new scheduler its state, if memory may be taken from its engine."""
    from . import agreed, announced, beats, hints, hooks, versions, worker
    from .grown import GrownBlocks
    from .lost import LostBlocks

    library = abi.library()
    if library is None:
        return
    why = versions.why_not(version, scheduler.vllm_config, scheduler.kv_cache_config, role)
    bypass = versions.bypass(type(scheduler))
    ranks = None
    if role == "online" and worker.registered is None:
        ranks = agreed.job(scheduler.parallel_config.world_size, scheduler.kv_cache_config.num_blocks)
    if why is None and bypass is not None:
        if worker.registered is not None or ranks is not None:
            # Its blocks would be taken, or have no memory yet, and nobody would hear of it.
            raise RuntimeError(f"Tidegate cannot share this engine's KV memory: {bypass}; unset TIDEGATE_ROLE")
        log.warning("Tidegate takes no memory from this engine: %s", bypass)
        why = bypass
    state: LostBlocks | GrownBlocks
    if why is None and role == "offline":
        library.attach(0, scheduler.parallel_config.world_size)
        job = abi.Offline(library)
        if not job.alone():
            why = f"another engine has job {os.environ.get('TIDEGATE_JOB', '')!r}; give each a TIDEGATE_JOB of its own"
            raise RuntimeError(f"Tidegate cannot share this engine's KV memory: {why}")
        run = worker.stripe_run(scheduler.kv_cache_config)
        mended = worker.mends(scheduler.vllm_config)
        ways = versions.engine(type(scheduler))
        state = LostBlocks(scheduler, job, ways, run, mended)
    elif why is None and (ranks is not None or worker.registered is not None):
        state = GrownBlocks(scheduler, ranks or abi.Online(library, worker.registered))
        state.beats = beats.Said(scheduler, library, log)
        hints.Word.spoken = True
        announced.hear(scheduler, state)
    else:
        # The worker has said why.
        if role == "online":
            hint(scheduler)
        return
    hooks.watch(scheduler, state)
    hooks.start_looking(state)
    log.info("Tidegate shares this engine's KV memory (%s)", role)
