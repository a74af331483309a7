"""The requests in flight, as one scheduler of SGLang has them: from their arrival to their last token.

A scheduler has no list of them. Each is in a queue, in a batch or between two batches, in several of these at a time,
and stays in some for a step after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: Batches of pipeline stages.
STAGES = ("running_mbs", "mbs", "last_mbs")

#: Queues beside the waiting one: of which part of the scheduler, and its name there ("": the part is the queue).
QUEUES = (
    ("grammar_manager", "grammar_queue"),
    ("dllm_manager", "waiting_queue"),
    ("dllm_manager", "staging_queue"),
    ("disagg_prefill_bootstrap_queue", "queue"),
    ("disagg_prefill_inflight_queue", ""),
    ("disagg_decode_prealloc_queue", "queue"),
    ("disagg_decode_prealloc_queue", "retracted_queue"),
    ("disagg_decode_transfer_queue", "queue"),
)


def count(scheduler: Any) -> int:
    """How many there are."""
    live = set()
    for part in PLACES.values():
        live.update(id(request) for request in part(scheduler) if not request.finished())
    return len(live)


def arriving(messages: Iterable[Any]) -> int:
    """How many requests are among the messages that came."""
    total = 0
    for message in messages:
        batch = getattr(message, "batch", None)
        total += len(batch) if isinstance(batch, list) else hasattr(message, "input_ids")
    return total


def _of(batch: Any) -> Iterable[Any]:
    return () if batch is None else batch.reqs or ()


def _step(scheduler: Any) -> Iterator[Any]:
    """Those of the last step, of the one about to be launched, and of a prompt between two chunks."""
    yield from _of(scheduler.last_batch)
    for name in ("cur_batch", "cur_batch_for_debug"):  # of 0.5.11; of 0.5.23
        yield from _of(getattr(scheduler, name, None))
    request = getattr(scheduler, "chunked_req", None)
    if request is not None:
        yield request


def _stages(scheduler: Any) -> Iterator[Any]:
    for name in STAGES:
        for batch in getattr(scheduler, name, None) or ():
            yield from _of(batch)


def _queued(scheduler: Any) -> Iterator[Any]:
    for owner, name in QUEUES:
        queue = getattr(scheduler, owner, None)
        if queue is not None and name:
            queue = getattr(queue, name, None)
        for request in queue or ():
            yield getattr(request, "req", request)  # a decoding side's, with its transfer


#: Where a request can be.
PLACES: dict[str, Callable[[Any], Iterable[Any]]] = {
    "waiting": lambda scheduler: scheduler.waiting_queue,
    "running": lambda scheduler: _of(scheduler.running_batch),
    "step": _step,
    "stages": _stages,
    "queued": _queued,
}
