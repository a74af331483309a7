"""A vLLM's worker whose cache of 32 blocks of 2 MiB the plugin allocates and registers: `engine_worker.py CASE [taken]`.

The case is where its scheduler is or what is wrong: "core" (in this process), "apart" (in another, which no link leads
to), "forked" (in the process that this one is forked from), "shape" (the blocks of its layers cannot be told). With
"taken" the rest of the device is others' before the cache is allocated. Prints what became of the cache, and how many of
its blocks do not hold what was written to them."""

import ctypes
import logging
import os
import sys
import types

BLOCKS, BLOCK = 32, 2 << 20
case, taken = sys.argv[1], "taken" in sys.argv
logging.basicConfig(format="%(message)s")


def module(name, **parts):
    made = types.ModuleType(name)
    made.__path__ = []
    made.__dict__.update(parts)
    sys.modules[name] = made


def ok(code):
    assert code == 0, code


for name in "vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.worker", "vllm.v1.worker.gpu":
    module(name)
module("vllm.v1.core.kv_cache_utils", FreeKVCacheBlockQueue=type("FreeKVCacheBlockQueue", (), {}))

from tidegate_engines import abi  # noqa: E402
from tidegate_engines import vllm as plugin  # noqa: E402
from tidegate_engines.vllm import links, versions, worker  # noqa: E402

if case in ("core", "shape", "forked"):
    plugin.begun(lambda core: None, None)
if case == "forked" and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

cuda = ctypes.CDLL("libcuda.so.1")
device, context, base = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
ok(cuda.cuInit(0))
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
ok(cuda.cuCtxSetCurrent(context))


def allocate():
    ok(cuda.cuMemAlloc_v2(ctypes.byref(base), ctypes.c_size_t(BLOCKS * BLOCK)))


def fill():
    """Takes what is left of the device."""
    at, size = ctypes.c_uint64(), 1 << 32
    while size >= 1 << 20:
        if cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)):
            size //= 2


class Layer:
    """The tensor of a layer: one item a block."""

    shape = (BLOCKS,)

    def data_ptr(self):
        return base.value

    def stride(self):
        return (1,)

    def element_size(self):
        return BLOCK


def initialize(engine, kv):
    sys.modules["vllm.v1.worker.gpu.attn_utils"].allocate_kv_cache()
    if taken:
        fill()
    return "done"


module("torch", cuda=types.SimpleNamespace(empty_cache=lambda: None))
module("vllm.v1.worker.gpu.attn_utils", allocate_kv_cache=allocate)
versions.why_not = lambda *said: None

names = types.SimpleNamespace
config = names(compilation_config=names(static_forward_context={"layer": names(kv_cache=Layer())}))
group = names(layer_names=["layer"], backend=names())
runner = names(vllm_config=config, attn_groups=[[group]], cache_config=None)
engine = names(vllm_config=config, parallel_config=names(world_size=1), rank=0, model_runner=runner)
kv = names(num_blocks=BLOCKS + 1 if case == "shape" else BLOCKS)

try:
    assert worker.initialize(initialize, engine, kv, "online", "0") == "done"
except RuntimeError as error:
    print(f"ends: {error}")
    sys.exit(0)
if worker.grows:
    usable = abi.Online(abi.library(), worker.registered).reserve(4)
    print(f"grows, {len(usable)} of it are reserved")
    sys.exit(0)
assert worker.registered is None and links.connect() is None
wrong = 0
for block in range(BLOCKS):
    ok(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(base.value + block * BLOCK), ctypes.byref(ctypes.c_uint64(block + 1)), ctypes.c_size_t(8)))
for block in range(BLOCKS):
    found = ctypes.c_uint64()
    ok(cuda.cuMemcpyDtoH_v2(ctypes.byref(found), ctypes.c_uint64(base.value + block * BLOCK), ctypes.c_size_t(8)))
    wrong += found.value != block + 1
print(f"fixed, {wrong} blocks are wrong")
