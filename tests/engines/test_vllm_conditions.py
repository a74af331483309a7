"""What an engine does beside stepping: pauses, schedulers of its user's, requests that cannot be mended."""

from __future__ import annotations

import threading
from itertools import product

import pytest
from ablations import first_broken
from fake import truth
from harness import Case, Rig, copying, run
from test_vllm_asked import with_logprobs, with_rows, with_seed
from tidegate_engines.vllm import hooks, lost, versions, withheld
from tidegate_engines.vllm.lost import UNTAKEABLE, LostBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

MODES = list(product((False, True), (False, True)))


class OnlyIdle(LostBlocks):
    """Only an engine without requests is looked after."""

    looked = 0

    def look(self, seen: int) -> int:
        with self.lock:
            self.looked += 1
            if not self.scheduler.requests:
                self.when_idle()
        return seen


class Looked(LostBlocks):
    looked = 0

    def when_idle(self) -> None:
        super().when_idle()
        self.looked += 1


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
@pytest.mark.parametrize("plugin,heard", [(Looked, True), (OnlyIdle, False)])
def test_a_paused_engine_says_what_it_withholds_and_goes_on_as_if_never_paused(
    plugin, heard, asynchronous, second_runner, monkeypatch
):
    monkeypatch.setattr(withheld, "IDLE_S", 0.01)
    rig = Rig(Case(3, asynchronous, second_runner, blocks=64), plugin)
    prompts = {str(i): [11 * i + j for j in range(30)] for i in range(3)}
    for name, prompt in prompts.items():
        rig.scheduler.add_request(rig.request(name, prompt, 12))
    got: dict[str, list[int]] = {name: [] for name in prompts}

    def step():
        for name, tokens in rig.engine.step().items():
            got[name] += tokens

    for _ in range(6):
        step()
    rig.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    while rig.engine.queue:
        step()
        if all(not entry[0].total_num_scheduled_tokens for entry in rig.engine.queue):
            rig.engine.queue.clear()  # vLLM's loop waits for a request now
            break
    rig.state.flights.clear()
    assert rig.scheduler.requests, "nothing is left to pause"
    rig.agent.take(range(1, 20))
    stop = hooks.start_looking(rig.state)
    try:
        # Twice: a thread that looks only once has seen no step go by.
        enough = threading.Event()
        for _ in range(3000):
            if rig.state.looked >= 3:
                break
            enough.wait(0.01)
        assert rig.state.looked >= 3, "nobody looks"
    finally:
        stop.set()
    assert (rig.agent.acked == len(rig.agent.log)) is heard
    rig.agent.give(range(1, 20))
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    for _ in range(300):
        step()
        if heard:
            rig.check_free()
    assert got == {name: truth(prompt, 12) for name, prompt in prompts.items()}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_users_scheduler_is_listened_to_where_vllm_calls_it(asynchronous, record, monkeypatch):
    """And if only vLLM's own class is, steps that were copied come back unknown, and nothing of them is dropped."""
    if isinstance(versions.engine(Scheduler), versions.StaleEngine):
        pytest.skip("this version marks on the request what is dropped")
    kind = copying(AsyncScheduler if asynchronous else Scheduler)
    monkeypatch.setattr(kind, "schedule", _bare(vars(kind)["schedule"]))
    vars(kind)["schedule"]._tidegate = True  # so that no hook goes there

    def breaks(seed):
        outcome = run(Case(seed, asynchronous, copying=True), type("Ablated", (LostBlocks,), {}))
        return outcome.wrong + outcome.lost_requests or outcome.crashed

    broke, words = first_broken(breaks)
    mode = "async" if asynchronous else "sync"
    record(f"without: A user's scheduler is listened to itself. {mode}, runner 1: {words}")
    assert broke, "nothing broke: the clause, or this test, has to go"


def _bare(method):
    """A method as it was written."""
    bare = getattr(method, "__wrapped__", method)
    return lambda self, *args, **kwargs: bare(self, *args, **kwargs)


@pytest.mark.parametrize("make", [with_logprobs, with_seed, with_rows])
@pytest.mark.parametrize("mended,second_runner", [(False, False), (True, False), (False, True)])
def test_requests_that_cannot_be_mended_are_taken_from_last_and_named_once(
    make, mended, second_runner, monkeypatch
):
    said = []
    monkeypatch.setattr(lost.log, "warning", lambda text, *args: said.append(text % args))
    rig = Rig(Case(0, second_runner=second_runner, blocks=64))
    costs = {}
    rig.agent.publish = lambda number, tokens, blocks: costs.__setitem__(number, tokens)
    state = LostBlocks(rig.scheduler, rig.agent, rig.state.engine, 1, mended)
    hooks.watch(rig.scheduler, state)
    for i in range(3):
        rig.scheduler.add_request(make(str(i), list(range(10)), 3))
    rig.scheduler.add_request(rig.request("plain", list(range(50, 55)), 3))
    rig.scheduler.schedule()
    takeable = mended or second_runner
    assert len(costs) >= 2
    assert (UNTAKEABLE in costs.values()) is not takeable
    assert len(said) == (0 if takeable else 1), said
    by_name = {name: costs.get(said.number) for name, said in state._said.items()}
    assert by_name.get("plain", 0) < UNTAKEABLE
