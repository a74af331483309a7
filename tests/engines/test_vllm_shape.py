"""A vLLM that no test has seen: known by its shape, refused by what differs, and never broken."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm
from harness import Case, Scheduler, make_request, make_scheduler
from tidegate_engines import abi
from tidegate_engines import vllm as plugin
from tidegate_engines.vllm import hooks, shape, versions, worker
from tidegate_engines.vllm.hints import Hints
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import RequestStatus
from vllm.v1.worker.gpu_worker import Worker

CLASSES = (Scheduler, AsyncScheduler, KVCacheManager, BlockPool, Worker)


@contextlib.contextmanager
def pristine():
    """Whatever is done to vLLM's classes meanwhile is undone."""
    before = [(owner, dict(vars(owner))) for owner in CLASSES]
    try:
        yield
    finally:
        for owner, names in before:
            for name in vars(owner).keys() - names.keys():
                delattr(owner, name)
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
        shape.found.cache_clear()


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    for log in (plugin.log, worker.log):
        for level in ("warning", "info"):
            monkeypatch.setattr(log, level, lambda text, *args: lines.append(text % args))
    return lines


@pytest.fixture
def library(monkeypatch):
    told: list[int] = []
    noted = SimpleNamespace(
        told=told,
        attach=lambda rank, world: None,
        call=lambda name, *args, **_: told.append(args[0]) if name == "tg_requests_in_flight" else 0,
    )
    monkeypatch.setattr(abi, "library", lambda: noted)
    monkeypatch.setattr(worker, "registered", None)
    return noted


def edited(monkeypatch, tmp_path: Path, module: str, old: str, new: str) -> None:
    """Has a module's source be another one for whoever looks for it."""
    origin = Path(importlib.util.find_spec(module).origin)
    text = origin.read_text()
    assert text.count(old) >= 1, "this version has no such line"
    copy = tmp_path / origin.name
    copy.write_text(text.replace(old, new, 1))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        shape.importlib.util,
        "find_spec",
        lambda name: SimpleNamespace(origin=str(copy)) if name == module else find(name),
    )
    shape.found.cache_clear()


SCHEDULER = "vllm.v1.core.sched.scheduler"


@pytest.mark.parametrize("version", ["0.99.0", "0.33.0+cu129", "0.33.1rc2", "unknown"])
def test_a_version_of_another_name_is_taken_for_the_one_whose_shape_it_has(version):
    shape.found.cache_clear()
    assert shape.why_not(version) is None and shape.known() in shape.tested()


def test_each_version_that_is_taken_has_a_line_of_results_with_nothing_wrong():
    lines = [line.strip("| ") for line in Path(__file__).with_name("MATRIX.md").read_text().splitlines()]
    rows = {cells[0]: cells for cells in (line.split(" | ") for line in lines) if cells[0][:1].isdigit()}
    # The one that is being run has its line when it has passed.
    for version in set(shape.tested()) - {shape.known(), vllm.__version__}:
        _, _, runs, conditions, _, reclaims, wrong, lost, clauses, _, tests = rows[version]
        assert (wrong, lost) == ("0", "0") and tests.endswith(", 0"), version
        assert int(runs) >= 30 and int(conditions) >= 50 and int(reclaims) > 0, version
        broke, _, of = clauses.partition(" of ")
        assert broke == of != "0", version


def test_what_says_nothing_about_what_code_does_does_not_count(monkeypatch, tmp_path):
    method = "    def _preempt_request("
    edited(monkeypatch, tmp_path, SCHEDULER, method, f"    # A comment.\n\n{method}")
    assert shape.why_not("0.99.0") is None


@pytest.mark.parametrize(
    "old,new,words",
    [
        (
            "request.num_preemptions += 1",
            "request.num_preemptions += 2",
            "Scheduler._preempt_request has another source",
        ),
        ("def _preempt_request(\n", "def _preempt(\n", "Scheduler._preempt_request is missing"),
        ("def _preempt_request(self,", "def _preempt_request(self, why,", "takes other arguments"),
        ("self.prev_step_scheduled_req_ids: set", "self.last_step: set", "prev_step_scheduled_req_ids"),
    ],
)
def test_another_shape_is_refused_by_what_differs(old, new, words, monkeypatch, tmp_path):
    text = Path(importlib.util.find_spec(SCHEDULER).origin).read_text()
    if old not in text:  # the line is broken differently in some versions
        long = "def _preempt_request(\n        self,"
        old, new = {
            "def _preempt_request(\n": ("def _preempt_request(self", "def _preempt(self"),
            "def _preempt_request(self,": (long, f"{long} why,"),
        }[old]
    edited(monkeypatch, tmp_path, SCHEDULER, old, new)
    if words == "prev_step_scheduled_req_ids":
        copy = tmp_path / "scheduler.py"
        copy.write_text(copy.read_text().replace("self.prev_step_scheduled_req_ids = ", "self.last_step = "))
    why = shape.why_not("0.99.0")
    assert why is not None and words in why and "vLLM 0.99.0 was not tested" in why, why


