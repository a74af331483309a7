"""An offline vLLM loses blocks in mid-step: no wrong token, no lost request, no block leaked."""

from __future__ import annotations

import os
from itertools import product

import pytest
from ablations import ABLATIONS, Ablation, DirectHoldersOnly, NobodyPasses, first_broken
from fake import truth
from harness import LONGEST, Case, Outcome, Rig, Scheduler, run
from tax import words
from tidegate_engines.vllm import shape, versions
from tidegate_engines.vllm.aside import Aside
from tidegate_engines.vllm.lost import LostBlocks
from tidegate_engines.vllm.tables import Part, reach

SEEDS = int(os.environ.get("SEEDS", "300"))

#: Traffic that a single shape would not contain.
TRAFFIC = {
    "chunked prefills and shared prefixes": {},
    "little memory, so that capacity preempts, and aborts": dict(
        blocks=34, abort=0.05, reclaim=0.02
    ),
    "priorities": dict(priorities=True),
    "resets of the prefix cache under running requests": dict(resets=0.05, reclaim=0.02),
    "a scheduler class of the user's": dict(copying=True),
    "no prefix cache": dict(prefix_caching=False),
    "a third of the blocks never comes back": dict(blocks=64, forever=16),
    "blocks where vLLM puts them": dict(run=1),
    "full attention beside sliding windows": dict(windows=(None, 9, 9), blocks=110),
    "the same with little memory, and aborts": dict(windows=(None, 6, 6), blocks=84, abort=0.05, reclaim=0.02),
    "the same without a prefix cache": dict(windows=(None, 9, 9), blocks=110, prefix_caching=False),
    "windows first, and priorities": dict(windows=(7, None), blocks=90, priorities=True),
    "blocks of vLLM's usual size": dict(block_size=16, blocks=24, token_budget=64),
}
MODES = list(product((False, True), (False, True)))


def total(outcomes: list[Outcome]) -> Outcome:
    return Outcome(
        wrong=sum(o.wrong for o in outcomes),
        lost_requests=sum(o.lost_requests for o in outcomes),
        right=sum(o.right for o in outcomes),
        reclaims=sum(o.reclaims for o in outcomes),
        produced=sum(o.produced for o in outcomes),
        computed=sum(o.computed for o in outcomes),
        again=sum(o.again for o in outcomes),
    )


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_the_fake_worker_serves_an_undisturbed_engine(asynchronous, second_runner):
    cases = [
        Case(seed, asynchronous, second_runner, plugin=False, reclaim=0)
        for seed in range(SEEDS // 3)
    ]
    outcome = total([run(case) for case in cases])
    assert (outcome.wrong, outcome.lost_requests) == (0, 0)


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
@pytest.mark.parametrize("traffic", TRAFFIC)
def test_losing_blocks_in_mid_step_changes_no_output(traffic, asynchronous, second_runner, record):
    cases = [
        Case(seed, asynchronous, second_runner, **TRAFFIC[traffic]) for seed in range(SEEDS)
    ]
    outcome = total([run(case) for case in cases])
    mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
    record(
        f"{traffic}, {mode}: {outcome.right + outcome.wrong} requests,"
        f" {outcome.reclaims} reclaims, {outcome.wrong} wrong, {outcome.lost_requests} lost,"
        f" {words(outcome.again, outcome.produced, outcome.computed)}"
    )
    assert outcome.reclaims >= SEEDS, "the run is empty"
    assert (outcome.wrong, outcome.lost_requests) == (0, 0)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda a: a.plugin.__name__)
def test_every_clause_is_needed(ablation: Ablation, record):
    if type(versions.engine(Scheduler)) not in ablation.ways:
        pytest.skip("this version does it itself")
    for asynchronous, second_runner in product(ablation.asynchronous, ablation.second_runner):
        traffic = dict(ablation.traffic)

        def breaks(seed, asynchronous=asynchronous, second_runner=second_runner, traffic=traffic):
            outcome = run(Case(seed, asynchronous, second_runner, **traffic), ablation.plugin)
            return outcome.wrong + outcome.lost_requests or outcome.crashed

        broke, words = first_broken(breaks)
        mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
        record(f"without: {ablation.plugin.__doc__} {mode}: {words}")
        assert broke, "nothing broke: the clause, or this test, has to go"


