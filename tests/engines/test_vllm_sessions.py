"""Sessions whose next turn comes later: between turns they hold blocks, run nothing, and may lose them."""

from __future__ import annotations

import random
from itertools import product

import pytest
from ablations import first_broken
from fake import VOCABULARY, truth
from harness import Case, Request, Rig, Scheduler, Thief, make_request
from test_vllm_offline import SEEDS
from tidegate_engines.vllm.lost import LostBlocks
from vllm.sampling_params import SamplingParams

MODES = list(product((False, True), (False, True)))


def turn(case: Case, name: str, words: list[int], tokens: int, last: bool) -> Request:
    """One turn of a session; nothing more comes after the last one."""
    return make_request(case, name, words, tokens, resumable=not last)


def talk(case: Case, plugin: type[LostBlocks] = LostBlocks) -> tuple[Rig, dict, dict]:
    """Holds conversations of three turns; what came, and what an undisturbed engine answers."""
    rng = random.Random(case.seed)

    thief = Thief(case)
    rig = Rig(case, plugin, thief)
    thief.robs(rig, rng)
    turns, wanted, due = {}, {}, {}
    for i in range(4):
        name, said, context, tokens = str(i), [], [], rng.randint(2, 8)  # 0.24 keeps the first turn's
        for _ in range(3):
            words = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 12))]
            said.append((words, tokens))
        wanted[name], ends = [], []
        for words, tokens in said:
            context = context + words
            answer = truth(context, tokens)
            wanted[name] += answer
            ends.append(len(wanted[name]))
            context = context + answer[:-1]  # vLLM keeps what it has computed
        turns[name], due[name] = said, [0, *ends[:-1]]
    got: dict[str, list[int]] = {name: [] for name in turns}
    steps = 0
    over: set[str] = set()
    while len(over) < len(turns) or rig.scheduler.has_requests() or rig.engine.queue:
        for name, said in turns.items():
            # The next turn comes when the last one has been answered, or a little before.
            if said and len(got[name]) >= due[name][3 - len(said)] and rng.random() < 0.2:
                words, tokens = said.pop(0)
                rig.scheduler.add_request(turn(case, name, list(words), tokens, last=False))
            elif not said and name not in over and len(got[name]) >= len(wanted[name]):
                over.add(name)
                rig.scheduler.add_request(turn(case, name, [1], 1, last=True))
        if rng.random() < 3 * case.reclaim:
            thief()
        for name, tokens in rig.engine.step().items():
            got[name] += tokens
        if rig.gpu.lost and rng.random() < case.give_back:
            rig.agent.give(sorted(rig.gpu.lost))
        steps += 1
        if steps > 3_000:
            break
    return rig, got, wanted


def total(asynchronous: bool, second_runner: bool, seeds: int, plugin=LostBlocks, first=0, **changes):
    losses = wrong = broken = 0
    for seed in range(first, first + seeds):
        case = Case(seed, asynchronous, second_runner, running=5, **{"reclaim": 0.03, **changes})
        try:
            rig, got, wanted = talk(case, plugin)
        except (AssertionError, IndexError, KeyError, ValueError, RuntimeError):
            if plugin is LostBlocks:
                raise
            broken += 1
            continue
        losses += rig.agent.reclaims
        wrong += sum(got[name] != wanted[name] for name in wanted)
    return losses, wrong, broken


class ForgetAtOnce(LostBlocks):
    """A session that lost its blocks is taken for one that has computed nothing, before its next turn has come."""

    def _begin_turns(self) -> None:
        for name in self._bare & self.scheduler.requests.keys():
            self.scheduler.requests[name].num_computed_tokens = 0
        self._bare.clear()


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_sessions_of_an_undisturbed_engine_are_played_right(asynchronous, second_runner):
    assert total(asynchronous, second_runner, max(SEEDS // 10, 1), reclaim=0) == (0, 0, 0)


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_session_that_loses_blocks_between_two_turns_goes_on(asynchronous, second_runner, record):
    losses, wrong, _ = total(asynchronous, second_runner, SEEDS)
    mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
    record(f"sessions, {mode}: {4 * SEEDS} requests, {losses} reclaims, {wrong} wrong")
    assert losses >= SEEDS, "the run is empty"
    assert wrong == 0


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_what_was_computed_is_not_forgotten_between_two_turns(asynchronous, second_runner, record):
    if "num_computed_tokens" not in Scheduler._update_request_as_session.__code__.co_varnames:
        pytest.skip("this version counts the tokens that it keeps")
    broke, words = first_broken(
        lambda seed: any(total(asynchronous, second_runner, 1, ForgetAtOnce, first=seed)[1:])
    )
    mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
    record(f"without: {ForgetAtOnce.__doc__} {mode}: {words}")
    assert broke, "nothing broke: the clause, or this test, has to go"


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
@pytest.mark.parametrize("plugin", [False, True])
def test_each_turn_is_as_long_as_vllm_itself_has_it(asynchronous, second_runner, plugin):
    """Some versions, 0.24 among them, give every turn of a session the limit of its first one, without any plugin."""
    own = "max_tokens" in Scheduler._update_request_as_session.__code__.co_names
    limits = [2, 5, 3]
    case = Case(0, asynchronous, second_runner, reclaim=0, plugin=plugin)
    rig = Rig(case)
    lengths = []
    for limit in limits:
        rig.scheduler.add_request(turn(case, "0", [7, 8, 9], limit, last=False))
        for _ in range(20):
            lengths.append(len(rig.engine.step().get("0", [])))
    assert sum(lengths) == (sum(limits) if own else len(limits) * limits[0])
