"""An online vLLM of two ranks uses a block only where both have memory under it, and gives it back when both have left it.

Both ranks compute every step that the real scheduler sends, one of them whenever it gets to it, each on a GPU that maps
and unmaps at its own pace. What a rank may touch is its lender's own record, and what is over is what it computed.
"""

from __future__ import annotations

import pickle
import random
import socket
from collections import deque
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from ablations import first_broken
from fake import VOCABULARY, Engine, Gpu, Lender, SecondWorker, Worker, truth
from harness import Case, make_request, make_scheduler
from test_vllm_offline import SEEDS
from tidegate_engines import abi
from tidegate_engines.vllm import agreed, held, hooks, links, versions, worker
from tidegate_engines.vllm.agreed import Agreed
from tidegate_engines.vllm.grown import GrownBlocks
from tidegate_engines.vllm.held import Held

MODES = list(product((False, True), (False, True)))


class Kept(Lender):
    """Says before it gives a block back who may do so."""

    def __init__(self, rig: Rig, gpu: Gpu, limit: int) -> None:
        super().__init__(gpu, limit, headroom=12)
        self.rig = rig

    def release(self, blocks):
        for block in blocks:
            step = self.rig.left_at.get(block, 0)
            assert all(rank.ran >= step for rank in self.rig.ranks), "released before every rank was done"
        super().release(blocks)


class Rank:
    """One process: memory, a worker, and its side of the agreement."""

    def __init__(self, rig: Rig, number: int, limit: int, held: type[Held]) -> None:
        case = rig.case
        self.rig, self.number = rig, number
        self.gpu = Gpu(case.blocks, case.block_size, rig.rng)
        self.lender = Kept(rig, self.gpu, limit)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.theirs = theirs
        self.held = held(ours, self.lender, self.finish)
        kind, slots = (SecondWorker, (case.running,)) if case.second_runner else (Worker, ())
        self.worker = kind(self.gpu, case.asynchronous, lambda: None, *slots)
        #: Steps that were sent and not launched, the one that was launched and has not ended, and its output by number.
        self.sent: deque[bytes] = deque()
        self.launched = None
        self.outputs: dict[int, object] = {}
        self.launches = self.ran = 0
        self.dead = False

    def launch(self) -> None:
        """A step reaches the GPU; the one before it has ended."""
        if self.sent:
            self.finish()
            output = pickle.loads(self.sent.popleft())
            self.worker.begin(output)
            self.launched = output
            self.launches += 1
            self.held.computed(output)

    def finish(self) -> None:
        """What was launched ends."""
        if self.launched is not None:
            output, self.launched = self.launched, None
            self.ran += 1
            self.outputs[self.ran] = self.worker.run(output)

    def pump(self) -> None:
        """Something happens here, if it happens to."""
        if not self.dead:
            self.rig.rng.choice(
                (self.hear, self.hear, self.held_leaves, self.map, self.unmap, self.finish, self.launch, self.launch)
            )()

    def hear(self) -> None:
        try:
            message = links.receive(self.held.link)
        except BlockingIOError:
            return
        if message is not None:
            self.held.hear(message)

    def held_leaves(self) -> None:
        self.held.leave(wait=False)

    def map(self) -> None:
        self.lender.map_ahead(self.lender.headroom - len(self.lender.ready) + self.lender.asked)
        self.lender.asked = 0

    def unmap(self) -> None:
        self.lender.unmap(self.rig.rng.randint(0, 4))

    def die(self) -> None:
        """As by kill -9: the kernel closes its end."""
        self.dead = True
        self.held.link.close()


