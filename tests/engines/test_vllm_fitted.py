"""Of a prompt that lacks memory, an online vLLM reads the part that there is memory for, at no one's cost."""

from __future__ import annotations

import pytest
from fake import truth
from harness import Case, make_request
from test_vllm_offline import SEEDS
from test_vllm_online import MODES, Elastic, hooks_finished, serve
from tidegate_engines.vllm import fitted
from tidegate_engines.vllm.grown import GrownBlocks


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Prompts here are of tens of tokens, not of thousands."""
    monkeypatch.setattr(fitted, "LEAST", 4)


def ends_of(request) -> bool:
    """Whether steps under way bring it to its last token, so that none more is scheduled."""
    under_way = request.num_output_placeholders
    return under_way > 0 and request.num_computed_tokens + 2 - under_way >= request.num_prompt_tokens + request.max_tokens


class Watch:
    """Checks each step of a run, between what the plugin does before it and after it."""

    def __init__(self, run: Elastic) -> None:
        self.run = run
        self.parts: list[tuple[str, int]] = []
        self.decoding: set[str] = set()
        scheduler, state = run.scheduler, run.state
        self.usual = scheduler.max_num_scheduled_tokens, scheduler.scheduler_reserve_full_isl
        before, after = state.about_to_schedule, state.scheduled

        def about_to_schedule() -> None:
            self.decoding = {
                request.request_id
                for request in scheduler.running
                if request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens == 1
                and not ends_of(request)
            }
            before()

        def scheduled(output) -> None:
            asked = len(run.lender.expected)
            after(output)
            usual = scheduler.max_num_scheduled_tokens, scheduler.scheduler_reserve_full_isl
            assert usual == self.usual, "told for longer than a step"
            part = state.fitted._part
            if part is None or part.request_id not in output.num_scheduled_tokens:
                return
            assert len(run.lender.expected) == asked + 1, "the rest is not asked for"
            self.parts.append((part.request_id, output.num_scheduled_tokens[part.request_id]))
            stay = {request.request_id for request in scheduler.running}
            assert self.decoding & stay <= output.num_scheduled_tokens.keys(), "who decodes goes without its token"

        state.about_to_schedule, state.scheduled = about_to_schedule, scheduled


def begun(asynchronous: bool, second_runner: bool, blocks: int = 96, answered: int = 1):
    """A request has so many tokens of its answer, and the prompt of a second has memory for none of it yet."""
    case = Case(7, asynchronous, second_runner, blocks=blocks, token_budget=64, prefix_caching=False)
    run = Elastic(case, blocks - 1, elastic=True)
    watch = Watch(run)
    prompts = {"a": list(range(6)), "b": list(range(40))}
    run.lender.map_ahead(4 + answered // case.block_size)
    run.scheduler.add_request(make_request(case, "a", prompts["a"], 60))
    got: dict[str, list[int]] = {"a": [], "b": []}
    while len(got["a"]) < answered:
        step(run, got)
    run.scheduler.add_request(make_request(case, "b", prompts["b"], 5, 1.0))
    return run, watch, prompts, got


def reading(asynchronous: bool, second_runner: bool):
    """The same, and there was memory for a part of it, which is read."""
    run, watch, prompts, got = begun(asynchronous, second_runner)
    run.lender.map_ahead(5)
    while not watch.parts:
        step(run, got)
    return run, watch, prompts, got


def step(run: Elastic, got: dict[str, list[int]]) -> None:
    assert run.now < 100.0, "the engine makes no progress"
    for name, tokens in run.engine.step().items():
        got[name] += tokens
    run.check()
    run.now += 0.05


def finish(run: Elastic, got: dict[str, list[int]]) -> None:
    while run.scheduler.has_requests() or run.engine.queue:
        step(run, got)


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_prompt_is_read_as_far_as_there_is_memory_and_nothing_twice(asynchronous, second_runner):
    run, watch, prompts, got = begun(asynchronous, second_runner)
    # Two blocks a step: eight tokens, less a block for the request that decodes.
    for _ in range(40):
        run.lender.map_ahead(2)
        step(run, got)
        if run.worker.handed.reached.get("b", 0) >= 40:
            break
    assert len(watch.parts) >= 3 and {name for name, _ in watch.parts} == {"b"}, watch.parts
    assert sum(tokens for _, tokens in watch.parts) < 40, "the last part lacks nothing"
    run.lender.map_ahead(96)
    finish(run, got)
    assert got == {"a": truth(prompts["a"], 60), "b": truth(prompts["b"], 5)}
    assert run.worker.handed.again == 0 and run.gpu.strays == 0


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_memory_that_does_not_come_is_not_waited_for(asynchronous, second_runner):
    run, watch, prompts, got = reading(asynchronous, second_runner)
    run.scheduler.finish_requests(["a"], hooks_finished())
    # What was read of it stays, as memory may be on its way ...
    since, read = run.now, run.worker.handed.reached["b"]
    while run.now < since + 0.9 * fitted.PATIENCE_S:
        step(run, got)
        assert [request.request_id for request in run.scheduler.running] == ["b"]
    # ... and then it keeps nothing of what others might need.
    while run.now < since + 2.0 * fitted.PATIENCE_S:
        step(run, got)
    assert not run.scheduler.running and run.state.used == 0
    assert run.worker.handed.again == 0 and run.worker.handed.reached["b"] >= read
    run.lender.map_ahead(96)
    finish(run, got)
    assert got["b"] == truth(prompts["b"], 5) and run.gpu.strays == 0


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_who_decodes_grows_into_the_blocks_of_a_part_and_it_is_not_begun_again(asynchronous, second_runner):
    run, watch, prompts, got = reading(asynchronous, second_runner)
    assert run.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() > 0, "none is left for who decodes"
    since, read = run.now, run.worker.handed.reached["b"]
    while "b" in {request.request_id for request in run.scheduler.running}:
        step(run, got)
    assert run.now < since + fitted.PATIENCE_S, "nobody needed its blocks"
    for _ in range(6):
        step(run, got)
    assert run.worker.handed.reached["b"] == read and run.worker.handed.again == 0
    run.lender.map_ahead(96)
    finish(run, got)
    assert got == {"a": truth(prompts["a"], 60), "b": truth(prompts["b"], 5)}
    assert run.gpu.strays == 0


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_prompt_that_all_memory_would_not_hold_is_not_begun(asynchronous, second_runner):
    """It would hold what those that decode need, and be read again: vLLM waits until there is room for all of it."""
    # Of 17 blocks the first request has 8 or 9, and will have all. The second needs 10.
    run, watch, prompts, got = begun(asynchronous, second_runner, blocks=18, answered=26)
    for _ in range(6):
        run.lender.map_ahead(1)
        step(run, got)
    assert not watch.parts and run.worker.handed.reached.get("b", 0) == 0
    run.lender.map_ahead(96)
    finish(run, got)
    assert got == {"a": truth(prompts["a"], 60), "b": truth(prompts["b"], 5)}
    assert run.worker.handed.again == 0 and run.gpu.strays == 0


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_whatever_comes_of_memory_every_answer_is_right(asynchronous, second_runner, record, monkeypatch):
    """Random runs, with memory that comes block by block, late, or not until long after."""
    watches: list[Watch] = []
    made = Elastic.__init__

    def watched(self, *args, **kwargs) -> None:
        made(self, *args, **kwargs)
        self.lender.headroom = 2
        watches.append(Watch(self))

    monkeypatch.setattr(Elastic, "__init__", watched)
    for seed in range(SEEDS // 3):
        case = Case(seed, asynchronous, second_runner, blocks=96, running=6, token_budget=64)
        serve(case, limit=60, elastic=True)
    parts = sum(len(watch.parts) for watch in watches)
    again = sum(watch.run.worker.handed.again for watch in watches)
    computed = sum(watch.run.worker.handed.computed for watch in watches)
    record(
        f"fitted, {'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}: {parts} parts of prompts read,"
        f" {again} of {computed} tokens computed again"
    )
    assert parts > SEEDS // 3, "memory was there in time"


def test_what_changes_the_tokens_of_a_step_keeps_parts_from_being_read():
    run = Elastic(Case(8, blocks=96), 95, elastic=True)
    scheduler = run.scheduler
    assert isinstance(run.state, GrownBlocks) and fitted.reads_parts(scheduler)
    scheduler.num_lookahead_tokens = 1
    assert not fitted.reads_parts(scheduler)
    scheduler.num_lookahead_tokens = 0
    scheduler.connector = object()
    assert not fitted.reads_parts(scheduler)
    scheduler.connector = None
    del scheduler.scheduler_reserve_full_isl
    assert not fitted.reads_parts(scheduler)
