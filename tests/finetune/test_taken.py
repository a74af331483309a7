"""Held state in memory that is taken: over an agent and a device that are played here."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace

import cases
import pytest
import robbed
import torch
from tidegate_engines.finetune.held import Held, Kind
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.seam import attach
from tidegate_engines.finetune.pieces import BLOCK, TooSmall
from tidegate_engines.finetune.taken import TakenMemory
from tidegate_engines.job import Cut


class Played:
    """A device, and the agent that takes its blocks at any copy and gives them back when they have been withheld."""

    def __init__(self, blocks: int, rng: random.Random, share: float) -> None:
        self.memory = ctypes.create_string_buffer(blocks * BLOCK)
        self.base = ctypes.addressof(self.memory)
        self.blocks, self.rng, self.share = blocks, rng, share
        #: Blocks that never come back.
        self.kept: set[int] = set()
        #: Blocks that are gone, and what a block's page must not be used for until it was acknowledged.
        self.gone: set[int] = set()
        self.acknowledged: set[int] = set()
        self.said: list[list[int]] = []
        self.lost: list[int] = []
        self.costs: dict[int, tuple[int, list[int]]] = {}
        self.taken = 0
        #: Times in a row that nothing was there, and how often that may be.
        self.waits, self.patience = 0, 10_000
        #: Layers whose weights were there, before each unit.
        self.residents: list[int] = []

    # The device.

    def here(self) -> None: ...

    def wait(self) -> None: ...

    def _touch(self, at: int) -> int:
        if self.rng.random() < self.share:
            self.take(self.rng.sample(range(self.blocks), self.rng.randint(1, 3)))
        return (at - self.base) // BLOCK

    def take(self, blocks: list[int]) -> None:
        for block in set(blocks) - self.gone:
            self.gone.add(block)
            self.lost.append(block)
            self.taken += 1
            ctypes.memset(self.base + block * BLOCK, 0x3C, BLOCK)

    def keep(self, blocks: int) -> None:
        """Takes so many for good."""
        self.kept = set(range(blocks))
        self.take(list(self.kept))

    def read(self, to: int, at: int, size: int) -> None:
        self._touch(at)
        ctypes.memmove(to, at, size)

    def write(self, at: int, of: int, size: int) -> None:
        if self._touch(at) not in self.gone:
            ctypes.memmove(at, of, size)

    # The agent.

    def poll(self, step: int) -> Cut:
        told, self.lost = self.lost, []
        self.said.append(told)
        back = [b for b in sorted(self.acknowledged - self.kept) if self.rng.random() < 0.2]
        self.waits = 0 if back else self.waits
        self.gone -= set(back)
        self.acknowledged -= set(back)
        return Cut(told, back, len(self.said))

    def ack_withheld(self, seq: int) -> None:
        for told in self.said[:seq]:
            self.acknowledged |= set(told) & self.gone
        self.said[:seq] = [[] for _ in self.said[:seq]]

    def publish(self, request: int, tokens: int, blocks: list[int]) -> None:
        self.costs[request] = (tokens, list(blocks))

    def forget(self, request: int) -> None:
        del self.costs[request]

    def wait_for_log(self, timeout_s: float) -> None:
        self.waits += 1
        assert self.waits < self.patience, "it stands still"


class Job:
    """The agent's half of it."""

    def __init__(self, played: Played) -> None:
        self.poll, self.ack_withheld = played.poll, played.ack_withheld
        self.publish, self.forget, self.wait = played.publish, played.forget, played.wait_for_log


def train(
    case: cases.Case, blocks: int, share: float, kind: type[Machine] = Machine, kept: int = 0
) -> tuple[dict[str, bytes], Played, Machine, TakenMemory]:
    """Three micro-batches; what they leave. So many blocks are taken in the first one and ``kept``."""
    model = cases.model(case)
    played = Played(blocks, random.Random(case.seed), share)
    memory = TakenMemory(played, Job(played), played.base, blocks)
    words = {"forward": lambda _: list(case.forward), "backward": lambda _: list(case.backward)}
    seen = played.residents.append
    units = iter(range(1 << 30))

    def before_unit(_):
        if next(units) == 5:
            played.keep(kept)
        seen(memory.resident())

    words["before_unit"] = before_unit
    machine = attach(model, lambda layers: kind(layers, memory, **words))
    machine.copy_weights()
    torch.manual_seed(3)
    for index in range(3):
        model(**cases.batch(replace(case, seed=case.seed + index))).loss.backward()
    grads = {n: p.grad.numpy().tobytes() for n, p in model.named_parameters() if p.grad is not None}
    return grads, played, machine, memory


