"""What differs between versions of vLLM, and which of them a test has seen.

An engine of another version, or one whose KV blocks mean more than this plugin knows, is never
registered: it is gated, but nothing is taken from it.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

#: Versions that tests/engines ran against.
TESTED = ("0.24.0", "0.33.0")


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

    def without(self, output: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
        """The step without the output of some of its requests."""
        if not dropped:
            return output
        kept = {n: t for n, t in output.num_scheduled_tokens.items() if n not in dropped}
        return dataclasses.replace(output, num_scheduled_tokens=kept)

    def tell_preempted(self, output: SchedulerOutput, requeued: set[str]) -> None:
        """Workers of the second model runner free a slot only for a request they are told of."""
        if requeued and output.preempted_req_ids is not None:
            output.preempted_req_ids |= requeued


class StaleEngine(Engine):
    """The ways of versions that mark output under way as stale on the request (0.33)."""

    def requeue(self, scheduler: Scheduler, request: Request, now: float) -> None:
        scheduler._preempt_request(request, now, drop_stale_output=True)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def drop_in_flight(self, request: Request) -> None:
        if request.num_stale_output_tokens:
            request.drop_stale_output = True

    def without(self, output: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
        return output

    def tell_preempted(self, output: SchedulerOutput, requeued: set[str]) -> None:
        return None


def engine(scheduler: type[Any]) -> Engine:
    """The ways of the version that is installed."""
    stale = "drop_stale_output" in inspect.signature(scheduler._preempt_request).parameters
    return StaleEngine() if stale else Engine()


def why_not(version: str, config: VllmConfig, kv: KVCacheConfig) -> str | None:
    """Why nothing may be taken from this engine, in words for its log; None when all is known."""
    # First: what is asked below need not be there in another version.
    if version not in TESTED:
        return f"vLLM {version} was not tested ({', '.join(TESTED)} were)"
    parallel = config.parallel_config
    reasons = {
        "its KV cache has several groups": len(kv.kv_cache_groups) != 1,
        "pipeline parallelism is on": parallel.pipeline_parallel_size > 1,
        "data parallelism is on": parallel.data_parallel_size > 1,
        "context parallelism is on": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        "a KV connector may pin or send blocks": config.kv_transfer_config is not None,
        "an encoder-cache connector is set": config.ec_transfer_config is not None,
        "sleep mode moves the same memory": config.model_config.enable_sleep_mode,
        "speculative decoding is on": config.speculative_config is not None,
        "it is an encoder-decoder model": config.model_config.is_encoder_decoder,
        "routed experts are returned per slot": getattr(
            config.model_config, "enable_return_routed_experts", False
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    kind = type(kv.kv_cache_groups[0].kv_cache_spec).__name__
    if kind not in ("FullAttentionSpec", "MLAAttentionSpec"):
        return f"its KV cache is a {kind}"
    return None
