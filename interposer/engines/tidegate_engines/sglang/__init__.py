"""The plugin for SGLang: no line of the engine changes.

``register``  what SGLang calls in each of its processes
``flight``    the requests in flight, as a scheduler has them
``why_not``   which engines are refused
``memory``    KV memory that can be taken, and where its blocks lie
``lost``      an offline scheduler whose slots are taken
``slots``     slots that the allocator passes over
``tree``      what leaves the prefix cache
``state``     where a scheduler keeps what the plugin knows of it
``ways``      what differs between versions

An online engine keeps its memory and has the agent hear whether requests are in flight, from each of its ranks: in
SGLang each schedules for itself, in the process that uses its GPU. An offline engine of one rank shares its memory, if
``why_not`` has nothing against it; else it is gated as any program is.

The hooks stand in SGLang's own registry (``sglang.srt.plugins``, from 0.5.11 on), around three methods that every event
loop calls: with overlap and without, with pipeline stages and with prefill and decode apart. A scheduler that shares
memory is listened to in a few places more, each in the instance.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .. import abi
from ..word import Word
from . import flight
from .state import STATE

if TYPE_CHECKING:
    from .lost import LostSlots

#: SGLang shows the warnings of every logger.
log = logging.getLogger("sglang.tidegate")

#: How long an engine without ``TIDEGATE_ROLE`` waits for an agent to say what it is, in seconds.
PATIENCE_S = 5.0

#: Where SGLang's scheduler is.
MODULE = "sglang.srt.managers.scheduler"


def register() -> None:
    """Called by SGLang in its schedulers and its other processes. It never fails: it would be a traceback in the log."""
    try:
        if abi.library() is not None:
            install()
    except Exception as error:  # noqa: BLE001 # whatever another version does to what is looked for
        log.warning("Tidegate does not hear of this engine's requests: %s: %s", type(error).__name__, error)


def install() -> None:
    """Puts the hooks in place, in a process that has a scheduler's code."""
    module = sys.modules.get(MODULE)
    if module is None:
        return  # a detokenizer: it loads nothing for the sake of a hook
    scheduler = getattr(module, "Scheduler", None)
    missing = [name for name in HOOKS if not callable(getattr(scheduler, name, None))]
    if missing:
        log.warning("Tidegate does not hear of this engine's requests: SGLang's Scheduler has no %s", ", ".join(missing))
        return

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, hook in HOOKS.items():
        HookRegistry.register(f"{MODULE}.Scheduler.{name}", hook, HookType.AROUND)


def role() -> str:
    """The role of this process, which has its context: of the environment, or else of the agent's rules."""
    asked = os.environ.get("TIDEGATE_ROLE", "")
    library = abi.library()
    return asked if asked or library is None else _by_rule(library)


@functools.cache
def _by_rule(library: abi.Library) -> str:
    return library.role(PATIENCE_S)


def watch(scheduler: Any, why: str | None = None) -> None:
    """Gives a new scheduler what its role asks for. ``why`` nothing may be taken from it, as far as that is known."""
    library = abi.library()
    if library is None:
        return
    given = role()
    if given not in ("online", "offline"):
        unset = "TIDEGATE_ROLE is not set, and no agent's rule makes it online or offline"
        said = f"TIDEGATE_ROLE is {given!r}; it takes online or offline" if given else unset
        log.warning("Tidegate does not hear of this engine's requests: %s", said)
        return
    if given == "offline":
        try:
            share(scheduler, library, why)
        except Exception as error:  # noqa: BLE001 # nothing is registered, so nothing is taken
            log.warning("Tidegate takes no memory from this engine: %s: %s", type(error).__name__, error)
        return
    log.info("Tidegate shares no KV memory of an online SGLang; this engine is gated")
    word = Word(library, log)
    setattr(scheduler, STATE, word)
    word.say(lambda: flight.count(scheduler))


def share(scheduler: Any, library: abi.Library, why: str | None) -> None:
    """Has an offline engine's memory be taken, if there is nothing against it."""
    from . import why_not

    why = why or why_not.parts(scheduler)
    if why is not None:
        log.warning("Tidegate takes no memory from this engine: %s", why)
        return

    from . import hooks, lost, memory, slots, ways

    cache, allocator = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    way = ways.ways_of(cache)
    assert way is not None  # why_not looks
    pool = allocator.get_kvcache()
    job = abi.Offline(library)
    if not job.alone():
        said = f"another engine has job {os.environ.get('TIDEGATE_JOB', '')!r}; give each a TIDEGATE_JOB of its own"
        log.warning("Tidegate takes no memory from this engine: %s", said)
        return
    # Block 0 has the slot that padding reads.
    kv = library.register(memory.pool_regions(pool), 1, 0)
    # Where it cannot be whole again what is lost stays held back, and nothing more is taken.
    unregister = functools.partial(library.call, "tg_kv_unregister", kv, allowed=(errno.ENOMEM,))
    try:
        held = slots.Slots(allocator, memory.slots(pool))
        hooks.install(scheduler, lost.LostSlots(scheduler, job, way, ways.tree_of(cache), held, unregister))
    except Exception:
        unregister()
        raise
    log.info("Tidegate shares this engine's KV memory (offline)")


@contextlib.contextmanager
def preparing(args: Any) -> Iterator[str | None]:
    """The memory of an engine with these arguments is allocated meanwhile; why nothing will be taken of it."""
    from . import memory, why_not

    library = abi.library()
    why = why_not.arguments(args)
    if why is not None or library is None or os.environ.get("TIDEGATE_ROLE", "offline") != "offline":
        yield why
        return

    def offline() -> bool:
        if role() != "offline":
            return False
        library.attach(0, 1)
        return True

    with memory.in_scope(library, offline):
        yield None


def _made(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    why: str | None = None
    with contextlib.ExitStack() as stack:
        try:
            why = stack.enter_context(preparing(args[0] if args else kwargs.get("server_args")))
        except Exception as error:  # noqa: BLE001 # the engine goes on without
            why = f"{type(error).__name__}: {error}"
        original(self, *args, **kwargs)
    try:
        watch(self, why)
    except Exception as error:  # noqa: BLE001 # the engine goes on without
        log.warning("Tidegate does not hear of this engine's requests: %s: %s", type(error).__name__, error)


def _arriving(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each look at what has come: it is said before SGLang does anything for it."""
    state: Word | LostSlots | None = getattr(self, STATE, None)
    if not isinstance(state, Word):
        if state is None:
            return original(self, *args, **kwargs)
        state.turn()
        with state.taking_in():
            return original(self, *args, **kwargs)
    come = args[0] if args else kwargs.get("recv_reqs")
    if come:
        state.say(lambda: flight.count(self) + flight.arriving(come))
    try:
        return original(self, *args, **kwargs)
    finally:
        state.say(lambda: flight.count(self))


def _processed(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the use of a step's results: requests may have ended."""
    state: Word | LostSlots | None = getattr(self, STATE, None)
    if state is not None and not isinstance(state, Word):
        with state.arrived(args[1] if len(args) > 1 else kwargs["result"]):
            return original(self, *args, **kwargs)
    result = original(self, *args, **kwargs)
    if state is not None:
        state.say(lambda: flight.count(self))
    return result


#: What is put around which of the scheduler's methods.
HOOKS: dict[str, Callable[..., Any]] = {
    "__init__": _made,
    "process_input_requests": _arriving,
    "process_batch_result": _processed,
}