def test_what_is_computed_from_a_lost_block_is_wrong_in_every_group_of_layers():
    """A loses a block of its first group. B shares a later one of A's second group, C an earlier one, D none."""
    a = [Part(4, 0, [1, 2, 3]), Part(4, 0, [11, 12, 13])]
    b = [Part(4, 0, [4, 5, 6]), Part(4, 1, [12, 16])]
    c = [Part(4, 0, [1, 8]), Part(4, 0, [11, 18])]
    d = [Part(4, 0, [7]), Part(4, 0, [17])]
    tables = list({"a": a, "b": b, "c": c, "d": d}.items())
    hit, disowned = reach(tables, {2})
    assert hit == {"a", "b"}
    # Of B all from the place on at which A's block begins, in both groups.
    assert disowned == {2, 3, 12, 13, 5, 6, 16}
    # The same for whoever finds B before A.
    assert reach(tables[::-1], {2}) == (hit, disowned)


@pytest.mark.parametrize("plugin,wrong", [(LostBlocks, 0), (DirectHoldersOnly, 1)])
def test_what_was_written_from_garbage_is_followed_through_duplicate_blocks(plugin, wrong):
    """B writes blocks 4 and 5 from its own, lost copy of block 2; C holds them, and another copy."""
    rig = Rig(Case(0, asynchronous=True, blocks=64, token_budget=40, run=1), plugin)
    schedule, worker = rig.scheduler.schedule, rig.worker
    prefix = list(range(1, 17))
    longer = prefix + list(range(20, 28))

    def arrive(entry):
        return rig.scheduler.update_from_output(entry[0], entry[1])

    def step():
        output = schedule()
        worker.begin(output)
        return [output, None]

    rig.scheduler.add_request(rig.request("a", prefix + [50], 1))
    entry = step()
    first = rig.scheduler.kv_cache_manager.get_block_ids("a")[0]
    entry[1] = worker.run(entry[0])
    arrive(entry)
    # Its second block goes and comes back: the cache holds the first, the third and the fourth.
    rig.agent.take([first[1]])
    rig.state.take_cut()
    rig.agent.give([first[1]])
    rig.state.take_cut()

    rig.scheduler.add_request(rig.request("b", longer + [51], 1))
    behind = step()
    own = rig.scheduler.kv_cache_manager.get_block_ids("b")[0]
    assert own[0] == first[0] and own[2] != first[2]
    rig.scheduler.add_request(rig.request("c", longer + [52, 53], 1))

    # B has computed half of its prompt when its third block is lost.
    computed = iter(range(1000))
    worker.moment = lambda: rig.agent.take([own[2]]) if next(computed) == 12 else None
    behind[1] = worker.run(behind[0])
    worker.moment = lambda: None
    ahead = step()
    others = rig.scheduler.kv_cache_manager.get_block_ids("c")[0]
    assert own[2] not in others and set(own[4:6]) <= set(others)
    ahead[1] = worker.run(ahead[0])

    got: dict[str, list[int]] = {"b": [], "c": []}
    flights = [behind, ahead]
    while rig.scheduler.has_requests() or flights:
        entry = flights.pop(0) if flights else step()
        if entry[1] is None:
            entry[1] = worker.run(entry[0])
        for client in arrive(entry).values():
            for out in client.outputs:
                got[out.request_id] += out.new_token_ids
    bad = (got["b"] != truth(longer + [51], 1)) + (got["c"] != truth(longer + [52, 53], 1))
    assert bad == wrong


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_permanent_shortage_neither_spins_nor_loses_a_request(asynchronous, second_runner):
    rig = Rig(Case(1, asynchronous, second_runner))
    prompts = {str(i): [7 * i + j for j in range(40)] for i in range(3)}
    for name, prompt in prompts.items():
        rig.scheduler.add_request(rig.request(name, prompt, 20))
    got: dict[str, list[int]] = {name: [] for name in prompts}

    def steps(count):
        for _ in range(count):
            for name, tokens in rig.engine.step().items():
                got[name] += tokens

    steps(4)
    taken = list(range(1, 40))  # eight blocks stay: too few for any of them
    rig.agent.take(taken)
    steps(50)
    computed, waits = len(rig.gpu.slots), rig.agent.waits
    before = {name: list(tokens) for name, tokens in got.items()}
    steps(200)
    assert got == before and computed == len(rig.gpu.slots)
    assert rig.agent.waits - waits >= 90, "an engine that can compute nothing has to wait"
    rig.agent.give(taken)
    steps(200)
    assert got == {name: truth(prompt, 20) for name, prompt in prompts.items()}


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("plugin,passed", [(LostBlocks, True), (NobodyPasses, False)])
def test_whoever_could_not_run_even_alone_keeps_nobody_waiting(asynchronous, second_runner, priorities, plugin, passed):
    """Of 47 blocks 20 are left: too few for the 25 of the first, and enough for those behind it."""
    rig = Rig(Case(3, asynchronous, second_runner, priorities=priorities), plugin)
    prompts = {"long": list(range(100)), **{str(i): [200 + 9 * i + j for j in range(30)] for i in range(4)}}
    got: dict[str, list[int]] = {name: [] for name in prompts}

    def add(*names):
        for name in names:
            rig.scheduler.add_request(rig.request(name, prompts[name], 6, priority=int(name != "long")))

    def steps(count):
        for _ in range(count):
            for name, tokens in rig.engine.step().items():
                got[name] += tokens

    taken = list(range(1, 28))
    rig.agent.take(taken)
    add("long", "0", "1", "2")
    steps(80)
    right = {name: truth(prompt, 6) for name, prompt in prompts.items()}
    assert got == {name: right[name] if passed and name in "012" else [] for name in prompts}
    waiting = [request.request_id for request in rig.scheduler.waiting]
    assert waiting == (["long"] if passed else ["long", "0", "1", "2"]), "somebody is not where he stood"
    # There is memory for it again: it goes first, and whoever came later waits if there is not enough for both.
    add("3")
    rig.agent.give(taken[:8])
    while not got["long"]:
        steps(1)
    assert not got["3"]
    steps(60)
    assert got == right and not rig.scheduler.has_requests()


