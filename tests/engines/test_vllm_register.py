"""What vLLM calls when it loads its plugins, with a library that notes what it is told."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest
import torch
import vllm
from harness import Case, make_scheduler
from tidegate_engines import abi
from tidegate_engines import vllm as plugin
from tidegate_engines.job import Cut
from tidegate_engines.vllm import hooks, links, shape, withheld, worker
from tidegate_engines.vllm.grown import GrownBlocks
from tidegate_engines.vllm.lost import LostBlocks
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu_worker import Worker


class Noted:
    """The library's functions; what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list = []
        self.given = "online"
        self.full = False

    def attach(self, rank, world):
        self.calls.append(f"attach {rank} of {world}")

    def begin_scope(self, handle_bytes, flags):
        self.calls.append(f"scope {flags} of {handle_bytes >> 20} MiB")

    def end_scope(self):
        self.calls.append("end")

    def register(self, regions, protected, flags):
        self.calls.append(f"register {flags}")
        self.rows, self.protected = list(regions), protected
        return 7

    def call(self, name, *arguments, allowed=()):
        return 0

    def role(self, wait_s):
        return self.given

    def back_unclaimed(self):
        self.calls.append("back all")
        if self.full:
            raise abi.TidegateError("tg_kv_whole", 12)


@pytest.fixture
def library(monkeypatch):
    noted = Noted()
    monkeypatch.setattr(abi, "library", lambda: noted)
    monkeypatch.setattr(abi.Offline, "poll", lambda self, step: Cut())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: noted.calls.append("empty"))
    monkeypatch.setattr(worker, "registered", None)
    monkeypatch.setattr(worker, "grows", False)
    monkeypatch.setattr(worker, "_stride", None)
    monkeypatch.setattr(links, "_core", 0)
    links.begin_core()
    return noted


def engine(blocks=5, layers=2, world=1):
    """A worker whose runner allocates as the real one does, on the CPU."""
    scheduler = make_scheduler(Case(0), blocks)
    config = scheduler.vllm_config
    config.compilation_config.static_forward_context = {}
    runner = SimpleNamespace(
        vllm_config=config,
        cache_config=config.cache_config,
        attn_groups=[
            [
                SimpleNamespace(
                    backend=SimpleNamespace(),
                    layer_names=[f"l{i}" for i in range(layers)],
                    kv_cache_spec=scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec,
                )
            ]
        ],
    )
    real = SimpleNamespace(
        vllm_config=config,
        parallel_config=SimpleNamespace(world_size=world),
        rank=0,
        model_runner=runner,
    )
    return real, scheduler.kv_cache_config


def initialize(real, kv):
    """What vLLM's worker does: other memory, then the cache, then it is bound to the layers."""
    module = worker.sys.modules["vllm.v1.worker.gpu.attn_utils"]
    name = "allocate_kv_cache" if hasattr(module, "allocate_kv_cache") else "_allocate_kv_cache"
    context = real.vllm_config.compilation_config.static_forward_context
    for layer, tensor in getattr(module, name)().items():
        context[layer] = SimpleNamespace(kv_cache=tensor)
    return "done"


@pytest.fixture
def allocator(monkeypatch, library):
    import vllm.v1.worker.gpu.attn_utils as module

    def allocate(*args, **kwargs):
        library.calls.append("allocate")
        memory = torch.zeros(2, 5, 16, dtype=torch.int8)
        return {"l0": memory[0], "l1": memory[1]}

    name = "allocate_kv_cache" if hasattr(module, "allocate_kv_cache") else "_allocate_kv_cache"
    monkeypatch.setattr(module, name, allocate)
    return allocate


