"""What a worker with a process of its own says of its engine's requests, against what the scheduler knows of them."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness import VOCABULARY, Case, Rig, Thief
from test_vllm_shape import pristine
from tidegate_engines import abi
from tidegate_engines import vllm as plugin
from tidegate_engines.vllm import hints, ranks
from vllm.v1.request import RequestStatus
from vllm.v1.worker.gpu_worker import Worker

SEEDS = int(os.environ.get("SEEDS", "15"))


class Told:
    """A library that takes this one call."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def call(self, name: str, count: int) -> None:
        assert name == "tg_requests_in_flight"
        self.told.append(count)

    @property
    def now(self) -> int:
        return self.told[-1] if self.told else 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("second_runner", [False, True])
def test_a_worker_says_so_for_as_long_as_its_engine_serves(asynchronous, second_runner, record):
    """Random arrivals, preemptions for want of blocks, aborts and reclaims."""
    steps = computed = idle = most = 0
    for seed in range(SEEDS):
        case = Case(seed, asynchronous=asynchronous, second_runner=second_runner, blocks=40, abort=0.04)
        thief = Thief(case)
        rig = Rig(case, moment=thief)
        thief.robs(rig, rig.rng)
        told = Told()
        state = ranks.Ranks(told)
        begin = rig.worker.begin

        def begins(output, rig=rig, begin=begin, state=state, told=told):
            nonlocal steps, computed
            state.begins(output)
            steps += 1
            if output.total_num_scheduled_tokens:
                computed += 1
                assert told.now >= len(rig.scheduler.running) > 0, case
            assert told.now == len(state.live) <= len(rig.scheduler.requests) + len(output.finished_req_ids), case
            begin(output)

        rig.worker.begin = begins
        waiting = [
            rig.request(str(i), [rig.rng.randrange(VOCABULARY) for _ in range(rig.rng.randint(4, 60))], 12)
            for i in range(10)
        ]
        while waiting or rig.scheduler.has_requests() or rig.engine.queue:
            # Now and then the engine has nothing to do for a while.
            if waiting and rig.rng.random() < 0.08:
                rig.scheduler.add_request(waiting.pop(0))
            live = list(rig.scheduler.requests)
            if live and rig.rng.random() < case.abort:
                rig.scheduler.finish_requests(rig.rng.choice(live), RequestStatus.FINISHED_ABORTED)
            rig.engine.step()
            if not rig.scheduler.has_requests() and not rig.engine.queue:
                assert told.now == 0, case
                idle += 1
            back = sorted(rig.gpu.lost)
            if back and rig.rng.random() < case.give_back:
                rig.agent.give(back)
        assert told.now == 0, case
        most = max(most, *told.told)
    record(f"{steps} steps, {computed} of them computed; idle {idle} times")
    assert idle > 2 * SEEDS and most > 2


@pytest.fixture
def worker(monkeypatch):
    """vLLM's class of workers with another step; what is done to it is undone."""
    before = dict(vars(Worker))
    stepped: list[object] = []
    monkeypatch.setattr(Worker, "execute_model", lambda self, scheduler_output: stepped.append(scheduler_output))
    monkeypatch.setattr(hints.Word, "spoken", False)
    yield SimpleNamespace(make=lambda: Worker.__new__(Worker), stepped=stepped)
    assert before.keys() <= vars(Worker).keys()


OUTPUT = SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=[SimpleNamespace(req_id="a")])


@pytest.mark.parametrize(
    "role,spoken,says",
    [("online", False, [1]), ("offline", False, []), ("", False, []), ("online", True, [])],
)
def test_only_an_online_worker_for_which_no_scheduler_speaks_says_anything(role, spoken, says, worker, monkeypatch):
    told = Told()
    monkeypatch.setattr(abi, "library", lambda: told)
    monkeypatch.setattr(hints.Word, "spoken", spoken)
    ranks.listen(Worker, lambda: role)
    one = worker.make()
    one.execute_model(OUTPUT)
    one.execute_model(scheduler_output=SimpleNamespace(finished_req_ids={"a"}, scheduled_new_reqs=[]))
    assert told.told == (says + [0] if says else [])
    assert len(worker.stepped) == 2


def test_a_step_of_another_kind_is_computed_all_the_same(worker, monkeypatch, caplog):
    told = Told()
    monkeypatch.setattr(abi, "library", lambda: told)
    ranks.listen(Worker, lambda: "online")
    one = worker.make()
    for _ in range(3):
        one.execute_model(object())
    assert len(worker.stepped) == 3 and told.told == []


def test_register_listens_to_workers_in_every_role_that_may_be_online(worker, monkeypatch):
    monkeypatch.setattr(abi, "library", Told)
    monkeypatch.setenv("TIDEGATE_ROLE", "online")
    with pristine():
        plugin.register()
        assert getattr(vars(Worker)["execute_model"], "_tidegate", False)
