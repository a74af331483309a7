"""A worker's side of a dropped step: what the first model runner keeps of a request between steps.

The scheduler drops the output of a step that read a lost block, and the runner has already gone on as if the output
had been used. Three things that it keeps are then wrong for good:

* *prompt logprobs*: the step that completes a prefill deletes the note that they were asked for;
* *seeded sampling*: the request's generator has advanced by the token that was dropped;
* *token-wise pooling*: the rows of earlier chunks stay, and those of the chunks computed again come behind them.

A request that starts over is sent with the number of its accepted output tokens, which tells which steps counted.
Before vLLM takes it in again, the note is put back if no token was accepted, the generator gets the state that it had
before the token of that number, and the rows go. All of it also mends what vLLM's own preemption leaves behind.

The second model runner takes a request that starts over for a new one, and draws from seed and position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

#: Output tokens of a request whose generator states are kept: more than there are steps in flight (two).
KEPT = 4

#: The attribute of a runner that holds what is kept of its requests.
KEEPS = "_tidegate"


@dataclass(slots=True)
class Kept:
    """What may have to be put back of one request."""

    #: How many prompt logprobs were asked for, while no step that returned them is known to count.
    prompt_logprobs: int | None = None
    #: By number of the output token that was drawn next: the generator's state before.
    states: dict[int, torch.Tensor] = field(default_factory=dict)


def update_states(original: Any, runner: Any, output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
    """Around ``GPUModelRunner._update_states``."""
    kept: dict[str, Kept] = runner.__dict__.setdefault(KEEPS, {})
    for name in output.finished_req_ids:
        kept.pop(name, None)
    cached = output.scheduled_cached_reqs
    accepted = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
    for name in cached.resumed_req_ids:
        if name in accepted and name in runner.requests:
            put_back(runner, name, kept.get(name, Kept()), accepted[name])
    for new in output.scheduled_new_reqs:
        kept.pop(new.req_id, None)  # also the next turn of a session
        accepted[new.req_id] = 0
    result = original(runner, output, *args, **kwargs)
    keep(runner, kept, accepted)
    return result


def put_back(runner: Any, name: str, kept: Kept, accepted: int) -> None:
    """Brings what the runner keeps of a request that starts over in line with its accepted tokens."""
    state = runner.requests[name]
    if state.pooling_states is not None:
        state.pooling_states.clean()
    if kept.prompt_logprobs is not None and accepted == 0:
        runner.num_prompt_logprobs[name] = kept.prompt_logprobs
    if state.generator is not None and accepted in kept.states:
        state.generator.set_state(kept.states[accepted])


def keep(runner: Any, kept: dict[str, Kept], accepted: dict[str, int]) -> None:
    """Notes, before a step is computed, what would have to be put back if it does not count."""
    for name, count in runner.num_prompt_logprobs.items():
        if accepted.get(name) == 0:
            kept.setdefault(name, Kept()).prompt_logprobs = count
    for index, generator in runner.input_batch.generators.items():
        name = runner.input_batch.req_ids[index]
        if name not in accepted:
            continue
        states = kept.setdefault(name, Kept()).states
        states.pop(accepted[name], None)
        states[accepted[name]] = generator.get_state()
        if len(states) > KEPT:
            del states[next(iter(states))]


def delicate(request: Request) -> str | None:
    """What of a request's answer is wrong if a step of it is dropped and this module does not stand in the runner."""
    sampling = request.sampling_params
    if sampling is not None:
        if sampling.prompt_logprobs is not None:
            return "prompt logprobs"
        return "a seed" if sampling.seed is not None else None
    pooling = request.pooling_params
    return "token-wise pooling" if pooling is not None and request.skip_reading_prefix_cache else None