def test_a_request_that_cannot_be_asked_its_size_is_put_back_with_the_others(monkeypatch):
    rig = Rig(Case(3))
    rig.agent.take(range(1, 28))
    for name in ("long", "longer", "odd", "3"):
        rig.scheduler.add_request(rig.request(name, list(range(100)), 6))
    needs = Aside._needs

    def once(self, tokens):
        monkeypatch.setattr(Aside, "_needs", asked)
        return needs(self, tokens)

    def asked(self, tokens):
        raise AttributeError("of another shape")

    monkeypatch.setattr(Aside, "_needs", once)
    with pytest.raises(AttributeError):
        rig.scheduler.schedule()
    waiting = [request.request_id for request in rig.scheduler.waiting]
    assert waiting == ["long", "longer", "odd", "3"]


def test_an_idle_engine_computes_nothing_from_what_it_lost_meanwhile():
    rig = Rig(Case(2, blocks=64))
    prompt = list(range(40))
    rig.scheduler.add_request(rig.request("first", prompt, 4))
    while rig.scheduler.has_requests():
        rig.engine.step()
    rig.agent.take(range(1, 20))
    rig.scheduler.add_request(rig.request("second", prompt, 4))
    request = rig.scheduler.requests["second"]
    got: list[int] = []
    while rig.scheduler.has_requests():
        got += rig.engine.step().get("second", [])
    assert got == truth(prompt, 4)
    assert request.num_preemptions == 0, "the first step after it was computed twice"


def test_longest_requests_fit_the_harness():
    assert LONGEST // Case(0).block_size + 1 < Case(0).blocks
    assert shape.known() is not None, shape.found()