class Both:
    """The worker that the engine knows: it sends each step to both ranks, and has the output of the first."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.steps = 0
        self.number: dict[int, int] = {}

    def begin(self, output) -> None:
        self.steps += 1
        self.number[id(output)] = self.steps
        for rank in self.rig.ranks:
            rank.sent.append(pickle.dumps(output))

    def run(self, output):
        number, first = self.number[id(output)], self.rig.ranks[0]
        while first.ran < number:
            if first.launched is None:
                first.launch()
            first.finish()
        return first.outputs[number]


class Rig:
    """One engine of two ranks."""

    def __init__(self, case: Case, limits: tuple[int, int], job: type[Agreed] = Agreed, held: type[Held] = Held) -> None:
        self.case = case
        self.rng = random.Random(f"{case} {limits}")
        self.now = 0.0
        #: By block: the last step that had been scheduled when it was given back.
        self.left_at: dict[int, int] = {}
        self.ranks = [Rank(self, number, limit, held) for number, limit in enumerate(limits)]
        rig = self

        class Timeless(job):
            """Time passes where the ranks do something."""

            def _await(self, enough, timeout_s):
                for _ in range(rig.rng.choice((0, 0, 3, 40))):
                    if self.lost or enough():
                        return
                    rig.pump()
                    self._hear()

            def release(self, blocks):
                rig.left_at.update(dict.fromkeys(blocks, rig.worker.steps))
                super().release(blocks)

        self.job = Timeless([rank.theirs for rank in self.ranks], clock=lambda: self.now)
        self.scheduler = make_scheduler(case, case.blocks)
        self.worker = Both(self)
        self.engine = Engine(self.scheduler, self.worker, self.rng, 2 if case.asynchronous else 1)
        self.state = GrownBlocks(self.scheduler, self.job, hold_s=2.0, clock=lambda: self.now)
        hooks.watch(self.scheduler, self.state)

    def pump(self) -> None:
        self.rng.choice(self.ranks).pump()

    def check(self) -> None:
        """What vLLM may use is in every rank's own record."""
        pool = self.scheduler.kv_cache_manager.block_pool
        usable = {b.block_id for b in pool.blocks if not b.is_null} - self.state.withheld
        for rank in self.ranks:
            if not rank.dead:
                assert usable <= rank.lender.granted, "usable where a rank has no memory"

    def agree(self, first: int) -> None:
        """What both ranks computed of a step is the same."""
        for number in range(first + 1, min(rank.ran for rank in self.ranks) + 1):
            one, other = (rank.outputs[number] for rank in self.ranks)
            assert one.sampled_token_ids == other.sampled_token_ids, "the ranks differ"


@dataclass
class Told:
    """What came of a run."""

    growths: int = 0
    returned: int = 0
    #: A rank was lost while blocks were asked for, or left.
    growing: int = 0
    leaving: int = 0


def serve(case: Case, job: type[Agreed] = Agreed, held: type[Held] = Held, loses: bool = False) -> Told:
    """Serves a case's requests in bursts; a rank may be lost at any moment."""
    traffic = random.Random(case.seed)
    limits = traffic.choice(((40, 40), (40, 60), (70, 36)))
    rig, told = Rig(case, limits, job, held), Told()
    wanted, waiting = {}, []
    for i in range(case.requests):
        words = [traffic.randrange(VOCABULARY) for _ in range(traffic.randint(3, 50))]
        tokens = traffic.randint(1, 25)
        wanted[str(i)] = truth(words, tokens)
        waiting.append(make_request(case, str(i), words, tokens, float(i)))
    got: dict[str, list[int]] = {name: [] for name in wanted}
    # In which step at the earliest, and while it does what.
    dies = (traffic.randint(2, 60), traffic.choice(("grows", "returns"))) if loses else None
    steps = agreed_to = 0
    while waiting or rig.scheduler.has_requests() or rig.engine.queue:
        if waiting and traffic.random() < 0.2:
            rig.scheduler.add_request(waiting.pop(0))
        for _ in range(traffic.randint(0, 12)):
            if dies is not None and steps >= dies[0] and _strikes(rig, dies[1], told, traffic):
                return told
            rig.pump()
        for name, tokens in rig.engine.step().items():
            got[name] += tokens
        rig.check()
        rig.agree(agreed_to)
        agreed_to = min(rank.ran for rank in rig.ranks)
        if traffic.random() < 0.05:
            rig.now += 3.0  # a burst is over
            rig.state.when_idle()
        rig.now += 0.02
        steps += 1
        assert steps < 20_000, "the engine makes no progress"
    assert got == wanted
    told.growths = len(rig.job.granted)
    for _ in range(200):
        for _ in range(10):
            rig.pump()
        rig.now += 0.5
        rig.state.when_idle()
    assert not any(rank.sent or rank.launched for rank in rig.ranks)
    assert [rank.gpu.strays for rank in rig.ranks] == [0, 0], "memory was touched that was not reserved"
    assert not rig.job.granted and not any(rank.lender.granted for rank in rig.ranks), "memory stays reserved"
    assert [rank.lender.flying for rank in rig.ranks] == [0, 0]
    told.returned = len(rig.left_at)
    return told


