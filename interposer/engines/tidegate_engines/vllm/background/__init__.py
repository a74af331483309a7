"""Background requests in vLLM (``TIDEGATE_BACKGROUND``).

``scheduler`` which background requests a step has
``told``      the numbers that the library is handed
``promised``  what the variable says

Nothing of this is loaded without the variable. In an engine that is not known one line of vLLM's log says why, and
requests with a priority are vLLM's.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from ... import around, coserve_abi
from .. import shape, versions
from . import promised
from .scheduler import Background

log = logging.getLogger("vllm.tidegate")

#: The attribute of a scheduler that holds its background requests.
STATE = "_tidegate_background"

#: What this stands around, calls or relies upon, as in ``shape.TOUCHED``.
TOUCHED: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.scheduler": (
        "Scheduler.schedule",
        "Scheduler.update_from_output",
        "Scheduler.add_request",
        "Scheduler.finish_requests",
        "Scheduler.get_num_unfinished_requests",
        "Scheduler.reset_prefix_cache",
        "Scheduler._preempt_request",
        "Scheduler._enqueue_waiting_request",
        "Scheduler._update_after_schedule",
        "Scheduler._make_cached_request_data",
        "Scheduler._free_request_blocks",
        "Scheduler:prev_step_scheduled_req_ids",
        "Scheduler:requests",
        "Scheduler:running",
        "Scheduler:waiting",
        "Scheduler:skipped_waiting",
        "Scheduler:kv_holding_waiting",
        "Scheduler:deferred_waiting",
        "Scheduler:policy",
        "Scheduler:lora_config",
        "Scheduler:kv_cache_manager",
        "Scheduler:max_num_running_reqs",
        "Scheduler:max_num_scheduled_tokens",
        "Scheduler:num_waiting_for_streaming_input",
        "Scheduler:_pause_state",
    ),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.core.sched.interface": ("PauseState",),
    "vllm.v1.core.sched.request_queue": ("FCFSRequestQueue", "PriorityRequestQueue", "create_request_queue"),
    "vllm.v1.core.kv_cache_manager": ("KVCacheManager.allocate_slots", "KVCacheManager.free"),
    "vllm.v1.request": ("Request",),
}
RECORDED = Path(__file__).with_name("shapes.json")


def record(version: str) -> None:
    """Writes down the shape of the vLLM that is installed as that of a tested version."""
    shape.write(version, shape.here(TOUCHED), TOUCHED, RECORDED)


def register() -> None:
    """Has each scheduler that this process makes from now on serve background requests. It never fails."""
    try:
        config = promised.parse(os.environ[promised.VARIABLE])
    except ValueError as error:
        _refuse(f"{promised.VARIABLE}: {error}")
        return
    try:
        import vllm

        version = getattr(vllm, "__version__", "of an unknown version")
        known, differs = shape.like(shape.here(TOUCHED), RECORDED)
        if known is None:
            _refuse(f"vLLM {version} was not tested ({', '.join(shape.tested(RECORDED))} were): {differs}")
            return
        library = coserve_abi.load()
        from vllm.v1.core.sched.scheduler import Scheduler

        def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                watch(self, coserve_abi.Coserve(config, library))
            except Exception as error:  # noqa: BLE001 # it would take vLLM along
                _refuse(f"{type(error).__name__}: {error}")

        around.of_class(Scheduler, "__init__", made)
    except Exception as error:  # noqa: BLE001
        _refuse(f"{type(error).__name__}: {error}")


def watch(scheduler: Any, coserve: coserve_abi.Coserve) -> None:
    """Has a scheduler serve background requests, if its engine is one in which that was tested."""
    why = why_not(scheduler)
    if why is not None:
        _refuse(why)
        return
    state = Background(scheduler, coserve)
    setattr(scheduler, STATE, state)
    state.watch()
    said = os.environ.get("TIDEGATE_TUNE") or os.environ.get(promised.VARIABLE)
    log.info("Tidegate serves requests with a priority above 0 in the background (%s)", said)


def why_not(scheduler: Any) -> str | None:
    """Why background requests are not served in this engine, in words for its log."""
    config = scheduler.vllm_config
    parallel = config.parallel_config
    reasons = {
        "pipeline parallelism is on": parallel.pipeline_parallel_size > 1,
        "data parallelism is on": parallel.data_parallel_size > 1,
        "speculative decoding is on": config.speculative_config is not None,
        "a KV connector is set": config.kv_transfer_config is not None,
        "an encoder-cache connector is set": getattr(config, "ec_transfer_config", None) is not None,
        "chunked prefill is off": not config.scheduler_config.enable_chunked_prefill,
        "it is an encoder-decoder model": config.model_config.is_encoder_decoder,
        # What lends blocks counts what all requests need; who is held would not be counted.
        "its KV memory is shared (TIDEGATE_ROLE)": hasattr(getattr(scheduler, "_tidegate", None), "withheld"),
    }
    name = f"{type(scheduler).__module__}.{type(scheduler).__qualname__}"
    if name not in versions.OWN:
        return f"its scheduler {name} is not vLLM's own"
    return next((reason for reason, holds in reasons.items() if holds), None)


@cache
def _refuse(why: str) -> None:
    """One line, once."""
    log.warning("Tidegate serves no requests in the background, and those with a priority are vLLM's: %s", why)
