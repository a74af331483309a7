"""What memory that comes and goes has an offline vLLM compute again, by who chooses and who places; beside vLLM's own.

The scheduler is vLLM's, over a model that answers at once. The agent here takes so many stripes in the middle of a step and
gives them back later; it chooses by what the plugin publishes, as the real one does. What is computed again is counted by
``tax`` from what the worker is handed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from fake import Gpu
from harness import LONGEST, Case, hooks, make_request, make_scheduler, versions
from offline_agent import Agent
from tax import Handed, words
from tidegate_engines.vllm.lost import LostBlocks
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

#: Blocks of a stripe, and stripes of the pool.
RUN, STRIPES = 64, 64
CASE = Case(0, block_size=4, blocks=RUN * STRIPES, running=256, token_budget=1024)
#: Steps with requests in plenty, and how often memory is taken: it is away for half of the time.
STEPS, PERIOD = 420, 60

#: By number of a request: what its loss is said to cost, and the stripes it lies in.
Held = dict[int, tuple[int, set[int]]]


class Pricing(Agent):
    """An agent that remembers what is said to be lost with each request."""

    def __init__(self, memory: Gpu) -> None:
        super().__init__(memory)
        self.held: Held = {}

    def publish(self, request, tokens, blocks):
        super().publish(request, tokens, blocks)
        self.held[request] = tokens, {block // RUN for block in blocks}

    def forget(self, request):
        super().forget(request)
        del self.held[request]


def cheapest(held: Held, stripes: list[int], count: int, rng: random.Random) -> list[int]:
    """The agent's rule: least marginal cost first; who is hit by one stripe costs nothing in the next."""
    chosen: list[int] = []
    left = dict(held)
    for _ in range(count):
        costs = dict.fromkeys(sorted(set(stripes) - set(chosen)), 0)
        for tokens, lies in left.values():
            for stripe in lies & costs.keys():
                costs[stripe] += tokens
        best = min(costs, key=costs.__getitem__)
        chosen.append(best)
        left = {name: entry for name, entry in left.items() if best not in entry[1]}
    return chosen


def last_come(held: Held, stripes: list[int], count: int, rng: random.Random) -> list[int]:
    """vLLM's rule where blocks are short: whoever came last goes first, with all that it holds."""
    order = [stripe for name in sorted(held, reverse=True) for stripe in sorted(held[name][1])]
    return list(dict.fromkeys(stripe for stripe in [*order, *stripes] if stripe in stripes))[:count]


def any_of_them(held: Held, stripes: list[int], count: int, rng: random.Random) -> list[int]:
    """No rule."""
    return rng.sample(stripes, count)


Choice = Callable[[Held, list[int], int, random.Random], list[int]]
CHOICES: dict[str, Choice] = {"by cost": cheapest, "from who came last": last_come, "at random": any_of_them}


class Inverted(LostBlocks):
    """What costs most is said to cost least."""

    def _cost(self, request):
        return 2 * LONGEST - super()._cost(request)


@dataclass(frozen=True)
class Bill:
    """What one run came to."""

    handed: Handed
    produced: int
    #: Tokens that clients had when no more requests came.
    in_time: int

    @property
    def tax(self) -> float:
        return self.handed.again / self.produced

    def __str__(self) -> str:
        return words(self.handed.again, self.produced, self.handed.computed)