def test_a_method_that_is_gone_at_run_time_is_missed(monkeypatch):
    with pristine():
        del Scheduler._preempt_request
        shape.found.cache_clear()
        assert "Scheduler._preempt_request is missing" in (shape.why_not("0.99.0") or "")


def test_register_never_raises_whatever_is_missing(monkeypatch, library, said, record):
    """One attribute, method or name of a module less each time, in both roles; and the engine is as it would be."""
    tried = refused = 0
    monkeypatch.setattr(shape, "here", _quick(shape.here()))
    for owner in CLASSES:
        for name in [n for n in vars(owner) if n not in ("__dict__", "__weakref__", "__module__", "__doc__")]:
            for role in ("offline", "online"):
                with pristine():
                    try:
                        delattr(owner, name)
                    except (AttributeError, TypeError):
                        continue
                    monkeypatch.setenv("TIDEGATE_ROLE", role)
                    said.clear()
                    plugin.register()
                    tried += 1
                    refused += any("shares no KV memory" in line for line in said)
    for module, names in shape.TOUCHED.items():
        for name in {name.split(".")[0].split(":")[0] for name in names}:
            loaded = sys.modules.get(module)
            if loaded is None or not hasattr(loaded, name):
                continue
            with pristine(), monkeypatch.context() as patch:
                patch.delattr(loaded, name)
                plugin.register()
                tried += 1
                refused += any("shares no KV memory" in line for line in said)
    record(f"register() with one part of vLLM less: {tried} times, 0 raised, {refused} refused by name")
    assert tried > 200 and refused >= 2 * len(versions.SCHEDULER)


def _quick(known: dict[str, str]):
    """``shape.here`` without reading the sources again, which are the same."""

    def here():
        parts = {}
        for module, names in shape.TOUCHED.items():
            for name in names:
                part = f"{module}.{name}"
                parts[part] = known[part] if shape._there(module, name) else shape.MISSING
        return parts

    return here


@pytest.mark.parametrize("way", ["another shape", "a reason", "another scheduler"])
def test_a_refused_online_engine_still_says_whether_requests_are_in_flight(
    way, monkeypatch, library, said
):
    case = Case(0)
    monkeypatch.setenv("TIDEGATE_ROLE", "online")
    with pristine():
        if way == "another shape":
            monkeypatch.setattr(shape, "found", _never)
        if way == "a reason":
            monkeypatch.setattr(versions, "why_not", lambda *args: "pipeline parallelism is on")
        plugin.register()
        if way == "another scheduler":
            kind = type("Own", (Scheduler,), {"schedule": lambda self: None})
            monkeypatch.setattr(sys.modules["harness"], "Scheduler", kind)
        scheduler = make_scheduler(case, 48, refused=True)
        if way == "another scheduler":
            assert any("Own has a schedule of its own" in line for line in said), said
        assert type(getattr(scheduler, hooks.STATE)) is Hints
        assert library.told == [0] * len(library.told)
        library.told.clear()
        for i in range(2):
            scheduler.add_request(make_request(case, str(i), list(range(9)), 3, float(i)))
        if way != "another scheduler":
            scheduler.schedule()
        for i in range(2):
            scheduler.finish_requests(str(i), RequestStatus.FINISHED_ABORTED)
        assert library.told == [1, 2, 1, 0]


def _never():
    return None, "unlike in 0.33.0, Scheduler.schedule is missing"


_never.cache_clear = lambda: None


def test_an_engine_whose_scheduler_has_no_requests_says_nothing_and_goes_on(library, said):
    hints = Hints(SimpleNamespace(), library)
    hints.settled()
    assert library.told == []


class Silent(Scheduler):
    def schedule(self, *args, **kwargs):
        return None


class Loud(Scheduler):
    def schedule(self, *args, **kwargs):
        return super().schedule(*args, **kwargs)


class Deep(AsyncScheduler):
    def update_from_output(self, *args, **kwargs):
        return [Scheduler.update_from_output(self, *args, **kwargs) for _ in range(1)][0]