def _strikes(rig: Rig, when: str, told: Told, draw: random.Random) -> bool:
    """Loses a rank if that is under way, and has the other one end what it has; whether it did."""
    growing, leaving = any(link.asked for link in rig.job.links), bool(rig.job.leaving)
    if not {"grows": growing, "returns": leaving}[when]:
        return False
    told.growing, told.leaving = int(growing), int(leaving)
    dead = draw.randrange(2)
    rig.ranks[dead].die()
    other = rig.ranks[1 - dead]
    granted = None
    for _ in range(400):
        other.pump()
        if dead == 1 and (rig.scheduler.has_requests() or rig.engine.queue):
            rig.engine.step()  # until vLLM's monitor ends it
        else:
            rig.state.when_idle()
        rig.check()
        if rig.job.lost:
            granted = set(rig.job.granted) if granted is None else granted
            assert rig.job.granted <= granted, "granted after a rank was lost"
    assert granted is not None, "nobody noticed"
    while other.sent or other.launched:
        other.launch()
        other.finish()
    assert other.gpu.strays == 0, "memory was touched that was not reserved"
    return True


def case_of(seed: int, asynchronous: bool, second_runner: bool) -> Case:
    return Case(seed, asynchronous, second_runner, blocks=96, requests=8)


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_two_ranks_grow_and_shrink_as_one(asynchronous, second_runner, record):
    returned = 0
    for seed in range(SEEDS):
        try:
            returned += serve(case_of(seed, asynchronous, second_runner)).returned
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
    record(f"two online ranks, {mode}: {SEEDS} runs (seeds 0 to {SEEDS - 1}), {returned} blocks given back, 0 strays")
    assert returned > SEEDS


@pytest.mark.parametrize("asynchronous,second_runner", MODES)
def test_a_rank_that_dies_leaves_the_other_nothing_that_is_not_reserved(asynchronous, second_runner, record):
    growing = leaving = 0
    for seed in range(max(SEEDS, 15)):  # a few are over before either happens
        try:
            told = serve(case_of(seed, asynchronous, second_runner), loses=True)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        growing, leaving = growing + told.growing, leaving + told.leaving
    mode = f"{'async' if asynchronous else 'sync'}, runner {2 if second_runner else 1}"
    record(f"a rank lost, {mode}: {max(SEEDS, 15)} runs, {growing} in mid-growth, {leaving} in mid-release, 0 strays")
    assert growing and leaving


class OfOne(Agreed):
    """What one rank has is granted."""

    def _common(self):
        return set(self.links[0].spare)


class AtOnce(Agreed):
    """Blocks are released without being left."""

    def release(self, blocks):
        self.granted.difference_update(blocks)
        self._free(list(blocks))


