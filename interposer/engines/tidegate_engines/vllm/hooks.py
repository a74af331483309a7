"""Where the plugin stands in vLLM's scheduler: around a few methods, each of which still runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from .grown import GrownBlocks
from .lost import LostBlocks

State = LostBlocks | GrownBlocks

#: The attribute of a scheduler, and of its block pool, that holds what the plugin knows of it.
STATE = "_tidegate"


def around(owner: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    """Replaces ``owner.name`` by a call of ``wrapper(original, self, ...)``, once."""
    original = owner.__dict__[name]
    if getattr(original, "_tidegate", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    method._tidegate = True  # type: ignore[attr-defined]
    setattr(owner, name, method)


def install(scheduler: type[Any], manager: type[Any], pool: type[Any]) -> None:
    """Puts the hooks in place. Schedulers without state are left alone."""

    def schedule(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        if state is None:
            return original(self, *args, **kwargs)
        with state.lock:
            state.about_to_schedule()
            output = original(self, *args, **kwargs)
            state.scheduled(output)
        state.starve()
        return output

    def update_from_output(original: Any, self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        if state is None:
            return original(self, output, *args, **kwargs)
        with state.lock:
            outputs = original(self, state.arrived(output), *args, **kwargs)
            state.settled()
        return outputs

    def requests_changed(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        if state is None:
            return original(self, *args, **kwargs)
        with state.lock:
            result = original(self, *args, **kwargs)
            state.requests_changed()
        return result

    def parting(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self.block_pool, STATE, None)
        if state is not None:
            state.parting(request)
        return original(self, request, *args, **kwargs)

    def allocating(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self.block_pool, STATE, None)
        if state is not None:
            state.allocating(request)
        return original(self, request, *args, **kwargs)

    def reset_prefix_cache(original: Any, self: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        if state is None:
            return original(self)
        # vLLM resets only a pool that nobody holds a block of.
        with state.lock:
            blocks = state.let_go()
            try:
                return original(self)
            finally:
                state.hold(blocks)

    def get_usage(original: Any, self: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        return state.usage(original(self)) if state else original(self)

    around(scheduler, "schedule", schedule)
    around(scheduler, "update_from_output", update_from_output)
    around(scheduler, "add_request", requests_changed)
    around(scheduler, "finish_requests", requests_changed)
    around(manager, "allocate_slots", allocating)
    around(manager, "free", parting)
    if "pop_blocks_for_free" in manager.__dict__:
        around(manager, "pop_blocks_for_free", parting)
    around(pool, "reset_prefix_cache", reset_prefix_cache)
    around(pool, "get_usage", get_usage)


def watch(scheduler: Any, state: State) -> None:
    """Gives a scheduler its state; its hooks act from now on."""
    setattr(scheduler, STATE, state)
    setattr(scheduler.kv_cache_manager.block_pool, STATE, state)


def start_looking(state: State) -> threading.Event:
    """Starts the thread that serves an idle engine; it ends when the event is set."""
    stop = threading.Event()
    threading.Thread(target=state.look, args=(stop,), name="tidegate-idle", daemon=True).start()
    return stop
