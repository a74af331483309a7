"""What vLLM's own core takes in while a step runs is asked for at once, and counts as in flight."""

from __future__ import annotations

import inspect
from threading import Thread

import pytest
from fake import truth
from harness import Case, make_request
from test_vllm_online import Elastic, hooks_finished
from tidegate_engines.vllm import arriving, hooks
from tidegate_engines.vllm.hints import Hints
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore

#: Blocks of its own, one prompt at a time: what is missing is never hidden by a cached prefix.
CASE = Case(7, asynchronous=True, blocks=96, prefix_caching=False)
PROMPT = list(range(60))


def sent(name: str, prompt: list[int] | None = None) -> EngineCoreRequest:
    """What vLLM's front end sends, of as many parts as this version has."""
    wanted = {
        "request_id": name,
        "prompt_token_ids": PROMPT if prompt is None else prompt,
        "sampling_params": SamplingParams(max_tokens=5, ignore_eos=True),
        "arrival_time": 0.0,
    }
    needed = [
        part.name
        for part in inspect.signature(EngineCoreRequest).parameters.values()
        if part.default is inspect.Parameter.empty
    ]
    return EngineCoreRequest(**{**dict.fromkeys(needed), **wanted})


@pytest.fixture(autouse=True)
def listened(monkeypatch):
    """The hooks, in vLLM's core for this test alone."""
    for name in ("preprocess_add_request", "add_request"):
        monkeypatch.setattr(EngineCore, name, vars(EngineCore)[name])
    arriving()


def core_of(scheduler) -> EngineCore:
    """vLLM's core, with what it needs to take a request in."""
    core = object.__new__(EngineCore)
    core.scheduler = scheduler
    core.mm_receiver_cache = None
    core.request_block_hasher = None
    return core


def takes_in(core: EngineCore, request: EngineCoreRequest):
    """As the thread does that reads vLLM's sockets."""
    made = []
    thread = Thread(target=lambda: made.append(core.preprocess_add_request(request)))
    thread.start()
    thread.join()
    return made[0] if made else None


def under_way(case: Case = CASE) -> tuple[Elastic, EngineCore]:
    """An engine that computes a step, with memory for no more than that."""
    run = Elastic(case, 95, elastic=True)
    run.scheduler.add_request(make_request(case, "first", [1, 2, 3], 40))
    run.lender.map_ahead(6)
    run.engine.step()
    assert run.state.flights, "a step is under way"
    run.lender.unmap(96)
    return run, core_of(run.scheduler)


def test_what_comes_while_a_step_runs_has_its_memory_with_the_next():
    run, core = under_way()
    alone, unheard = under_way()
    unheard.scheduler = None  # as where nobody listens: vLLM's core takes it in alike
    late, _ = takes_in(unheard, sent("second"))
    alone.lender.map_ahead(sum(alone.lender.expected))
    alone.scheduler.add_request(late)
    assert "second" not in alone.scheduler.schedule().num_scheduled_tokens, "memory was there unasked"
    request, wave = takes_in(core, sent("second"))
    needs = -(-len(PROMPT) // CASE.block_size)
    assert "second" not in run.scheduler.requests
    assert run.lender.flying == 2, "the gate is held before the scheduler knows of it"
    (asked,) = run.lender.expected
    free = run.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert needs <= asked + free <= needs + 4, "the prompt, and a block for what runs"
    run.lender.map_ahead(asked)
    core.add_request(request, wave)
    assert run.lender.flying == 2 and not run.state.on_their_way
    assert "second" in run.scheduler.schedule().num_scheduled_tokens, "it waits for another step"
    assert run.gpu.strays == 0


def test_many_that_come_during_one_step_are_few_demands():
    run, core = under_way()
    for nth in range(40):
        takes_in(core, sent(f"{nth}", PROMPT[:20]))
    assert run.lender.flying == 41
    assert 2 <= len(run.lender.expected) <= 16, run.lender.expected
    assert sorted(run.lender.expected) == run.lender.expected
    assert run.lender.expected[-1] >= 0.8 * min(40 * 20 / CASE.block_size, len(run.state.withheld))


def test_what_comes_is_answered_as_ever():
    run, core = under_way()
    made = [takes_in(core, sent(name, prompt)) for name, prompt in (("a", PROMPT), ("b", PROMPT[5:30]))]
    for request, wave in made:
        core.add_request(request, wave)
    got = {"first": [], "a": [], "b": []}
    while run.scheduler.has_requests() or run.engine.queue:
        run.lender.map_ahead(40)
        for name, tokens in run.engine.step().items():
            got[name] += tokens
        run.check()
    assert got["a"] == truth(PROMPT, 5) and got["b"] == truth(PROMPT[5:30], 5)
    assert run.lender.flying == 0


def test_one_that_the_core_refuses_is_not_in_flight(monkeypatch):
    run, core = under_way()
    del core.request_block_hasher  # its own code raises where it hashes the prompt
    with pytest.raises(AttributeError):
        core.preprocess_add_request(sent("bad"))
    assert run.lender.flying == 1 and not run.state.on_their_way
    core.request_block_hasher = None
    request, wave = takes_in(core, sent("worse"))
    assert run.lender.flying == 2
    monkeypatch.setattr(run.scheduler, "add_request", lambda request: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        core.add_request(request, wave)
    assert run.lender.flying == 1 and not run.state.on_their_way


def test_an_engine_that_shares_nothing_says_that_one_comes():
    said: list[int] = []

    class Library:
        def call(self, name, count):
            assert name == "tg_requests_in_flight"
            said.append(count)

    run, library = Elastic(CASE, 95, elastic=False), Library()
    setattr(run.scheduler, hooks.STATE, Hints(run.scheduler, library))
    hooks.listen(type(run.scheduler), hooks.HINTS)
    core = core_of(run.scheduler)
    request, wave = takes_in(core, sent("a"))
    assert said == [0, 1]
    core.add_request(request, wave)
    run.scheduler.finish_requests(["a"], hooks_finished())
    assert said == [0, 1, 0]


def test_what_fails_in_the_plugin_is_not_the_engines(monkeypatch):
    run, core = under_way()
    monkeypatch.setattr(hooks._kept, "told", False)
    monkeypatch.setattr(run.lender, "expect", lambda blocks: 1 / 0)
    told: list[str] = []
    monkeypatch.setattr(hooks.log, "warning", lambda text, *words: told.append(text % words))
    assert takes_in(core, sent("second"))[0].request_id == "second"
    assert takes_in(core, sent("third"))[0].request_id == "third"
    assert told == ["Tidegate does not hear when requests come: ZeroDivisionError: division by zero"]