class OfWhoeverLeft(Agreed):
    """Each rank releases what it has left itself."""

    def _heard(self, number, message):
        if message.kind == links.LEFT:
            blocks, _ = self.leaving[message.number]
            for part in links.parts(links.RELEASE, blocks):
                self._say(self.links[number], part)
        super()._heard(number, message)

    def _free(self, blocks):
        pass


class Hoarded(Agreed):
    """What nobody asks for any more stays reserved."""

    def _give_spare_back(self):
        pass


class NotEnded(Held):
    """Left is what was launched, whether it has ended or not."""

    def leave(self, wait=True):
        finish, self.finish = self.finish, lambda: None
        try:
            return super().leave(wait)
        finally:
            self.finish = finish


class NotLaunched(Held):
    """Left is what the GPU has done, whatever is still to be launched."""

    def leave(self, wait=True):
        self.launched = 1 << 62
        return super().leave(wait)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("clause", [OfOne, AtOnce, OfWhoeverLeft, Hoarded, NotEnded, NotLaunched])
def test_without_any_clause_it_breaks(clause, asynchronous, record):
    job, held = (clause, Held) if issubclass(clause, Agreed) else (Agreed, clause)

    def breaks(seed):
        try:
            serve(case_of(seed, asynchronous, False), job, held)
        except AssertionError as error:
            return str(error) or "an assertion"
        return None

    broke, words = first_broken(breaks)
    record(f"without: {clause.__doc__} {'async' if asynchronous else 'sync'}, runner 1: {words}")
    assert broke, "nothing broke: the clause, or this test, has to go"


def test_a_stopped_rank_holds_up_no_scheduler():
    """Its socket fills, and nobody waits for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    job = Agreed([theirs], answer_s=0.0)
    for used in range(100_000):
        job.usage(used, used)
    assert not job.lost and job.reserve(5) == []
    heard = 0
    while heard < 100_000:
        message = links.receive(ours)
        assert message.number == heard
        heard += 1
        job.expect(1) if heard % 1000 == 0 else job._hear()
    ours.close()


@pytest.mark.parametrize("come,blocks,outcome", [((), 0, None), ((0, 1), 96, "agreed"), ((0,), 96, "rank 1 of 2"), ((0, 1), 95, None)])
def test_an_engine_starts_with_all_of_its_ranks_or_none(come, blocks, outcome, monkeypatch):
    monkeypatch.setattr(links, "door", None)
    monkeypatch.delenv(links.CORE, raising=False)
    assert links.connect() is None and agreed.job(2, 96) is None
    links.open_door(lambda executor: None, object())
    ends = [links.connect() for _ in come]
    for rank, end in zip(come, ends, strict=True):
        Held(end, None, lambda: None).hello(rank, blocks)
    if outcome and outcome != "agreed":
        with pytest.raises(RuntimeError, match=outcome):
            agreed.job(2, 96)
    else:
        job = agreed.job(2, 96)
        assert (job is not None) is (outcome == "agreed")
        if job is not None:
            job.in_flight(3)
            for end in ends:
                message = links.receive(end)
                assert (message.kind, message.number) == (links.FLYING, 3)
    monkeypatch.delenv(links.CORE, raising=False)


@pytest.mark.parametrize("comes,works", [(False, True), (True, False)])
def test_a_rank_that_nobody_can_ask_keeps_a_fixed_reservation(comes, works, monkeypatch):
    """Its core has no door for it, or it has no context to wait for: vLLM allocates as without the plugin."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(abi, "library", object)
    monkeypatch.setattr(versions, "why_not", lambda *asked: None)
    monkeypatch.setattr(links, "connect", lambda: ours if comes else None)
    monkeypatch.setattr(held, "finisher", lambda: (lambda: None) if works else None)
    one = SimpleNamespace(vllm_config=None, parallel_config=SimpleNamespace(world_size=2), rank=0)
    assert worker.initialize(lambda self, kv: (self, kv), one, "kv", "online", "0.24.0") == (one, "kv")
    assert not comes or links.receive(theirs) is None, "its core would wait for it"
