"""SGLang: the agent hears exactly which requests are in flight, in each event loop, and nothing breaks without a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("sglang")
import sglang_rig

sglang_rig.stand_in()
from sglang.srt.managers import scheduler as module
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.plugins import hook_registry
from sglang.srt.plugins.hook_registry import HookRegistry
from tidegate_engines import abi, word
from tidegate_engines import sglang as plugin
from tidegate_engines.sglang import flight

SEEDS = int(os.environ.get("SEEDS", "30"))
MODES = ("overlap", "normal")

#: Clauses of the plugin without which it is wrong.
CLAUSES = ("waiting", "running", "step", "those that arrive", "only what is unfinished")


@pytest.fixture(scope="module", params=MODES)
def rows(request):
    """What the rig says of one event loop: the plugin whole, and less one clause each time."""
    rig = [sys.executable, str(Path(sglang_rig.__file__)), request.param, str(SEEDS), *CLAUSES]
    done = subprocess.run(
        rig, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=14400
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and len(said) == len(CLAUSES) + 1, done.stderr[-2000:]
    return request.param, {row["clause"]: row for row in said}


def test_the_count_is_exact_at_every_step(rows, record):
    mode, said = rows
    row = said[""]
    record(
        f"SGLang, requests in flight, {mode} loop: {row['requests']} requests, {row['aborted']} aborts, "
        f"{row['retracted']} retractions, {row['steps']} steps, {row['forgotten']} forgotten, {row['inexact']} inexact"
    )
    assert (row["forgotten"], row["inexact"], row["left_over"], row["stuck"]) == (0, 0, 0, 0)
    assert row["requests"] == row["ended"] == 10 * SEEDS
    assert row["aborted"] and row["most"] > 5, "the run is empty"


@pytest.mark.parametrize("clause", CLAUSES)
def test_without_a_clause_it_is_not(rows, clause, record):
    mode, said = rows
    row = said[clause]
    wrong = row["forgotten"] + row["inexact"]
    record(f"without: {clause}. SGLang, {mode} loop: {wrong} wrong words")
    assert wrong, "nothing broke: the clause, or this test, has to go"


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    for level in ("warning", "info"):
        monkeypatch.setattr(plugin.log, level, lambda text, *args: lines.append(text % args))
    return lines


@pytest.fixture
def library(monkeypatch):
    noted = sglang_rig.Library()
    monkeypatch.setattr(abi, "library", lambda: noted)
    return noted


@pytest.fixture
def pristine(monkeypatch):
    """Undoes what hooks do to SGLang's class, and a registry's memory of it."""
    before = dict(vars(Scheduler))
    HookRegistry.reset()
    yield
    HookRegistry.reset()
    for name in vars(Scheduler).keys() - before.keys():
        delattr(Scheduler, name)
    for name, value in before.items():
        if vars(Scheduler).get(name) is not value:
            setattr(Scheduler, name, value)


def names() -> list[str]:
    return [n for n in vars(Scheduler) if n not in ("__dict__", "__weakref__", "__module__", "__doc__")]


def test_register_never_raises_whatever_is_missing(library, said, pristine, monkeypatch, record):
    """One method less of the scheduler each time, then one name less of the modules that are touched."""
    tried = refused = 0
    for name in names():
        said.clear()
        HookRegistry.reset()
        with monkeypatch.context() as patch:
            patch.delattr(Scheduler, name)
            plugin.register()
        gone = not hasattr(object, name) and name in plugin.HOOKS
        assert bool(said) == gone and len(HookRegistry._hooks) == (0 if gone else len(plugin.HOOKS)), (name, said)
        tried += 1
        refused += bool(said)
    for owner, name in (
        (module, "Scheduler"),
        (hook_registry, "HookRegistry"),
        (hook_registry, "HookType"),
        (HookRegistry, "register"),
    ):
        said.clear()
        with monkeypatch.context() as patch:
            patch.delattr(owner, name)
            plugin.register()
        assert len(said) == 1 and "does not hear of this engine's requests" in said[0], (name, said)
        tried, refused = tried + 1, refused + 1
    said.clear()
    with monkeypatch.context() as patch:
        patch.setattr(hook_registry, "HookType", SimpleNamespace())
        plugin.register()
    assert len(said) == 1 and "AROUND" in said[0]
    record(f"register() with one part of SGLang less: {tried} times, 0 raised, {refused} refused by name")
    assert tried > 80 and refused >= 6


def test_a_process_without_a_scheduler_loads_nothing_for_it(library, said, pristine, monkeypatch):
    monkeypatch.delitem(sys.modules, plugin.MODULE)
    plugin.register()
    assert not HookRegistry._hooks and not said and plugin.MODULE not in sys.modules


def test_without_the_library_nothing_is_hooked(said, pristine, monkeypatch):
    monkeypatch.setattr(abi, "library", lambda: None)
    plugin.register()
    assert not HookRegistry._hooks and not said


class Request:
    def __init__(self) -> None:
        self.ended = False

    def finished(self) -> bool:
        return self.ended


def engine(**changes):
    """The parts of a scheduler that a count looks at."""
    running = SimpleNamespace(reqs=[Request(), Request()])
    parts = {"waiting_queue": [Request()], "running_batch": running, "last_batch": running, **changes}
    return SimpleNamespace(**parts)


@pytest.mark.parametrize("role,heard", [("online", True), ("offline", False), ("other", False)])
def test_only_an_online_engine_says_it(role, heard, library, said, monkeypatch):
    monkeypatch.setenv("TIDEGATE_ROLE", role)
    scheduler = engine()
    plugin._made(lambda self: None, scheduler)
    assert library.said == (3 if heard else None)
    assert any("TIDEGATE_ROLE is 'other'" in line for line in said) == (role == "other")


def test_the_agents_rule_gives_the_role_where_the_environment_does_not(library, said, monkeypatch):
    monkeypatch.delenv("TIDEGATE_ROLE", raising=False)
    plugin._made(lambda self: None, engine())
    assert library.said == 3


@pytest.mark.parametrize("part", ["waiting_queue", "running_batch", "last_batch"])
def test_a_part_that_vanishes_takes_back_what_was_said_and_no_step(part, library, said, monkeypatch):
    monkeypatch.setenv("TIDEGATE_ROLE", "online")
    scheduler = engine()
    plugin._made(lambda self: None, scheduler)
    delattr(scheduler, part)
    said.clear()
    for _ in range(3):
        assert plugin._processed(lambda self, batch: "done", scheduler, None) == "done"
        assert plugin._arriving(lambda self, come: "done", scheduler, []) == "done"
    assert library.said == 0 and len(said) == 1 and part in said[0]


@pytest.mark.parametrize("owner,name", flight.QUEUES)
def test_a_request_in_a_queue_of_another_kind_of_engine_counts_once(owner, name):
    request = Request()
    queue = [SimpleNamespace(req=request), request]
    scheduler = engine(**{owner: SimpleNamespace(**{name: queue}) if name else queue})
    assert flight.count(scheduler) == 4
    request.ended = True
    assert flight.count(scheduler) == 3


def test_messages_that_are_no_requests_are_not_counted():
    one = SimpleNamespace(input_ids=[1])
    assert flight.arriving([one, SimpleNamespace(batch=[one, one]), SimpleNamespace(rid="x"), ModuleType("x")]) == 3


def test_a_word_is_said_once_until_it_changes():
    library = sglang_rig.Library()
    mouth = word.Word(library, plugin.log)
    for count in (2, 2, 3, 3, 0):
        mouth.say(lambda: count)
    assert (library.calls, library.said) == (3, 0)
