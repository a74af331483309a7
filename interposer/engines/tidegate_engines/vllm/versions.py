"""What differs between versions of vLLM, and which engines are refused.

An engine of a shape that no test has seen (``shape``), or one whose KV blocks mean more than this plugin knows, is
never registered: it is gated, but nothing is taken from it.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from . import shape

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


#: The method of a scheduler's that is called: it has to be vLLM's, or to go on calling it.
CALLED = "_preempt_request"

#: The methods of a scheduler that are listened to. One that a subclass overrides is listened to there as well: what
#: counts is what vLLM calls, and what it gets.
SCHEDULER = (
    "schedule",
    "update_from_output",
    "add_request",
    "finish_requests",
    "reset_prefix_cache",
)


class Engine:
    """The ways of versions that count output under way in steps (0.24)."""

    def requeue(self, scheduler: Scheduler, request: Request, now: float) -> None:
        """Sends a running request back to waiting, its tokens kept, its blocks freed."""
        scheduler._preempt_request(request, now)
        # A request resumed in the very next step has to be sent whole.
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def drop_in_flight(self, request: Request) -> None:
        """None of the request's output under way will be used, nor what a reset told it to discard.

        After ``reset_prefix_cache`` vLLM counts the outputs to discard as they arrive. Here they are taken away before
        they do, so that the count would be paid with good tokens.
        """
        request.num_output_placeholders = 0
        request.async_tokens_to_discard = 0

    def without(self, scheduler: Scheduler, output: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
        """The step without the output of some of its requests."""
        if not dropped:
            return output
        kept = {n: t for n, t in output.num_scheduled_tokens.items() if n not in dropped}
        return dataclasses.replace(output, num_scheduled_tokens=kept)

    def tell_preempted(self, output: SchedulerOutput, requeued: set[str]) -> None:
        """Workers of the second model runner free a slot only for a request they are told of."""
        if requeued and output.preempted_req_ids is not None:
            output.preempted_req_ids |= requeued


class TellingEngine(Engine):
    """The ways of versions that tell workers of each preemption themselves (0.25) and count tokens under way (0.26)."""

    def without(self, scheduler: Scheduler, output: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
        for name in dropped:
            request = scheduler.requests.get(name)
            if request is not None and hasattr(request, "num_in_flight_tokens"):
                # vLLM takes them off for the requests of a step that it is told of.
                request.num_in_flight_tokens -= output.num_scheduled_tokens[name]
        return super().without(scheduler, output, dropped)

    def tell_preempted(self, output: SchedulerOutput, requeued: set[str]) -> None:
        return None


class StaleEngine(Engine):
    """The ways of versions that mark output under way as stale on the request (0.27)."""

    def requeue(self, scheduler: Scheduler, request: Request, now: float) -> None:
        scheduler._preempt_request(request, now, drop_stale_output=True)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def drop_in_flight(self, request: Request) -> None:
        if request.num_stale_output_tokens:
            request.drop_stale_output = True

    def without(self, scheduler: Scheduler, output: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
        return output

    def tell_preempted(self, output: SchedulerOutput, requeued: set[str]) -> None:
        return None


def engine(scheduler: type[Any]) -> Engine:
    """The ways of the version that is installed, whatever a class made from its scheduler says."""
    own = next(vars(owner)[CALLED] for owner in reversed(scheduler.__mro__) if CALLED in vars(owner))
    if "drop_stale_output" in inspect.signature(own).parameters:
        return StaleEngine()
    return TellingEngine() if "reset_preempted_req_ids" in own.__code__.co_names else Engine()


#: Schedulers of vLLM's own that were tested, by module and name.
OWN = (
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler",
)


def bypass(scheduler: type[Any]) -> str | None:
    """Why a scheduler class cannot be listened to; None for vLLM's own and for those that go on calling it."""
    from vllm.v1.core.sched.scheduler import Scheduler

    name = f"{scheduler.__module__}.{scheduler.__qualname__}"
    if name in OWN:
        return None
    if name.startswith("vllm."):
        return f"its scheduler {name} was not tested"
    if not issubclass(scheduler, Scheduler):
        return f"its scheduler {name} is not made from vLLM's"
    for owner in scheduler.__mro__[: scheduler.__mro__.index(Scheduler)]:
        for method in (*SCHEDULER, CALLED):
            own = owner.__dict__.get(method)
            if own is not None and not _goes_on(own, method):
                return f"its scheduler {name} has a {method} of its own that does not call vLLM's"
    return None


def _goes_on(function: Any, name: str) -> bool:
    """Whether a method that overrides another calls it, as far as its code says."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    todo = [code] if code is not None else []
    for code in todo:
        if name in code.co_names:
            return True
        todo += [part for part in code.co_consts if inspect.iscode(part)]
    return False


def why_not_grouped(kv: KVCacheConfig, role: str) -> str | None:
    """Why nothing may be taken from an engine whose layers are in these groups."""
    kinds = [type(group.kv_cache_spec).__name__ for group in kv.kv_cache_groups]
    if len(kinds) == 1:
        known = kinds[0] in ("FullAttentionSpec", "MLAAttentionSpec")
        return None if known else f"its KV cache is a {kinds[0]}"
    several = f"its KV cache has several groups ({', '.join(kinds) or 'none'})"
    if role != "offline":
        return f"{several}, and how many blocks an online one needs of each is not known"
    strange = sorted(set(kinds) - {"FullAttentionSpec", "SlidingWindowSpec"})
    if strange or "FullAttentionSpec" not in kinds:
        return f"{several}: of such only full attention with sliding windows was tested"
    sizes = {group.kv_cache_spec.block_size for group in kv.kv_cache_groups}
    if len(sizes) > 1 or any(getattr(group.kv_cache_spec, "extra_retained_tokens", 0) for group in kv.kv_cache_groups):
        # A block of one would hold tokens of a part of a block of the other.
        return f"{several} with blocks of {', '.join(map(str, sorted(sizes)))} tokens"
    return None


def why_not(version: str, config: VllmConfig, kv: KVCacheConfig, role: str = "offline") -> str | None:
    """Why nothing may be taken from this engine, in words for its log; None when all is known."""
    # First: what is asked below need not be there in another version.
    why = shape.why_not(version)
    if why is not None:
        return why
    parallel, model = config.parallel_config, config.model_config

    stages = getattr(parallel, "pipeline_parallel_size", 1)
    replicas = getattr(parallel, "data_parallel_size", 1)
    context = [
        getattr(parallel, f"{phase}_context_parallel_size", 1) for phase in ("decode", "prefill")
    ]

    reasons = {
        # A step is in more than one worker at a time: none knows when all have read what was lost.
        f"pipeline parallelism is on ({stages} stages)": stages > 1,
        # Each replica has a scheduler of its own, and a job has one log.
        f"data parallelism is on ({replicas} replicas)": replicas > 1,
        "context parallelism is on": max(context) > 1,
        "a KV connector may pin or send blocks": config.kv_transfer_config is not None,
        "an encoder-cache connector is set": getattr(config, "ec_transfer_config", None) is not None,
        "sleep mode moves the same memory": model.enable_sleep_mode,
        "speculative decoding is on": config.speculative_config is not None,
        "it is an encoder-decoder model": model.is_encoder_decoder,
        "routed experts are returned per slot": getattr(model, "enable_return_routed_experts", False),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    why = why_not_grouped(kv, role)
    if why is not None:
        return why
    if config.scheduler_config.scheduler_cls is not None:
        return bypass(config.scheduler_config.get_scheduler_cls())
    return None
