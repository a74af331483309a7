"""An online vLLM whose KV cache grows and shrinks computes what a static one would, no later."""

from __future__ import annotations

import random
from itertools import product

import pytest
from fake import VOCABULARY, Engine, Gpu, Lender, SecondWorker, Worker, truth
from harness import Case, Scheduler, make_request, make_scheduler
from test_vllm_offline import SEEDS
from tidegate_engines.vllm import hooks
from tidegate_engines.vllm.grown import GrownBlocks

MODES = list(product((False, True), (False, True)))


class Elastic:
    """A scheduler that grows, or one with a static pool of the size the other may reach."""

    def __init__(self, case: Case, limit: int, elastic: bool, headroom: int = 12) -> None:
        self.rng = random.Random(f"{case} {limit}")
        self.gpu = Gpu(case.blocks if elastic else limit + 1, case.block_size, self.rng)
        self.now = 0.0
        self.scheduler: Scheduler = make_scheduler(case, len(self.gpu.slots))
        kind = SecondWorker if case.second_runner else Worker
        slots = (case.running,) if case.second_runner else ()
        self.worker = kind(self.gpu, case.asynchronous, lambda: None, *slots)
        self.engine = Engine(self.scheduler, self.worker, self.rng, 2 if case.asynchronous else 1)
        self.lender = None
        if elastic:
            self.lender = Lender(self.gpu, limit, headroom)
            state = GrownBlocks(self.scheduler, self.lender, hold_s=5.0, clock=lambda: self.now)
            hooks.watch(self.scheduler, state)

    @property
    def state(self) -> GrownBlocks:
        return getattr(self.scheduler, hooks.STATE)

    def check(self) -> None:
        """What vLLM believes free has memory under it, and the agent knows how much is in use."""
        if self.lender is None:
            return
        pool = self.scheduler.kv_cache_manager.block_pool
        free = {b.block_id for b in pool.blocks if b.ref_cnt == 0 and not b.is_null}
        assert free <= self.lender.granted
        assert self.lender.flying == len(self.scheduler.requests)
        assert self.lender.used[-1] == (self.state.used, self.state.reserved)


def serve(case: Case, limit: int, elastic: bool, prompt: bool = False):
    """Serves the case's requests; how often capacity preempted each.

    Memory is mapped ahead by a thread: promptly, or whenever it gets to it.
    """
    run = Elastic(case, limit, elastic)
    traffic = random.Random(case.seed)
    prefixes = [[traffic.randrange(VOCABULARY) for _ in range(24)] for _ in range(3)]
    wanted, requests = {}, []
    for i in range(case.requests):
        tail = [traffic.randrange(VOCABULARY) for _ in range(traffic.randint(0, 30))]
        words = traffic.choice(prefixes) + tail
        tokens = traffic.randint(1, 25)
        wanted[str(i)] = truth(words, tokens)
        requests.append(make_request(case, str(i), words, tokens, float(i)))
    held = list(requests)
    got = {name: [] for name in wanted}
    steps = 0
    while held or run.scheduler.has_requests() or run.engine.queue:
        if held and steps % 3 == 0:
            run.scheduler.add_request(held.pop(0))
        if run.lender:
            short = run.lender.headroom - len(run.lender.ready)
            if prompt:
                run.lender.map_ahead(limit)
            elif run.rng.random() < 0.5:
                run.lender.map_ahead(short + run.lender.asked)
                run.lender.asked = 0
            elif run.rng.random() < 0.2:
                run.lender.unmap(run.rng.randint(0, 4))
        for name, tokens in run.engine.step().items():
            got[name] += tokens
        run.check()
        run.now += 0.05
        steps += 1
        assert steps < 20_000, "the engine makes no progress"
    assert got == wanted, case
    assert run.gpu.strays == 0, "a block without memory was touched"
    return run, [request.num_preemptions for request in requests]


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_growing_cache_serves_what_a_static_one_serves(asynchronous, second_runner, record):
    elastic = static = 0
    for seed in range(SEEDS // 3):
        case = Case(seed, asynchronous, second_runner, blocks=96)
        elastic += sum(serve(case, limit=40, elastic=True)[1])
        static += sum(serve(case, limit=40, elastic=False)[1])
    record(
        f"online, {'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}:"
        f" {elastic} capacity preemptions growing, {static} in a static pool of the same size"
    )
    assert static > 0, "nothing was scarce"


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_what_is_granted_in_time_preempts_nobody_whom_a_static_pool_would_not(
    asynchronous, second_runner
):
    """Request by request, without a prefix cache: its luck differs between any two pools."""
    scarce = 0
    for seed in range(SEEDS // 3):
        case = Case(
            seed, asynchronous, second_runner, blocks=96, running=6, prefix_caching=False
        )
        for limit in (40, 95):
            _, grown = serve(case, limit, elastic=True, prompt=True)
            _, static = serve(case, limit, elastic=False)
            assert grown == static, (case, limit)
            scarce += sum(static)
    assert scarce > 0, "nothing was scarce"


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_after_a_burst_the_memory_goes_back(asynchronous, second_runner):
    case = Case(3, asynchronous, second_runner, blocks=96, running=8, requests=16)
    run, _ = serve(case, limit=95, elastic=True)
    peak = max(reserved for _, reserved in run.lender.used)
    assert peak > 40 and run.state.reserved > 0
    run.state.when_idle()
    assert run.state.reserved > 0, "the next burst may come soon"
    run.now += 11.0
    run.state.when_idle()
    assert run.state.reserved == 0 and not run.lender.granted
    run.lender.unmap(96)
    assert len(run.gpu.lost) == case.blocks - 1
    # And it serves again.
    run.lender.map_ahead(20)
    prompt = list(range(20))
    run.scheduler.add_request(make_request(case, "later", prompt, 5, 100.0))
    got = []
    while run.scheduler.has_requests() or run.engine.queue:
        got += run.engine.step().get("later", [])
    assert got == truth(prompt, 5) and run.gpu.strays == 0


def test_a_block_is_given_back_only_when_no_step_can_write_to_it():
    case = Case(5, asynchronous=True, blocks=96)
    run = Elastic(case, 95, elastic=True)
    run.lender.map_ahead(60)
    for i in range(4):
        run.scheduler.add_request(make_request(case, str(i), list(range(i, i + 40)), 30, float(i)))
    released = []
    run.lender.release = lambda blocks: released.append((list(blocks), len(run.engine.queue)))
    while len(run.engine.queue) < 1:
        run.engine.step()
    run.now += 100.0
    run.state.peak = type(run.state.peak)(1.0)
    ahead = run.scheduler.schedule()
    run.scheduler.finish_requests([str(i) for i in range(3)], hooks_finished())
    run.now += 100.0
    run.state.settled()
    assert run.state.leaving and not released, "given back under a running step"
    assert run.state.arrived(ahead) is ahead
    assert released and not run.state.leaving


def hooks_finished():
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def test_without_memory_it_waits_and_asks():
    case = Case(6, blocks=96)
    run = Elastic(case, 95, elastic=True)
    run.scheduler.add_request(make_request(case, "a", list(range(20)), 3, 0.0))
    for _ in range(10):
        run.engine.step()
    assert run.lender.waits == 10 and run.lender.asked > 0
    run.lender.map_ahead(20)
    got = []
    while run.scheduler.has_requests() or run.engine.queue:
        got += run.engine.step().get("a", [])
    assert got == truth(list(range(20)), 3)
