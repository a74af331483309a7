"""What an online vLLM says of its steps is what its worker was handed, and what it says comes next does."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from itertools import product
from types import SimpleNamespace

import pytest
from fake import VOCABULARY, Engine, Gpu, SecondWorker, Worker, truth
from harness import Case, make_request, make_scheduler
from test_vllm_offline import SEEDS
from tidegate_engines.vllm import beats, hooks, log
from tidegate_engines.vllm.hints import Hints
from vllm.v1.core.sched.scheduler import Scheduler

MODES = list(product((False, True), (False, True)))

hooks.listen(Scheduler, hooks.STEPS)


@dataclass
class Library:
    """The library's part: whether the agent asks, and what it is told."""

    asks: bool = True
    said: list = field(default_factory=list)

    def listens(self) -> bool:
        return self.asks

    def beat(self, done) -> None:
        assert self.asks
        self.said.append(replace(done))

    def call(self, name: str, *arguments: object) -> None:
        assert name == "tg_requests_in_flight"


@dataclass
class Handed:
    """A step as its worker has it."""

    batch: int
    cached: int
    prompt: int
    begun_ns: int = 0
    ended_ns: int = 0


def noting(kind: type[Worker]) -> type[Worker]:
    """A worker that notes each step: of each request it knows its own prompt, and how far it is."""

    class Noting(kind):
        def begin(self, output) -> None:
            super().begin(output)
            step = Handed(0, 0, 0)
            for name, tokens in output.num_scheduled_tokens.items():
                state = self.states[name]
                # In a step ahead of the last outputs it has as many tokens as it was scheduled for.
                whole = state.computed + tokens
                if state.computed < len(state.prompt) or tokens > 1:
                    step.prompt += tokens
                else:
                    step.batch += 1
                    step.cached += whole
            step.begun_ns = time.monotonic_ns()
            if output.num_scheduled_tokens:
                self.steps[id(output)] = step

        def run(self, output):
            done = super().run(output)
            if output.num_scheduled_tokens:
                self.steps[id(output)].ended_ns = time.monotonic_ns()
                self.kept.append(output)  # so that no other has its id
            return done

        def __init__(self, *args) -> None:
            super().__init__(*args)
            self.steps: dict[int, Handed] = {}
            self.kept: list = []

    return Noting


class Rig:
    """A scheduler that gives hints, as one that the plugin shares nothing of."""

    def __init__(self, case: Case, asks: bool = True) -> None:
        self.rng = random.Random(repr(case))
        self.gpu = Gpu(case.blocks, case.block_size, self.rng)
        self.scheduler = make_scheduler(case, case.blocks)
        kind = SecondWorker if case.second_runner else Worker
        slots = (case.running,) if case.second_runner else ()
        self.worker = noting(kind)(self.gpu, case.asynchronous, lambda: None, *slots)
        self.engine = Engine(self.scheduler, self.worker, self.rng, 2 if case.asynchronous else 1)
        self.library = Library(asks)
        state = Hints(self.scheduler, self.library)
        state.beats = beats.Said(self.scheduler, self.library, log)
        setattr(self.scheduler, hooks.STATE, state)

    @property
    def steps(self) -> list[Handed]:
        return list(self.worker.steps.values())

    def serves(self, case: Case, between=lambda steps: None) -> None:
        """All requests of the case; every answer is right."""
        traffic = random.Random(case.seed)
        wanted, held = {}, []
        for i in range(case.requests):
            words = [traffic.randrange(VOCABULARY) for _ in range(traffic.randint(5, 60))]
            tokens = traffic.randint(1, 25)
            wanted[str(i)] = truth(words, tokens)
            held.append(make_request(case, str(i), words, tokens, float(i)))
        got: dict[str, list[int]] = {name: [] for name in wanted}
        steps = 0
        while held or self.scheduler.has_requests() or self.engine.queue:
            if held and steps % 3 == 0:
                self.scheduler.add_request(held.pop(0))
            between(steps)
            for name, tokens in self.engine.step().items():
                got[name] += tokens
            steps += 1
            assert steps < 20_000, "the engine makes no progress"
        assert got == wanted, case


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_each_step_is_said_as_the_worker_had_it(asynchronous, second_runner, record):
    said = prompts = preempted = foreseen = reading = 0
    for seed in range(SEEDS // 3):
        # Chunked prompts, and too few blocks for all: some are preempted and read again.
        case = Case(seed, asynchronous, second_runner, prefix_caching=seed % 2 == 0)
        rig = Rig(case)
        rig.serves(case)
        steps, beats_said = rig.steps, rig.library.said
        assert len(beats_said) == len(steps), case
        for step, done in zip(steps, beats_said, strict=True):
            assert (done.batch, done.cached, done.prompt) == (step.batch, step.cached, step.prompt), case
            assert 0 < done.begin_ns <= step.begun_ns <= step.ended_ns <= done.end_ns, case
            assert 0 <= done.free_blocks <= done.blocks == case.blocks - 1, case
            prompts += step.prompt > 0
        for done, after in zip(beats_said, steps[1:], strict=False):
            # A step that reads what is new comes after one that said so, unless the request came in between.
            reading += after.prompt > 0
            foreseen += after.prompt > 0 and done.waiting_tokens > 0
        said += len(steps)
        preempted += sum(done.waiting > 0 for done in beats_said)
    record(
        f"iterations, {'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}: {said} steps said, "
        f"{prompts} read prompts, of {reading} such steps {foreseen} foreseen, {preempted} while some waited"
    )
    assert prompts and preempted and foreseen > reading // 2


@pytest.mark.parametrize("asynchronous", (False, True))
def test_what_nobody_asks_for_is_not_looked_at(asynchronous, monkeypatch):
    case = Case(1, asynchronous)
    rig = Rig(case, asks=False)
    monkeypatch.setattr(beats.Said, "_does", None)
    monkeypatch.setattr(beats.Said, "_then", None)
    rig.serves(case)
    assert not rig.library.said


@pytest.mark.parametrize("asynchronous", (False, True))
def test_an_agent_that_comes_and_goes_hears_whole_steps(asynchronous):
    case = Case(2, asynchronous, requests=30)
    rig = Rig(case)

    def between(steps: int) -> None:
        # A step that is said was asked for when it began; the library itself refuses one that is said too late.
        rig.library.asks = True if steps % 7 else not rig.library.asks

    rig.library.beat = lambda done: rig.library.said.append(replace(done))
    rig.serves(case, between)
    steps = iter(rig.steps)
    for done in rig.library.said:
        figures = (done.batch, done.cached, done.prompt)
        same = ((step.batch, step.cached, step.prompt) == figures and step.begun_ns for step in steps)
        assert any(done.begin_ns <= begun <= done.end_ns for begun in same if begun), done
    assert 10 < len(rig.library.said) < len(rig.steps)


def test_another_shape_of_engine_serves_on(monkeypatch):
    lines = []
    monkeypatch.setattr(log, "warning", lambda text, *args: lines.append(text % args))
    case = Case(3)
    rig = Rig(case)
    rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks, kept = (
        SimpleNamespace(),
        rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks,
    )
    said = getattr(rig.scheduler, hooks.STATE).beats
    output = SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={})
    said.scheduled(output)
    said.arrived(output)()
    said.scheduled(SimpleNamespace(total_num_scheduled_tokens=1))
    assert len(lines) == 1 and "iterations" in lines[0]
    rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks = kept
    rig.serves(case)
    assert not rig.library.said
