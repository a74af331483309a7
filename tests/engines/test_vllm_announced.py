"""What vLLM's front end accepts shuts the gate before its core has been sent it, and what never comes holds nothing."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import subprocess
import sys
import time

import pytest
from harness import make_request
from test_vllm_arrivals import CASE, core_of, listened, sent, takes_in  # noqa: F401 # a fixture
from test_vllm_online import Elastic, hooks_finished
from tidegate_engines.vllm import accepting, announced, hooks
from tidegate_engines.vllm.hints import Hints
from vllm.renderers.base import BaseRenderer
from vllm.v1.engine.async_llm import AsyncLLM

DEADLINE_S = 20


class Library:
    """What the agent has been told."""

    def __init__(self):
        self.said: list[int] = []

    def call(self, name, count):
        assert name == "tg_requests_in_flight"
        self.said.append(count)


@pytest.fixture
def engine():
    """An idle engine that shares nothing, and what it says."""
    run, library = Elastic(CASE, 95, elastic=False), Library()
    setattr(run.scheduler, hooks.STATE, Hints(run.scheduler, library))
    hooks.listen(type(run.scheduler), hooks.HINTS)
    return run, getattr(run.scheduler, hooks.STATE), library.said


@pytest.fixture
def line(monkeypatch):
    """A pipe of this test alone."""
    monkeypatch.delenv(announced.LINE, raising=False)
    announced.lay()
    pid, *ends, _ = os.environ[announced.LINE].split(":")
    assert int(pid) == os.getpid()
    yield [int(end) for end in ends]
    for end in ends:
        os.close(int(end))


def until(holds):
    """Waits for what another thread does."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def test_a_ring_counts_as_a_request_until_that_comes(engine):
    run, state, said = engine
    rings = announced.Announced(state)
    rings.rang(1.0)
    assert said == [0, 1]
    core = core_of(run.scheduler)
    request, wave = takes_in(core, sent("a"))
    core.add_request(request, wave)
    rings.later(1.0 + announced.BOUND_S)
    assert said == [0, 1], "the same request, and never none"
    run.scheduler.finish_requests(["a"], hooks_finished())
    assert said == [0, 1, 0] and rings.forgotten == 0
    rings.rang(2.0)
    assert said == [0, 1, 0, 1]


def test_a_ring_that_nothing_follows_is_forgotten_and_counted(engine):
    _, state, said = engine
    rings = announced.Announced(state)
    rings.rang(1.0)
    assert rings.wait(1.0) == pytest.approx(announced.BOUND_S * 1e3)
    rings.rang(1.1)  # another is no more time
    rings.later(1.0 + announced.BOUND_S)
    assert said == [0, 1, 0] and rings.forgotten == 1 and rings.wait(2.0) is None


def test_an_engine_at_work_hears_no_ring(engine):
    run, state, said = engine
    rings = announced.Announced(state)
    run.scheduler.add_request(make_request(CASE, "first", [1, 2, 3], 4))
    rings.rang(1.0)
    run.scheduler.finish_requests(["first"], hooks_finished())
    assert said == [0, 1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_rings_for_nothing_holds_the_gate_for_its_budget(seed):
    draw, held, since = random.Random(seed), 0.0, None

    class State:
        announced = False

        def announce(self):
            nonlocal since
            assert not self.announced
            self.announced, since = True, now
            return True

        def unannounce(self):
            nonlocal held
            self.announced = False
            held += now - since

    now, rings = 100.0, announced.Announced(State())
    while now < 400:
        step = draw.choice([0.001, 0.01, 0.3, 3.0])
        now += min(step, announced.BOUND_S / 10 if rings.wait(now) is not None else step)
        rings.later(now)
        rings.rang(now)
    most = announced.BUDGET_S + 300 * announced.REFILL
    assert 0.5 * most < held <= 1.2 * most, (held, most, seed)
    # Later it is heard as ever.
    now += announced.BUDGET_S / announced.REFILL
    rings.later(now)
    rings.rang(now)
    assert rings.state.announced


def test_a_real_front_end_rings_before_anything_else(engine, line, monkeypatch):
    _, state, said = engine
    places = [(BaseRenderer, "render_cmpl_async"), (BaseRenderer, "render_chat_async"), (AsyncLLM, "add_request")]
    for owner, name in places:
        monkeypatch.setattr(owner, name, vars(owner)[name])
    accepting()
    monkeypatch.setattr(announced, "APART_S", 0.0)
    thread = announced.hear(engine[0].scheduler, state)
    assert said == [0]
    for heard, (owner, name) in enumerate(places, 1):
        bare = type("Bare", (owner,), {})
        bare.__abstractmethods__ = frozenset()
        method = getattr(object.__new__(bare), name)
        wanted = [part for part in inspect.signature(method).parameters.values() if part.default is part.empty]
        with pytest.raises(AttributeError):  # a front end without parts: its own code is run, and fails
            asyncio.run(method(*[None for part in wanted if part.kind is not part.VAR_KEYWORD]))
        until(lambda heard=heard: said.count(1) == heard)
        until(lambda: said[-1] == 0)
    assert thread.is_alive()


def test_a_child_hears_its_front_end_and_nobody_elses_file(line, tmp_path):
    code = (
        "import os, sys\n"
        "from tidegate_engines.vllm import announced\n"
        "end = announced._open(0, os.O_RDONLY)\n"
        "print('none' if end is None else 'open', flush=True)\n"
        "if end is not None:\n"
        "    os.set_blocking(end, True)\n"
        "    print(len(os.read(end, 1)), flush=True)\n"
    )

    def child():
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=path)

    hears = child()
    assert hears.stdout.readline() == "open\n"
    announced.Bell().ring()
    assert hears.stdout.readline() == "1\n"
    assert hears.wait(DEADLINE_S) == 0
    pid, read, write, inode = os.environ[announced.LINE].split(":")
    other = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for wrong in (f"{pid}:{other}:{other}:{inode}", f"{pid}:{read}:{write}:1", "1:2", "", f"{pid}:999999:1:{inode}"):
        os.environ[announced.LINE] = wrong
        lost = child()
        assert lost.stdout.readline() == "none\n", wrong
        assert lost.wait(DEADLINE_S) == 0
    os.close(other)


def test_a_ring_never_waits_for_a_core_that_reads_none(line):
    bell = announced.Bell()
    announced_before, announced.APART_S = announced.APART_S, 0.0
    try:
        for _ in range(70_000):  # more than a pipe holds
            bell.ring()
    finally:
        announced.APART_S = announced_before


def test_the_thread_ends_with_its_front_end(engine, monkeypatch):
    _, state, said = engine
    read, write = os.pipe()
    thread_ends = announced.Announced(state)
    os.write(write, b"\0")
    os.close(write)
    thread_ends.listen(read)
    assert said[-1] == 0 and not state.announced
