"""The agent of the rigs: what it takes and gives back, and how it says so."""

from __future__ import annotations

from offline_agent import Agent
from tidegate_engines.job import Cut


class Memory:
    """A memory that notes what is done to it."""

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def take(self, blocks):
        self.lost.update(blocks)

    def give(self, blocks):
        self.lost.difference_update(blocks)


def test_a_block_comes_back_only_when_its_loss_is_acknowledged():
    agent = Agent(memory := Memory())
    agent.take([3, 4])
    agent.ack_withheld(agent.poll(1).seq)
    agent.take([5])
    agent.give([3, 4, 5, 6])
    assert memory.lost == {5} and agent.back == 2
    assert agent.poll(2) == Cut([5], [3, 4], 5)


def test_a_block_that_is_lost_again_in_the_same_cut_is_not_back():
    agent = Agent(Memory())
    agent.take([3])
    agent.ack_withheld(agent.poll(1).seq)
    agent.give([3])
    agent.take([3])
    assert agent.poll(2) == Cut([3], [], 3)


def test_the_protected_block_and_what_is_gone_are_not_taken():
    agent = Agent(memory := Memory())
    agent.take([0, 3])
    agent.take([0, 3])
    assert memory.lost == {3} and agent.log == [("lost", 3)] and agent.reclaims == 1