class Preempting(Scheduler):
    def _preempt_request(self, *args, **kwargs):
        return super()._preempt_request(*args, **kwargs)


class Keeping(Scheduler):
    def _preempt_request(self, request, timestamp):
        self.waiting.prepend_request(request)


@pytest.mark.parametrize(
    "scheduler,words",
    [
        (Scheduler, None),
        (AsyncScheduler, None),
        (Loud, None),
        (Deep, None),
        (Preempting, None),
        (Keeping, "Keeping has a _preempt_request of its own that does not call vLLM's"),
        (Silent, "Silent has a schedule of its own that does not call vLLM's"),
        (type("Under", (Silent,), {}), "Under has a schedule of its own"),
        (SimpleNamespace, "is not made from vLLM's"),
        (type("Diffusion", (Scheduler,), {"__module__": "vllm.v1.core.sched.other"}), "was not tested"),
    ],
)
def test_a_scheduler_that_would_not_be_heard_is_refused_by_its_name(scheduler, words):
    why = versions.bypass(scheduler)
    assert why is None if words is None else words in (why or ""), why


def test_a_users_preemption_does_not_hide_which_version_it_goes_over():
    assert type(versions.engine(Preempting)) is type(versions.engine(Scheduler))


def test_the_workers_of_an_engine_with_such_a_scheduler_take_nothing_either():
    scheduler = make_scheduler(Case(0), 48)
    config = scheduler.vllm_config
    config.scheduler_config.scheduler_cls = Silent
    try:
        why = versions.why_not(vllm.__version__, config, scheduler.kv_cache_config)
    finally:
        config.scheduler_config.scheduler_cls = None
    assert "Silent has a schedule" in (why or "")


class MambaSpec:
    """Of a kind that was not tested, with what is asked of any."""

    block_size = 4


@pytest.mark.parametrize(
    "windows,role,words",
    [
        ((None, 9), "offline", None),
        ((9, None, 9), "offline", None),
        ((None, 9), "online", "how many blocks an online one needs of each"),
        ((9, 9), "offline", "only full attention with sliding windows was tested"),
        ((None, MambaSpec()), "offline", "FullAttentionSpec, MambaSpec"),
        ((9,), "offline", "its KV cache is a SlidingWindowSpec"),
    ],
)
def test_groups_of_layers_are_shared_where_a_loss_in_one_is_understood(windows, role, words):
    kv = make_scheduler(Case(0, windows=(None, 9), blocks=110), 110).kv_cache_config
    full, sliding = (group.kv_cache_spec for group in kv.kv_cache_groups)
    specs = [full if window is None else sliding if window == 9 else window for window in windows]
    grouped = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])
    why = versions.why_not_grouped(grouped, role)
    assert why is None if words is None else words in (why or ""), why


def test_groups_with_blocks_of_several_sizes_are_refused():
    kv = make_scheduler(Case(0, windows=(None, 9), blocks=110), 110).kv_cache_config
    specs = [group.kv_cache_spec for group in kv.kv_cache_groups]
    long = SimpleNamespace(kv_cache_spec=dataclasses.replace(specs[1], block_size=8))
    mixed = SimpleNamespace(kv_cache_groups=[kv.kv_cache_groups[0], long])
    assert "with blocks of 4, 8 tokens" in (versions.why_not_grouped(mixed, "offline") or "")


def test_layers_of_several_groups_in_the_same_memory_are_taken_once():
    """As vLLM lays them out: a layer of each group has the same tensor."""
    memory = [torch.zeros(2, 6, 4, 1, 8) for _ in range(2)]
    layers = {f"{group} {at}": SimpleNamespace(kv_cache=memory[at]) for group in ("full", "window") for at in (0, 1)}
    backend = SimpleNamespace(get_kv_cache_block_dim=lambda *shape, cache_dtype_str: 1)
    spec = SimpleNamespace(block_size=4, num_kv_heads=1, head_size=8)
    groups = [
        [SimpleNamespace(layer_names=[f"{group} 0", f"{group} 1"], backend=backend, kv_cache_spec=spec)]
        for group in ("full", "window")
    ]
    context = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    cache = SimpleNamespace(cache_dtype="auto")
    runner = SimpleNamespace(vllm_config=context, attn_groups=groups, cache_config=cache)
    found = worker.layer_regions(runner, SimpleNamespace(num_blocks=6))
    begins = [tensor.data_ptr() + 4 * part * tensor.stride(0) for tensor in memory for part in (0, 1)]
    assert [region.base for region in found] == begins
    assert {(region.stride, region.block_bytes, region.blocks) for region in found} == {(128, 128, 6)}
