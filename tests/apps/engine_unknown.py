"""A vLLM that the plugin does not know: `engine_unknown.py CASE`. Prints what its log says.

Whatever is missing in it, `register` must return: vLLM calls it while it starts, and would end with it.
Case "ruled" is taken for a known one, and prints in which role the plugin shares its memory.
"""
import logging
import sys
import types


def module(name, **parts):
    made = types.ModuleType(name)
    made.__path__ = []
    made.__dict__.update(parts)
    sys.modules[name] = made


class Elsewhere:
    """A class of the engine without the methods that the hooks stand around."""


class Worker:
    """One with the method that allocates the cache."""

    def initialize_from_config(self, kv):
        print("allocates")


case = sys.argv[1]
module("vllm", __version__="9.9.9")
if case == "ruled":
    module("torch")
    for name in "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.worker":
        module(name)
    module("vllm.v1.core.block_pool", BlockPool=Elsewhere)
    module("vllm.v1.core.kv_cache_manager", KVCacheManager=Elsewhere)
    module("vllm.v1.core.sched.scheduler", Scheduler=type("Scheduler", (), {"__init__": lambda self: None}))
    module("vllm.v1.worker.gpu_worker", Worker=Worker)
    module("vllm.v1.core.kv_cache_utils", FreeKVCacheBlockQueue=Elsewhere)
if case == "renamed":
    # Every module is there, and nothing in them is what it was.
    for name in "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.worker":
        module(name)
    module("vllm.v1.core.block_pool", BlockPool=Elsewhere)
    module("vllm.v1.core.kv_cache_manager", KVCacheManager=Elsewhere)
    module("vllm.v1.core.sched.scheduler", Scheduler=Elsewhere)
    module("vllm.v1.worker.gpu_worker", Worker=Elsewhere)
    module("vllm.v1.core.kv_cache_utils", FreeKVCacheBlockQueue=Elsewhere)

# As vLLM sets it up: its own loggers are shown, the root's level is that of warnings.
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
logging.getLogger("vllm").addHandler(handler)
logging.getLogger("vllm").setLevel(logging.INFO)

from tidegate_engines.vllm import register  # noqa: E402

if case == "ruled":
    from tidegate_engines import vllm as plugin
    from tidegate_engines.vllm import hooks, shape, worker

    shape.why_not = lambda version: None
    shape.known = lambda: "9.9.9"
    hooks.install = lambda *classes: None
    worker.initialize = lambda original, engine, kv, role, version: print("shares as", role)
    plugin.watch = lambda scheduler, role, version: print("schedules as", role)
register()
if case == "ruled":
    Worker().initialize_from_config(None)
    sys.modules["vllm.v1.core.sched.scheduler"].Scheduler()
print("vLLM starts")