@pytest.mark.parametrize("handle,mib", [("", 2), ("8MiB", 8), ("64 MiB", 64), ("3MiB", 2), ("128MiB", 2), ("0MiB", 2), ("8", 2)])
@pytest.mark.parametrize("role,flags", [("offline", 0), ("online", abi.ELASTIC)])
def test_only_the_cache_is_allocated_in_a_scope_and_then_registered(
    role, flags, handle, mib, library, allocator, monkeypatch
):
    said: list[str] = []
    monkeypatch.setenv("TIDEGATE_KV_HANDLE", handle)
    monkeypatch.setattr(worker.log, "warning", lambda text, *words: said.append(text % words))
    real, kv = engine()
    assert worker.initialize(initialize, real, kv, role, vllm.__version__) == "done"
    assert library.calls == [
        "attach 0 of 1",
        "empty",
        f"scope {flags} of {mib} MiB",
        "allocate",
        "end",
        f"register {flags}",
    ]
    assert worker.registered == 7 and library.protected == 1
    assert [(r.stride, r.block_bytes, r.blocks) for r in library.rows] == [(16, 16, 5)] * 2
    assert library.rows[1].base - library.rows[0].base == 5 * 16
    assert worker.stripe_run(kv) == (mib << 20) // 16
    assert bool(said) == (handle not in ("", "8MiB", "64 MiB")), said
    assert all(repr(handle) in line and "64MiB" in line for line in said)


#: A group of layers that keep a state, and no tokens.
RECURRENT = SimpleNamespace(kv_cache_spec=type("MambaSpec", (), {"block_size": 16})(), layer_names=["layers.9"])


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda real, kv: None, "was not tested"),
        (lambda real, kv: kv.kv_cache_groups.append(RECURRENT), "several groups"),
        (
            lambda real, kv: setattr(
                real.vllm_config.parallel_config, "pipeline_parallel_size", 2
            ),
            "pipeline",
        ),
        (
            lambda real, kv: setattr(real.vllm_config.model_config, "enable_sleep_mode", True),
            "sleep mode",
        ),
        (
            lambda real, kv: setattr(real.vllm_config, "kv_transfer_config", object()),
            "KV connector",
        ),
    ],
)
def test_an_engine_that_is_not_understood_is_told_so_and_left_alone(
    change, words, library, allocator, monkeypatch
):
    said = []
    monkeypatch.setattr(worker.log, "warning", lambda text, *args: said.append(text % args))
    real, kv = engine()
    if words == "was not tested":
        monkeypatch.setattr(shape, "found", lambda: (None, "unlike in 0.33.0, a part is missing"))
    with monkeypatch.context() as patch:
        # What a case changes in a shared configuration is undone.
        for owner in (real.vllm_config, real.vllm_config.parallel_config,
                      real.vllm_config.model_config):
            for name in ("pipeline_parallel_size", "enable_sleep_mode", "kv_transfer_config"):
                if hasattr(owner, name):
                    patch.setattr(owner, name, getattr(owner, name))
        change(real, kv)
        assert worker.initialize(initialize, real, kv, "offline", vllm.__version__) == "done"
    assert library.calls == ["allocate"] and worker.registered is None
    assert len(said) == 1 and words in said[0]


def test_a_cache_whose_blocks_cannot_be_told_has_all_of_its_memory_and_the_engine_goes_on(library, allocator, monkeypatch):
    said = []
    monkeypatch.setattr(worker.log, "warning", lambda text, *args: said.append(text % args))
    real, kv = engine(blocks=4)
    assert worker.initialize(initialize, real, kv, "online", vllm.__version__) == "done"
    assert library.calls[-1] == "back all" and worker.registered is None and not worker.grows
    assert len(said) == 1 and "5 blocks of a kernel do not make 4" in said[0]


def test_a_cache_that_has_no_memory_ends_the_engine(library, allocator):
    real, kv = engine(blocks=4)
    library.full = True
    with pytest.raises(RuntimeError, match="has no memory"):
        worker.initialize(initialize, real, kv, "online", vllm.__version__)
    worker.initialize(initialize, real, kv, "offline", vllm.__version__)
    assert library.calls[-1] == "end", "an offline cache begins with all of its memory"


@pytest.mark.parametrize("given,here,words", [("", True, "no agent makes it online"), ("offline", True, "no agent"),
                                              ("online", False, "no scheduler is in this process")])