# P-TRAINER-8: what is taken changes no byte.
@pytest.mark.parametrize("seed", range(4))
def test_blocks_taken_at_any_copy_change_no_byte(seed):
    case = replace(robbed.drawn(seed), layers=3)
    calm, _, still, _ = train(case, 24, 0.0)
    grads, played, machine, memory = train(case, 24, 0.02)
    assert still.counts.reclaims == still.counts.units_redone == 0
    assert machine.counts.reclaims > 0 < played.taken
    assert memory.blocks_lost == played.taken - len(played.lost)
    assert grads == calm


@pytest.mark.parametrize("kind", [robbed.NoPoll, robbed.PollBefore, robbed.CommitPerWindow])
def test_without_a_clause_of_the_machine_they_do(kind):
    def wrong(seed):
        case = replace(robbed.drawn(seed), layers=3)
        return train(case, 24, 0.02, kind)[0] != train(case, 24, 0.0)[0]

    assert any(wrong(seed) for seed in range(8))


def test_with_less_memory_fewer_layers_are_resident():
    case = replace(robbed.drawn(1), layers=4)
    calm, whole, *_ = train(case, 40, 0.0)
    # 4 weights, 3 X, 4 K and 4 V want 15 blocks: with 13 two layers' weights have to go, in turn.
    grads, played, machine, _ = train(case, 13, 0.0)
    assert set(whole.residents) == {4}
    assert min(played.residents) == 2
    assert machine.counts.reclaims > 0
    assert grads == calm


def test_a_memory_that_cannot_hold_a_layer_says_so():
    case = replace(robbed.drawn(1), layers=4)
    with pytest.raises(TooSmall, match=r"2 MiB for layer \d's .* are wanted.*a larger share"):
        train(case, 4, 0.0)


@pytest.fixture
def gone_here_too(monkeypatch):
    """What leaves to make room is gone on the host too."""
    release = TakenMemory._give

    def gone(self, piece):
        self._images[piece.number].fill_(0x3C)
        release(self, piece)

    monkeypatch.setattr(TakenMemory, "_give", gone)


# P-TRAINER-11: a trainer does not wait while one layer's state fits.
def test_it_trains_in_what_one_layers_state_takes(gone_here_too):
    case = replace(robbed.drawn(1), layers=4)
    calm, *_ = train(case, 40, 0.0)
    # A layer wants its weights, its input, keys and values and the input of the next: 5 of the 15 blocks of all.
    grads, _, machine, _ = train(case, 5, 0.0)
    assert grads == calm
    assert machine.counts.units_redone > 0


@pytest.mark.parametrize(("kept", "share"), [(15, 0.0), (8, 0.01)])
def test_it_does_not_wait_for_what_online_keeps_while_one_layers_state_fits(kept, share, gone_here_too):
    case = replace(robbed.drawn(1), layers=4)
    calm, *_ = train(case, 40, 0.0)
    grads, played, machine, _ = train(case, 20, share, kept=kept)
    assert grads == calm
    assert machine.counts.units_redone > 0 < played.taken


def test_weights_are_published_as_cheaper_than_what_takes_a_forward_to_make():
    played = Played(4, random.Random(0), 0.0)
    memory = TakenMemory(played, Job(played), played.base, 4)
    memory.adopt(Held(0, Kind.WEIGHTS), [torch.ones(8)])
    memory.place(Held(0, Kind.KEYS, 1), (2, 4, 30, 8), torch.ones(1))
    memory.place(Held(1, Kind.INPUT, 1), (2, 30, 16), torch.ones(1))
    weights, keys, inputs = (cost for cost, _ in played.costs.values())
    assert weights < keys == inputs
    memory.drop(Held(0, Kind.KEYS, 1))
    assert len(played.costs) == 2


def test_a_block_that_nobody_holds_is_withheld_until_it_is_back():
    played = Played(3, random.Random(0), 0.0)
    memory = TakenMemory(played, Job(played), played.base, 3)
    played.take([0, 1])
    assert memory.poll() == set()
    memory.place(Held(0, Kind.KEYS, 1), (1, 4, 4), torch.ones(1))
    [(_, blocks)] = played.costs.values()
    assert blocks == [2]


def test_what_is_back_is_acknowledged_too():
    # It takes room in the log until then, and without room nothing can be taken.
    played = Played(3, random.Random(0), 0.0)
    job = Job(played)
    memory = TakenMemory(played, job, played.base, 3)
    seen = []
    job.poll, job.ack_withheld = lambda step: Cut([], [2] if step == 1 else [], step), seen.append
    memory.poll()
    memory.poll()
    assert seen == [1]
