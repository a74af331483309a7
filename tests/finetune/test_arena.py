"""Held state where tensors lie themselves, over an agent that takes its blocks in the middle of units.

Memory is played here by the host's, and addresses in a row are found by this file's own books.
"""

from __future__ import annotations

import ctypes
import math
import random
from dataclasses import replace

import cases
import pytest
import robbed
import torch
from test_taken import Job, Played
from tidegate_engines.finetune.arena import ArenaMemory
from tidegate_engines.finetune.held import Held, Kind
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.pieces import BLOCK, TooSmall
from tidegate_engines.finetune.seam import attach

#: What small pieces are a multiple of.
GRAIN = 2048


class Ground(Played):
    """Blocks that are taken between any two operations of the framework."""

    def __init__(self, blocks: int, rng: random.Random, between: int) -> None:
        super().__init__(blocks, rng, 0.0)
        self.between = between
        self.acting = False
        #: What is in use, by where it begins.
        self.used: dict[int, int] = {}
        #: Blocks that poll has named and that are not back.
        self.told: set[int] = set()

    # Addresses in a row.

    def place(self, size: int) -> int | None:
        # Nothing of several blocks shares one.
        step = GRAIN if size <= BLOCK else BLOCK
        size = -(-size // step) * step
        for at in range(0, self.blocks * BLOCK - size + 1, step):
            if size <= BLOCK and at // BLOCK != (at + size - 1) // BLOCK:
                continue
            if not self.told.isdisjoint(self.under(at, size)):
                continue
            if all(at + size <= other or other + long <= at for other, long in self.used.items()):
                self.used[at] = size
                return self.base + at
        return None

    @staticmethod
    def under(at: int, size: int) -> range:
        return range(at // BLOCK, -(-(at + size) // BLOCK))

    # The framework.

    def view(self, at: int, size: int) -> torch.Tensor:
        return torch.frombuffer(self.memory, dtype=torch.uint8, offset=at - self.base, count=size)

    def operation(self) -> None:
        if self.acting:
            return
        self.acting = True
        if self.between and self.rng.randrange(self.between) == 0:
            self.take(self.rng.sample(range(self.blocks), self.rng.randint(1, 3)))
        for block in self.gone:
            # Finite, and wrong.
            ctypes.memset(self.base + block * BLOCK, 0x3C, BLOCK)
        self.acting = False

    # The agent.

    def poll(self, step: int):
        cut = super().poll(step)
        self.told = (self.told | set(cut.lost)) - set(cut.back)
        return cut


class Places:
    """The library's half of it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def take(self, size: int) -> int | None:
        return self.ground.place(size)

    def give(self, at: int) -> None:
        del self.ground.used[at - self.ground.base]

    def blocks(self, at: int) -> list[int]:
        begin = at - self.ground.base
        return list(self.ground.under(begin, self.ground.used[begin]))




def train(case: cases.Case, blocks: int, between: int, kind: type[Machine] = Machine, kept: int = 0):
    """Three micro-batches; what they leave."""
    model = cases.model(case)
    ground = Ground(blocks, random.Random(case.seed), between)
    memory = ArenaMemory(ground, Places(ground), Job(ground), blocks)
    units = iter(range(1 << 30))

    def before_unit(_):
        if next(units) == 5:
            ground.keep(kept)
        ground.residents.append(memory.resident())

    words = {"forward": lambda _: list(case.forward), "backward": lambda _: list(case.backward)}
    machine = attach(model, lambda layers: kind(layers, memory, before_unit=before_unit, **words))
    machine.copy_weights()
    torch.manual_seed(3)
    with robbed.Watching(ground):
        for index in range(3):
            model(**cases.batch(replace(case, seed=case.seed + index))).loss.backward()
    grads = {n: p.grad.numpy().tobytes() for n, p in model.named_parameters() if p.grad is not None}
    return grads, ground, machine, memory


def large(seed: int, layers: int = 3) -> cases.Case:
    """A case whose weights are of several blocks, beside pieces that share one."""
    return replace(robbed.drawn(seed), layers=layers, heads=16, kv_heads=4, head_dim=16)


# P-TRAINER-8: what is taken changes no byte, also where tensors lie in the memory themselves.
@pytest.mark.parametrize("seed", range(4))
def test_blocks_taken_between_any_two_operations_change_no_byte(seed):
    case = large(seed)
    calm, _, still, _ = train(case, 40, 0)
    grads, ground, machine, memory = train(case, 40, 1500)
    assert still.counts.reclaims == still.counts.units_redone == 0
    assert machine.counts.reclaims > 0 < ground.taken
    assert memory.blocks_lost == ground.taken - len(ground.lost)
    assert grads == calm


@pytest.mark.parametrize(
    "kind", [robbed.NoPoll, robbed.PollBefore, robbed.CommitPerWindow, robbed.WeightsNotLoaded, robbed.InputNotMade]
)
def test_without_a_clause_of_the_machine_they_do(kind):
    def wrong(seed):
        try:
            return train(large(seed), 40, 1500, kind)[0] != train(large(seed), 40, 0)[0]
        except (AssertionError, KeyError, RuntimeError):
            return True

    assert any(wrong(seed) for seed in range(8))


# P-TRAINER-11: a trainer does not wait while one layer's state fits.
@pytest.mark.parametrize(("kept", "between"), [(0, 0), (12, 0), (12, 1500)])
def test_with_less_memory_fewer_layers_are_resident(kept, between):
    case = large(1, layers=4)
    calm, whole, _, memory = train(case, 60, 0)
    weights = max(len(piece.blocks) for name, piece in memory._pieces.items() if name.kind is Kind.WEIGHTS)
    assert weights > 1
    # Three of four layers' weights, and a block that all of a sample's small pieces share.
    blocks = 3 * weights + 1 + kept
    grads, ground, machine, _ = train(case, blocks, between, kept=kept)
    assert set(whole.residents) == {4}
    assert min(ground.residents) < 4
    assert machine.counts.reclaims > 0
    assert grads == calm


def test_a_memory_that_cannot_hold_a_layer_says_so():
    with pytest.raises(TooSmall, match=r"MiB for layer 0's weights are wanted.*a larger share"):
        train(large(1), 1, 0)


def test_a_piece_without_a_place_reads_as_nothing_and_comes_back_where_there_is_room():
    ground = Ground(4, random.Random(0), 0)
    memory = ArenaMemory(ground, Places(ground), Job(ground), 4)
    weight = torch.nn.Parameter(torch.ones(3, 1 << 19), requires_grad=False)
    name, other = Held(0, Kind.WEIGHTS), Held(1, Kind.INPUT, 1)
    memory.adopt(name, [weight])
    assert weight.shape == (3, 1 << 19) and bool((weight == 1).all())
    assert weight.data_ptr() == ground.base
    memory.needs({other})
    # Three blocks of four each: the weight has to leave.
    placed = memory.place(other, (3, 1, 1 << 19), torch.ones(1))
    assert memory.poll() == {name}
    assert weight.shape == (3, 1 << 19) and all(map(math.isnan, weight[:, 0].tolist()))
    memory.drop(other)
    memory.again(name)
    assert weight.data_ptr() == ground.base and memory.poll() == set()
    assert placed.isnan().all()


def test_small_pieces_of_one_block_are_lost_together():
    ground = Ground(2, random.Random(0), 0)
    memory = ArenaMemory(ground, Places(ground), Job(ground), 2)
    keys, values = Held(0, Kind.KEYS, 1), Held(0, Kind.VALUES, 1)
    for name in (keys, values):
        memory.place(name, (1, 4, 4), torch.ones(1))
    assert [blocks for _, blocks in ground.costs.values()] == [[0], [0]]
    ground.take([0])
    assert memory.poll() == {keys, values}
    memory.again(keys)
    assert list(ground.costs.values())[-1][1] == [1]
    memory.drop(values)
    memory.drop(keys)
    assert not ground.used and not ground.costs
