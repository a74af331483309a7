"""The plugin for SGLang: no line of the engine changes.

``register``  what SGLang calls in each of its processes
``flight``    the requests in flight, as a scheduler has them

SGLang's memory is not shared: its engine is gated as any program is. An online one has the agent hear whether requests
are in flight, from each of its ranks: in SGLang each schedules for itself, in the process that uses its GPU.

The hooks stand in SGLang's own registry (``sglang.srt.plugins``, from 0.5.11 on), around three methods that every event
loop calls: with overlap and without, with pipeline stages and with prefill and decode apart.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import abi
from ..word import Word
from . import flight

#: SGLang shows the warnings of every logger.
log = logging.getLogger("sglang.tidegate")

#: How long an engine without ``TIDEGATE_ROLE`` waits for an agent to say what it is, in seconds.
PATIENCE_S = 5.0

#: Where SGLang's scheduler is.
MODULE = "sglang.srt.managers.scheduler"

#: The attribute of a scheduler that holds what the plugin knows of it.
STATE = "_tidegate"


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
    if asked or library is None:
        return asked
    return library.role(PATIENCE_S)


def watch(scheduler: Any) -> None:
    """Has the agent hear of a scheduler's requests, if the engine is online."""
    library = abi.library()
    if library is None:
        return
    given = role()
    if given not in ("online", "offline"):
        unset = "TIDEGATE_ROLE is not set, and no agent's rule makes it online or offline"
        why = f"TIDEGATE_ROLE is {given!r}; it takes online or offline" if given else unset
        log.warning("Tidegate does not hear of this engine's requests: %s", why)
        return
    log.info("Tidegate shares no KV memory of SGLang; this engine is gated (%s)", given)
    if given == "online":
        word = Word(library, log)
        setattr(scheduler, STATE, word)
        word.say(lambda: flight.count(scheduler))


def _made(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    try:
        watch(self)
    except Exception as error:  # noqa: BLE001 # the engine goes on without
        log.warning("Tidegate does not hear of this engine's requests: %s: %s", type(error).__name__, error)


def _arriving(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around each look at what has come: it is said before SGLang does anything for it."""
    word: Word | None = getattr(self, STATE, None)
    if word is None:
        return original(self, *args, **kwargs)
    come = args[0] if args else kwargs.get("recv_reqs")
    if come:
        word.say(lambda: flight.count(self) + flight.arriving(come))
    try:
        return original(self, *args, **kwargs)
    finally:
        word.say(lambda: flight.count(self))


def _processed(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the use of a step's results: requests may have ended."""
    result = original(self, *args, **kwargs)
    word: Word | None = getattr(self, STATE, None)
    if word is not None:
        word.say(lambda: flight.count(self))
    return result


#: What is put around which of the scheduler's methods.
HOOKS: dict[str, Callable[..., Any]] = {
    "__init__": _made,
    "process_input_requests": _arriving,
    "process_batch_result": _processed,
}
