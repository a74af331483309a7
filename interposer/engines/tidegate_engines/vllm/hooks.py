"""Where the plugin stands in vLLM's scheduler and core: around a few methods, each of which still runs."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import abi, around
from . import withheld
from .arrivals import Arrivals
from .grown import GrownBlocks
from .hints import Hints
from .lost import LostBlocks
from .state import STATE
from .versions import SCHEDULER

log = logging.getLogger("vllm.tidegate")

State = LostBlocks | GrownBlocks | Hints

#: Those of them that are enough to know whether requests are in flight.
HINTS = ("update_from_output", "add_request", "finish_requests")

#: What is listened to besides where there are no others: a step begins there.
STEPS = (*HINTS, "schedule")


def _inside(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ``method(original, self, state, ...)`` for the outermost call of this name, if there is state."""

    def wrapper(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self, STATE, None)
        if state is None:
            return original(self, *args, **kwargs)
        with state.lock:
            if name in state.inside:  # a subclass calls what it overrides
                return original(self, *args, **kwargs)
            state.inside.add(name)
            try:
                result = method(original, self, state, *args, **kwargs)
            finally:
                state.inside.discard(name)
        if name == "schedule":
            state.starve()  # without the lock, for it is a wait
        return result

    return wrapper


def _schedule(original: Any, self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    state.steps += 1
    try:
        state.about_to_schedule()
        output = original(self, *args, **kwargs)
    finally:
        state.has_scheduled()
    state.scheduled(output)
    if (beats := getattr(state, "beats", None)) is not None:
        beats.scheduled(output)
    return output


def _update(original: Any, self: Any, state: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
    beats = getattr(state, "beats", None)
    say = None if beats is None else beats.arrived(output)
    outputs = original(self, state.arrived(output), *args, **kwargs)
    state.settled()
    if say is not None:
        say()
    return outputs


def _changed(original: Any, self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    state.requests_changed()
    return result


def _locked(original: Any, self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return original(self, *args, **kwargs)


_METHODS = dict(zip(SCHEDULER, (_schedule, _update, _changed, _changed, _locked), strict=True))


def listen(scheduler: type[Any], names: tuple[str, ...] = SCHEDULER) -> None:
    """Listens to those of a class's own methods that have these names."""
    for name in names:
        if name in scheduler.__dict__:
            around.of_class(scheduler, name, _inside(name, _METHODS[name]))


def install(scheduler: type[Any], manager: type[Any], pool: type[Any]) -> None:
    """Puts the hooks in place. Schedulers without state are left alone."""

    def parting(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        state: State | None = getattr(self.block_pool, STATE, None)
        if state is not None:
            state.parting(request)
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

    listen(scheduler)
    around.of_class(manager, "free", parting)
    if "pop_blocks_for_free" in manager.__dict__:
        around.of_class(manager, "pop_blocks_for_free", parting)
    around.of_class(pool, "reset_prefix_cache", reset_prefix_cache)
    around.of_class(pool, "get_usage", get_usage)


def _kept(call: Callable[[], Any]) -> Any:
    """What ``call`` returns. What fails in it is not the engine's: it is logged once, and None returned."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 # whatever another version has in place of what is looked for
        if not _kept.told:  # type: ignore[attr-defined]
            _kept.told = True  # type: ignore[attr-defined]
            log.warning("Tidegate does not hear when requests come: %s: %s", type(error).__name__, error)
        return None


_kept.told = False  # type: ignore[attr-defined]


def listen_to_core(core: type[Any]) -> None:
    """Listens to where an engine core takes in requests, if it does so as it is known to."""
    if not {"preprocess_add_request", "add_request"} <= vars(core).keys():
        return

    def state_of(core: Any) -> Arrivals | None:
        state = getattr(getattr(core, "scheduler", None), STATE, None)
        return state if isinstance(state, Arrivals) else None

    def preprocessing(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(self)
        if state is None:
            return original(self, request, *args, **kwargs)
        name = _kept(lambda: _coming(state, request))
        try:
            return original(self, request, *args, **kwargs)
        except BaseException:
            _kept(lambda: state.came(name))
            raise

    def adding(original: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, request, *args, **kwargs)
        finally:
            state = state_of(self)
            if state is not None:
                _kept(lambda: state.came(request.request_id))

    around.of_class(core, "preprocess_add_request", preprocessing)
    around.of_class(core, "add_request", adding)


def _coming(state: Arrivals, request: Any) -> str:
    state.coming(request)
    return request.request_id


def watch(scheduler: Any, state: State) -> None:
    """Gives a scheduler its state; its hooks act from now on."""
    for owner in type(scheduler).__mro__:
        listen(owner)
    setattr(scheduler, STATE, state)
    setattr(scheduler.kv_cache_manager.block_pool, STATE, state)


def start_looking(state: LostBlocks | GrownBlocks) -> threading.Event:
    """Starts the thread that serves an idle engine; it ends when the event is set, or with the engine.

    The program may go on after an engine, and make another one.
    """
    stop, living = threading.Event(), weakref.ref(state)
    threading.Thread(target=_keep_looking, args=(living, stop), name="tidegate-idle", daemon=True).start()
    return stop


def _keep_looking(living: weakref.ref[Any], stop: threading.Event) -> None:
    seen = -1
    while not stop.wait(withheld.IDLE_S):
        state = living()
        if state is None:
            return
        try:
            seen = state.look(seen)
        except abi.TidegateError as error:
            log.warning("Tidegate looks after an idle engine no more: %s", error)
            return  # its cache is gone, or another engine of this process hears what is lost
        del state
