"""What an engine's plugin says through the library, by the module it uses. argv[1]: the role; "trainer": an offline one
that says what its training does, and waits for a line on standard input after each; "asked", "nobody": only asks the
agent for its role, in a process that makes no context; "second": an engine in a job that has one; "early": an offline one
whose scheduler comes when it reads a line, and goes when all that it lost is back; "again": one whose scheduler is followed by a
second."""

import ctypes
import sys

from tidegate_engines import abi
from tidegate_engines.job import Cut, Region, Training

MIB = 1 << 20
BLOCKS, BLOCK = 32, 2 * MIB

role = sys.argv[1]
library = abi.library()
if role == "none":
    assert library is None
    print("no library")
    sys.exit(0)
assert library is not None
if role == "asked":
    print(library.role(20.0) or "neither")
    sys.exit(0)
if role == "nobody":
    print(library.role(0.05) or "nobody says it")
    sys.exit(0)
trains, early, again = (role == name for name in ("trainer", "early", "again"))
role = "offline" if trains or early or again else role
cuda = ctypes.CDLL("libcuda.so.1")


def ok(code):
    assert code == 0, code


device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
ok(cuda.cuInit(0))
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
ok(cuda.cuCtxSetCurrent(context))

library.attach(0, 1)
library.attach(0, 1)  # a second module of the same process
if role == "second":
    try:
        abi.Offline(library).poll(0)
        print("reads")
    except abi.TidegateError as error:
        print(f"refused: {error.errno}")
    sys.exit(0)
flags = abi.ELASTIC if role == "online" else 0
library.begin_scope(0, flags)
ok(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(BLOCKS * BLOCK)))
library.end_scope()
rows = [Region(base=at.value, stride=BLOCK, block_bytes=BLOCK, first_block=0, blocks=BLOCKS)]
try:
    library.register([Region(0x1000, BLOCK, BLOCK, 0, BLOCKS)], 1, flags)
except abi.TidegateError as error:
    assert error.errno == 22, error
else:
    raise AssertionError("memory of no scope was registered")
kv = library.register(rows, 1, flags)

if early:
    assert sys.stdin.readline() == "read\n"
    job = abi.Offline(library)
    assert job.alone()
    print("reads", flush=True)
    lost: set[int] = set()
    back: set[int] = set()
    step = 0
    while not lost or back != lost:
        job.wait(0.01)
        step += 1
        cut = job.poll(step)
        lost.update(cut.lost)
        back.update(cut.back)
        if cut.lost:
            job.ack_withheld(cut.seq)
elif again:
    first = abi.Offline(library)
    assert first.alone()

    def polls(name, job, steps):
        for step in steps:
            assert not job.poll(step).lost
        print("polled", flush=True)
        assert sys.stdin.readline() == "taken\n"
        cut = job.poll(steps[-1] + 1)
        job.ack_withheld(cut.seq)
        print(f"{name}: {sorted(cut.lost)}", flush=True)

    polls("first", first, range(1, 2000))
    second = abi.Offline(library)
    print("polled", flush=True)
    assert sys.stdin.readline() == "taken\n"
    assert second.alone()
    print(f"second: {sorted(second.poll(1).lost)}", flush=True)
    polls("second", second, range(2, 5))
    try:
        first.poll(2001)
    except abi.TidegateError as error:
        print(f"the first is refused: {error.errno}", flush=True)
    sys.exit(0)
elif role == "offline":
    job = abi.Offline(library)
    assert job.poll(1) == Cut([], [], 0), job.poll(1)
    job.publish(7, 40, [1, 2, 3])
    job.publish(7, 48, [1, 2, 3, 4])
    job.forget(7)
    job.forget(7)
    job.ack_withheld(0)
    library.call("tg_kv_unregister", kv)
    if trains:
        library.progress(30)
        library.progress(12)
        now = Training(step=9, steps=20, begun=4, tokens=42, units=60, layers=3, resident_layers=2, loss=1.25)
        library.trainer(now)
        assert sys.stdin.readline() == "robbed\n"
        now.step, now.tokens, now.units, now.units_redone, now.reclaims, now.loss = 20, 90, 120, 7, 2, 1.0
        library.trainer(now)
        assert sys.stdin.readline() == "saved\n"
        now.adapter = "adapters/support"
        library.trainer(now)
        assert sys.stdin.readline() == "served\n"
        now.served = "http://127.0.0.1:8000 answers as 'support'"
        library.trainer(now)
        assert sys.stdin.readline() == "end\n"
else:
    job = abi.Online(library, kv)
    job.in_flight(1)
    ids: list[int] = []
    for _ in range(500):
        ids += job.reserve(4 - len(ids))
        if len(ids) == 4:
            break
        job.wait(0.02)
    assert sorted(ids) == [1, 2, 3, 4], ids
    job.usage(2, 4)
    job.release([3, 4])
    assert job.reserve(1) == [3]
    job.expect(2)
    job.in_flight(0)
print("ok")