def test_a_cache_grows_only_where_its_agent_and_its_scheduler_know(given, here, words, library, allocator, monkeypatch):
    said = []
    monkeypatch.setattr(worker.log, "warning", lambda text, *args: said.append(text % args))
    library.given = given
    if not here:
        monkeypatch.setattr(links, "_core", 1)
    real, kv = engine()
    worker.initialize(initialize, real, kv, "online", vllm.__version__)
    assert library.calls == ["allocate"] and worker.registered is None
    assert len(said) == 1 and words in said[0]


def test_what_became_of_an_engine_counts_for_none_after_it_in_the_process(library, allocator, monkeypatch):
    real, kv = engine()
    worker.initialize(initialize, real, kv, "online", vllm.__version__)
    assert worker.registered == 7 and worker.grows
    library.given = ""
    worker.initialize(initialize, real, kv, "online", vllm.__version__)
    assert worker.registered is None and not worker.grows, "the next scheduler would reserve of the first one's cache"
    plugin.listens(object())


def test_ranks_that_came_to_an_engine_count_for_none_after_it_in_the_process(monkeypatch):
    monkeypatch.setattr(links, "door", links.Door())
    monkeypatch.setenv(links.CORE, links.door.address)
    links.door.greeted = True
    with pytest.raises(RuntimeError, match="asks for nothing"):
        plugin.listens(object())
    links.open_door(lambda executor: None, None)
    plugin.listens(object())


def test_an_engine_whose_scheduler_asks_for_nothing_ends(library, monkeypatch):
    plugin.listens(object())
    monkeypatch.setattr(worker, "grows", True)
    with pytest.raises(RuntimeError, match="asks for nothing"):
        plugin.listens(object())


def test_an_online_engine_of_several_ranks_keeps_a_fixed_reservation(library, allocator):
    real, kv = engine(world=2)
    worker.initialize(initialize, real, kv, "online", vllm.__version__)
    assert library.calls == ["allocate"] and worker.registered is None


@pytest.mark.parametrize("role,kind", [("offline", LostBlocks), ("online", GrownBlocks)])
def test_a_scheduler_made_after_registering_has_its_state(role, kind, library, monkeypatch):
    monkeypatch.setenv("TIDEGATE_ROLE", role)
    monkeypatch.setattr(worker, "registered", 7)
    monkeypatch.setattr(worker, "_stride", 256 << 10)
    monkeypatch.setattr(hooks, "start_looking", lambda state: None)
    for owner, name in ((Scheduler, "__init__"), (Worker, "initialize_from_config")):
        monkeypatch.setattr(owner, name, owner.__dict__[name])  # put back afterwards
    plugin.register()
    plugin.register()  # vLLM loads plugins more than once
    scheduler = make_scheduler(Case(0), 48)
    assert type(getattr(scheduler, hooks.STATE)) is kind
    queue = scheduler.kv_cache_manager.block_pool.free_block_queue
    assert getattr(queue, "run", None) == (8 if role == "offline" else None)


def test_without_a_role_or_a_library_nothing_happens(monkeypatch):
    monkeypatch.setattr(abi, "library", lambda: None)
    monkeypatch.setenv("TIDEGATE_ROLE", "offline")
    plugin.register()
    assert not hasattr(make_scheduler(Case(0), 48), hooks.STATE)


def test_the_thread_of_an_idle_engine_hears_of_losses_and_ends():
    from harness import Rig

    rig = Rig(Case(4))
    rig.agent.take([3, 4])
    stop = hooks.start_looking(rig.state)
    deadline = 40
    while rig.agent.acked == 0 and deadline:
        stop.wait(0.1)
        deadline -= 1
    assert rig.agent.acked == 2 and rig.state.withheld == {3, 4}
    stop.set()


def test_the_thread_of_an_idle_engine_ends_with_the_engine(monkeypatch):
    from harness import Rig

    monkeypatch.setattr(withheld, "IDLE_S", 0.01)
    before = set(threading.enumerate())
    rig = Rig(Case(4))
    hooks.start_looking(rig.state)
    (looks,) = set(threading.enumerate()) - before
    del rig
    gc.collect()
    looks.join(20)
    assert not looks.is_alive(), "it holds on to a scheduler that nobody has any more"
