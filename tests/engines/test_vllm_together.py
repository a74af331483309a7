"""Requests' blocks lie together, so that less is lost with each stripe; what is cached is still found."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass, field

import pytest
from harness import Case, Request, hooks, make_request, make_scheduler, versions
from tidegate_engines import abi
from tidegate_engines.vllm.lost import LostBlocks
from tidegate_engines.vllm.together import TogetherQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

#: Blocks of a stripe, and stripes of the pool.
RUN, STRIPES = 64, 64
CASE = Case(0, block_size=4, blocks=RUN * STRIPES, running=256, token_budget=1024)
STEPS = 600


class Silent:
    """The library, were its functions to do nothing: what is left is what Python does to call them."""

    def call(self, name: str, *arguments: object, allowed: tuple[int, ...] = ()) -> int:
        if name == "tg_poll":
            _, _, lost, _, back, _ = arguments
            lost._obj.value = back._obj.value = 0
        return 0


@dataclass
class Engine:
    """vLLM's scheduler over a model that answers at once, always busy."""

    #: Blocks of a stripe, as the plugin knows them: with 1 it leaves placement to vLLM. 0: no plugin.
    run: int
    seed: int
    #: Prompts begin with one of so many prefixes; 0: with none.
    prefixes: int = 0
    cached: int = 0
    prompts: int = 0
    schedule_s: float = 0.0
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.scheduler = make_scheduler(CASE, CASE.blocks)
        if self.run:
            job = abi.Offline(Silent())
            state = LostBlocks(self.scheduler, job, versions.engine(Scheduler), self.run)
            hooks.watch(self.scheduler, state)
        self.heads = [self._words(60) for _ in range(self.prefixes)]
        self.added = 0

    def _words(self, count: int) -> list[int]:
        return [self.rng.randrange(90) for _ in range(count)]

    def _add(self) -> None:
        head = self.rng.choice(self.heads) if self.heads else []
        prompt = head + self._words(self.rng.randint(4, 100))
        request = make_request(CASE, str(self.added), prompt, self.rng.randint(4, 80), self.added)
        self.added += 1
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def step(self) -> None:
        while len(self.scheduler.waiting) < 8:
            self._add()
        begin = time.thread_time()
        output = self.scheduler.schedule()
        self.schedule_s += time.thread_time() - begin
        names = list(output.num_scheduled_tokens)
        whole = [
            self.requests[name].num_computed_tokens >= self.requests[name].num_tokens
            for name in names
        ]
        results = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[self.rng.randrange(90)] if done else [] for done in whole],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(output, results)
        for new in output.scheduled_new_reqs:
            self.cached += new.num_computed_tokens
            self.prompts += len(new.prompt_token_ids)
        for name in [name for name in names if self.requests[name].is_finished()]:
            del self.requests[name]

    def tokens_lost(self, stripes: int) -> int:
        """What the requests compute again that lose a block with the cheapest so many stripes."""
        holders: list[dict[str, int]] = [{} for _ in range(STRIPES)]
        for request in self.scheduler.running:
            table = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
            for block in table:
                holders[block // RUN][request.request_id] = request.num_computed_tokens
        lost: dict[str, int] = {}
        for _ in range(stripes):
            costs = [sum(t for r, t in h.items() if r not in lost) for h in holders]
            best = min(range(len(costs)), key=costs.__getitem__)
            lost.update(holders.pop(best))
        return sum(lost.values())


def freeze_heap() -> None:
    """As vLLM's core does when it is up. Else one of the engines pays for what other tests have left."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("stripes", [1, STRIPES // 8])
def test_a_busy_engine_loses_less_than_two_fifths_as_much_when_requests_lie_together(stripes, record):
    engines = {run: Engine(run, seed=1) for run in (0, 1, RUN)}
    lost = dict.fromkeys(engines, 0)
    freeze_heap()
    for step in range(STEPS):
        for run, engine in engines.items():  # in turns, for a busy machine is not busy evenly
            engine.step()
            if step >= STEPS // 2 and step % 10 == 0:
                lost[run] += engine.tokens_lost(stripes)
    seconds = {run: engine.schedule_s / STEPS for run, engine in engines.items()}
    queue = engines[RUN].scheduler.kv_cache_manager.block_pool.free_block_queue
    assert isinstance(queue, TogetherQueue)
    record(
        f"{stripes} of {STRIPES} stripes taken: {lost[RUN] / lost[1]:.2f} of the tokens lost that"
        f" vLLM's own placement loses; schedule() takes {seconds[RUN] / seconds[0]:.2f} of the time that it takes"
        f" without the plugin, {seconds[1] / seconds[0]:.2f} without its placement"
    )
    assert lost[RUN] * 5 < lost[1] * 2


@pytest.mark.parametrize("prefixes", [8, 64, 512])
def test_shared_prefixes_are_found_as_often_as_with_vllms_own_placement(prefixes, record):
    rate = {}
    for run in (1, RUN):
        engine = Engine(run, seed=2, prefixes=prefixes)
        for _ in range(STEPS):
            engine.step()
        rate[run] = engine.cached / engine.prompts
    record(
        f"{prefixes} prefixes: {rate[RUN]:.3f} of the prompts' tokens cached,"
        f" {rate[1]:.3f} with vLLM's own placement"
    )
    assert rate[RUN] > 0.95 * rate[1]