class Busy:
    """vLLM's scheduler, which always has more requests than fit, until the end."""

    def __init__(self, blocks: int, plugin: type[LostBlocks] | None, run: int, running: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.case = Case(0, block_size=4, blocks=blocks, running=running, token_budget=CASE.token_budget)
        self.scheduler = make_scheduler(self.case, blocks)
        self.agent = Pricing(Gpu(blocks, 1, self.rng))
        if plugin is not None:
            hooks.watch(self.scheduler, plugin(self.scheduler, self.agent, versions.engine(Scheduler), run))
        self.handed = Handed()
        #: By request: its prompt and answer, in tokens, and what its client has of the answer.
        self.whole: dict[str, int] = {}
        self.got: dict[str, int] = {}

    def add(self, prompt: int, tokens: int) -> None:
        """A request whose prompt is no other's."""
        name = str(len(self.whole))
        self.whole[name] = prompt + tokens
        self.got[name] = 0
        said = [self.rng.randrange(90) for _ in range(prompt)]
        self.scheduler.add_request(make_request(self.case, name, said, tokens, float(len(self.whole))))

    def step(self, meanwhile: Callable[[], None]) -> None:
        """One step, in the middle of which something happens."""
        output = self.scheduler.schedule()
        self.handed.step(output)
        meanwhile()
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        whole = [request.num_computed_tokens >= request.num_tokens for request in requests]
        results = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[7] if done else [] for done in whole],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        for client in self.scheduler.update_from_output(output, results).values():
            for out in client.outputs:
                self.got[out.request_id] += len(out.new_token_ids)

    def take(self, stripes: int, choice: Choice, rng: random.Random, empty_first: bool = True) -> None:
        """Stripes without requests first, for they cost nothing; vLLM's placeholder is never taken."""
        held = {stripe for _, lies in self.agent.held.values() for stripe in lies}
        every = range(1, self.case.blocks // RUN)
        empty = [stripe for stripe in every if stripe not in held][: stripes * empty_first]
        full = [stripe for stripe in every if stripe in held]
        chosen = empty + choice(self.agent.held, full, stripes - len(empty), rng)
        assert len(set(chosen)) == stripes
        self.agent.take([block for stripe in chosen for block in range(stripe * RUN, (stripe + 1) * RUN)])

    def bill(self, in_time: int = 0) -> Bill:
        """What everything came to; it has to add up, whatever was taken."""
        produced, handed = sum(self.got.values()), self.handed
        prompts = sum(self.whole.values()) - produced
        assert handed.reached == {name: tokens - 1 for name, tokens in self.whole.items()}
        assert handed.computed == prompts + produced - len(self.whole) - handed.found + handed.again
        return Bill(handed, produced, in_time)


@cache
def busy(
    stripes: int,
    choice: str = "by cost",
    run: int = RUN,
    plugin: type[LostBlocks] | None = LostBlocks,
    pool: int = STRIPES,
    running: int = 256,
) -> Bill:
    """An engine with so many stripes, of which some are taken and given back; then what is left is served."""
    engine = Busy(pool * RUN, plugin, run, running, seed=1)
    rng, lengths = random.Random(1), random.Random(2)
    steps = in_time = 0
    while steps < STEPS or engine.scheduler.has_requests():
        while steps < STEPS and len(engine.scheduler.waiting) < 8:
            engine.add(lengths.randint(4, 104), lengths.randint(4, 80))
        if stripes and steps % PERIOD == PERIOD // 2 and steps < STEPS:
            engine.step(lambda: engine.take(stripes, CHOICES[choice], rng))
        else:
            engine.step(lambda: None)
        if steps % PERIOD == PERIOD - 1:
            engine.agent.give(sorted(engine.agent.memory.lost))
        steps += 1
        if steps == STEPS:
            in_time = sum(engine.got.values())
        assert steps < 20 * STEPS, "the engine makes no progress"
    assert (engine.agent.reclaims > 0) == (stripes > 0)
    return engine.bill(in_time)


def tell(record, what: str, bill: Bill) -> None:
    record(f"recompute tax, {what}: {bill}, {bill.in_time} tokens produced in {STEPS} steps")


@pytest.mark.parametrize("run", [1, RUN])
def test_where_nothing_is_taken_and_nothing_is_short_nothing_is_computed_again(run):
    bill = busy(0, run=run, running=96)
    assert bill.produced > 10_000 and bill.tax == 0


def test_where_nothing_is_taken_the_plugin_has_as_much_computed_again_as_vllm_has_itself(record):
    with_it, without = busy(0, run=1), busy(0, plugin=None)
    tell(record, f"vLLM with all of {STRIPES} stripes", without)
    assert with_it.handed == without.handed and without.handed.again > 0


@pytest.mark.parametrize("stripes", [STRIPES // 8, STRIPES // 4])
def test_vllms_own_preemption_computes_again_where_the_same_memory_is_missing_for_good(stripes, record):
    bill = busy(0, plugin=None, pool=STRIPES - stripes)
    tell(record, f"vLLM without {stripes} of {STRIPES} stripes", bill)
    assert bill.tax > 0, "nothing was scarce"
    ours = busy(stripes)
    tell(record, f"{stripes} of {STRIPES} stripes taken by cost, the plugin's placement", ours)
    assert ours.in_time > bill.in_time, "the memory that is there for half of the time is worth less than it costs"


def test_who_is_taken_from_and_where_requests_lie_decide_what_is_computed_again(record):
    stripes = STRIPES // 8
    taxes: dict[tuple[str, int], float] = {}
    for run, placed in ((RUN, "the plugin's placement"), (1, "vLLM's own placement")):
        for choice in CHOICES:
            bill = busy(stripes, choice, run)
            taxes[choice, run] = bill.tax
            if (choice, run) != ("by cost", RUN):  # that one is told above
                tell(record, f"{stripes} of {STRIPES} stripes taken {choice}, {placed}", bill)
    ours = taxes["by cost", RUN]
    # Of what is lost a part is inevitable: what the taken blocks hold.
    assert ours * 1.4 < min(taxes["from who came last", RUN], taxes["at random", RUN])
    assert ours * 2 < taxes["by cost", 1] < min(taxes["from who came last", 1], taxes["at random", 1])


@pytest.mark.parametrize("plugin,right", [(LostBlocks, True), (Inverted, False)])
def test_of_a_long_request_and_short_ones_those_lose_that_have_less_to_lose(plugin, right):
    """Long ones fill a stripe each, short ones share one: it is the cheaper, however many they are."""
    engine = Busy(5 * RUN, plugin, RUN, 8, seed=3)
    for prompt, tokens in [(230, 6)] * 2 + [(20, 40)] * 4:
        engine.add(prompt, tokens)
    for step in range(60):
        engine.step((lambda: engine.take(1, cheapest, engine.rng, empty_first=False)) if step == 2 else lambda: None)
        if step == 6:
            engine.agent.give(sorted(engine.agent.memory.lost))
    again = engine.bill().handed.again
    assert again > 0
    assert (again < 120) == right, again
