"""Where a scheduler that shares memory is listened to beside the three methods that every one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import around
from .lost import LostSlots
from .state import STATE

#: What a beam request is answered with: SGLang itself says so of what it does not support beside.
NO_BEAMS = "Beam search is not supported with KV memory that Tidegate may take."


def install(scheduler: Any, state: LostSlots) -> None:
    """Gives a scheduler its state; what is listened to acts from now on."""
    cache, allocator = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator

    def scheduling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with state.scheduling():
            plan = original(*args, **kwargs)
        if getattr(plan, "batch_to_run", plan) is None:
            state.starve()
        return plan

    def running(original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(batch, *args, **kwargs)
        state.launched(batch, result)
        return result

    def parting(original: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        state.parting(request)
        return original(request, *args, **kwargs)

    def retracting(original: Callable[..., Any], batch: Any, *args: Any) -> Any:
        known = getattr(batch.token_to_kv_pool_allocator, STATE, None)
        return original(batch, *args) if known is None else known.no_abort(batch, original, *args)

    def counting(original: Callable[..., Any], owner: Any) -> Any:
        known = getattr(owner.token_to_kv_pool_allocator, STATE, None)
        return original(owner) if known is None else known.slots.showing(lambda: original(owner))

    around.of_instance(scheduler, "get_next_batch_to_run", scheduling)
    around.of_instance(scheduler, "run_batch", running)
    for name in state.ways.PARTING:
        around.of_instance(cache, name, parting)
    around.of_instance(scheduler.req_to_token_pool, "free", parting)

    def beaming(original: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
        known = getattr(owner.tree_cache, STATE, None)
        return original(owner, *args, **kwargs) if known is None else NO_BEAMS

    beams = getattr(scheduler, "beam_coordinator", None)
    if beams is not None:
        around.of_class(type(beams), "validate_and_init", beaming)

    from sglang.srt.managers.schedule_batch import ScheduleBatch

    around.of_class(ScheduleBatch, "retract_decode", retracting)
    around.of_class(type(getattr(scheduler, "pool_stats_observer", scheduler)), "get_pool_stats", counting)
    for owner in (allocator, cache, scheduler):
        setattr(owner, STATE, state)
