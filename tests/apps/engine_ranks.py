"""An online engine of two ranks, each a process with a GPU and a cache of its own: what its scheduler's process grows and
gives back by `tidegate_engines.vllm.agreed`. argv: "core SEED ROUNDS"; a fourth "growing" or "leaving", and a fifth, the
rank: that one is killed in the middle of it. "rank N" is what it starts, and "other N": another online program beside a
rank, whose memory comes and goes, so that the ranks never have the same.

In each round it reserves, has both ranks compute a step in some of the blocks, and gives some back at once, in any order.
A step stores a word in each block and folds them, by kernels that wait a while before they touch anything: what comes out
is compared with what it should be. Standard output has, for who judges by the device's history, a line for each rank
("rank PID BASE BYTES OF A BLOCK"), and one for each step ("step N BLOCK BLOCK ..."). It ends with "ok" and what was done."""

import ctypes
import os
import pickle
import random
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from tidegate_engines import abi
from tidegate_engines.job import Region
from tidegate_engines.vllm import agreed, held, links

MIB, MASK = 1 << 20, (1 << 64) - 1
BLOCKS, BLOCK = 33, 2 * MIB
LENGTH = struct.Struct("<I")


class Output:
    """A step, as the executor sends it to every rank."""

    def __init__(self, blocks, number, wait_ns):
        self.blocks, self.number, self.wait_ns = blocks, number, wait_ns

    def truth(self):
        folded = self.number
        for at in range(len(self.blocks)):
            folded = mix(folded, mix(self.number, at))
        return folded


def mix(a, b):
    x = (a ^ b) * 0x9E3779B97F4A7C15 & MASK
    return x ^ (x >> 29)


def ok(code):
    assert code == 0, code


class Memory:
    """An elastic cache on a GPU."""

    def __init__(self, device):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        ok(self.cuda.cuInit(0))
        ok(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        ok(self.cuda.cuCtxSetCurrent(context))

    def register(self, rank, world):
        at = ctypes.c_uint64()
        self.library = abi.library()
        self.library.attach(rank, world)
        self.library.begin_scope(0, abi.ELASTIC)
        ok(self.cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(BLOCKS * BLOCK)))
        self.library.end_scope()
        self.base = at.value
        return self.library.register([Region(self.base, BLOCK, BLOCK, 0, BLOCKS)], 1, abi.ELASTIC)


class Other(Memory):
    """It takes and gives back at random, until its standard input ends."""

    def __init__(self, device):
        super().__init__(device)
        job, draw, ids = abi.Online(abi.library(), self.register(0, 1)), random.Random(device), []
        while not select.select([sys.stdin], [], [], draw.uniform(0, 0.1))[0]:
            want = draw.randrange(24)
            if want > len(ids):
                ids += job.reserve(want - len(ids))
            else:
                job.release(ids[want:])
                del ids[want:]
            job.usage(len(ids), 0)


class Rank(Memory):
    """A worker: it launches a step, and has its result when the next one begins."""

    def __init__(self, number):
        super().__init__(number)
        module = ctypes.c_void_p()
        header = (Path(__file__).parent / "kv.h").read_text(encoding="utf-8")
        text = "".join(re.findall(r'"(.*?)"', header.split("KV_PTX[] =", 1)[1].split(";\n\nstruct", 1)[0]))
        ok(self.cuda.cuModuleLoadData(ctypes.byref(module), text.replace("\\n", "\n").encode()))
        self.store, self.token, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        ok(self.cuda.cuModuleGetFunction(ctypes.byref(self.store), module, b"tg_kv_store"))
        ok(self.cuda.cuModuleGetFunction(ctypes.byref(self.token), module, b"tg_kv_token"))
        ok(self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1))
        self.table, self.out = ctypes.c_uint64(), ctypes.c_uint64()
        ok(self.cuda.cuMemAlloc_v2(ctypes.byref(self.table), ctypes.c_size_t(8 * BLOCKS)))
        ok(self.cuda.cuMemAlloc_v2(ctypes.byref(self.out), ctypes.c_size_t(8)))
        kv = self.register(number, 2)
        held.begin(self.library, links.connect(), kv, number, BLOCKS, held.finisher())
        self.under_way = False

    def launch(self, kernel, *arguments):
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        ok(self.cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, pointers, None))

    def compute(self, step):
        table = (ctypes.c_uint64 * BLOCKS)(*(self.base + block * BLOCK + 64 for block in step.blocks))
        ok(self.cuda.cuMemcpyHtoD_v2(self.table, table, ctypes.c_size_t(8 * BLOCKS)))
        count = len(step.blocks)
        self.launch(self.store, self.table.value, count, step.number, step.wait_ns)
        self.launch(self.token, self.table.value, count, step.number, self.out.value, step.wait_ns)
        self.under_way = True
        held.rank.computed(step)

    def finish(self):
        """What the step under way folded, once it has ended."""
        if not self.under_way:
            return None
        self.under_way = False
        folded = ctypes.c_uint64()
        ok(self.cuda.cuStreamSynchronize(self.stream))
        ok(self.cuda.cuMemcpyDtoH_v2(ctypes.byref(folded), self.out, ctypes.c_size_t(8)))
        return folded.value

    def serve(self, said, says):
        while head := said.read(LENGTH.size):
            step = pickle.loads(said.read(LENGTH.unpack(head)[0]))
            folded = self.finish()
            if folded is not None:
                says.write(f"{folded}\n")
                says.flush()
            if step is not None:
                self.compute(step)


class Core:
    """The scheduler's process, and the pipes to its ranks."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        links.open_door(lambda executor: None, None)
        command = [sys.executable, __file__, "rank"]
        self.ranks = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for n in (0, 1)]
        for rank in self.ranks:
            print("rank", rank.pid, rank.stdout.readline().decode().strip(), BLOCK)
        self.job = agreed.job(2, BLOCKS)
        assert self.job is not None, "no rank came"
        self.command, self.other = command[:-1], None
        self.held, self.steps, self.awaited = [], 0, [[], []]
        self.most = self.returned = 0

    def disturb(self):
        """Another program comes to the GPU of one rank."""
        command, job = [*self.command, "other", str(self.draw.randrange(2))], os.environ["TIDEGATE_JOB"] + "-other"
        self.other = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "TIDEGATE_JOB": job})

    def grow(self, want, seconds):
        end = time.monotonic() + seconds
        while len(self.held) < want and time.monotonic() < end and not self.job.lost:
            self.held += self.job.reserve(want - len(self.held))
            if len(self.held) < want:
                self.job.wait(0.01)
        self.most = max(self.most, len(self.held))

    def step(self, blocks):
        """Has both ranks compute a step; neither is waited for."""
        self.steps += 1
        step = Output(blocks, self.steps, self.draw.choice((200_000, 2_000_000, 60_000_000)))
        self.job.scheduled(step)
        print("step", self.steps, *blocks)
        for rank, awaited in zip(self.ranks, self.awaited):
            awaited.append(step.truth())
            self.send(rank, step)

    def send(self, rank, step):
        data = pickle.dumps(step)
        try:
            rank.stdin.write(LENGTH.pack(len(data)) + data)
            rank.stdin.flush()
        except BrokenPipeError:
            assert rank.poll() is not None or rank.wait(10) is not None

    def end(self, number):
        """All that a rank was sent came out right."""
        rank = self.ranks[number]
        self.send(rank, None)
        for truth in self.awaited[number]:
            said = int(rank.stdout.readline())
            assert said == truth, f"rank {number} folded {said}, not {truth}"

    def give(self, count):
        blocks = self.draw.sample(self.held, count)
        self.held = [block for block in self.held if block not in blocks]
        self.job.release(blocks)
        self.returned += len(blocks)


def core(seed, rounds, dies=None, dead=None):
    here = Core(seed)
    here.job.in_flight(1)
    for round_ in range(rounds):
        last = round_ == rounds - 1
        # The first to want all has each rank find memory for it.
        want = BLOCKS - 1 if round_ == 0 else here.draw.randint(1, BLOCKS - 1)
        if last and dies == "growing":
            here.give(len(here.held) // 2)
            here.job._ask(BLOCKS - 1 - len(here.held))
        elif round_ == 0 or want > len(here.held):
            here.grow(want, 20.0 if round_ == 0 else 0.05)
            assert round_ or len(here.held) == want, f"{len(here.held)} of {want} blocks were granted"
        if round_ == 0:
            here.disturb()
        here.job.usage(len(here.held), 0)
        if here.held:
            here.step(here.draw.sample(here.held, here.draw.randint(1, len(here.held))))
        if here.held and here.draw.random() < 0.6 or last:
            here.give(len(here.held) // 2 if last else here.draw.randint(1, len(here.held)))
        here.job.usage(len(here.held), 0)
        if last and dies is not None:
            here.ranks[dead].send_signal(signal.SIGKILL)
        elif here.draw.random() < 0.3:
            time.sleep(here.draw.uniform(0, 0.3))  # the agent takes what is not reserved
    if dies is None:
        here.end(0)
        here.end(1)
        here.give(len(here.held))
        end = time.monotonic() + 20
        while here.job.leaving and time.monotonic() < end:
            here.job.wait(0.01)
        assert not here.job.leaving, "blocks were not left"
    else:
        had = set(here.held)
        here.grow(BLOCKS - 1, 5.0)
        assert here.job.lost, "nobody noticed"
        granted = here.job.reserve(1)
        assert granted == [] and here.ranks[dead].wait() == -signal.SIGKILL
        if had:
            here.step(sorted(had))
        here.end(1 - dead)
    here.job.in_flight(0)
    here.other.stdin.close()
    assert here.other.wait(20) == 0
    print("ok", here.steps, "steps", here.most, "blocks at most", here.returned, "given back")


if sys.argv[1] == "other":
    Other(int(sys.argv[2]))
elif sys.argv[1] == "rank":
    own = Rank(int(sys.argv[2]))
    says = os.fdopen(os.dup(1), "w")
    print(own.base, flush=True)
    own.serve(sys.stdin.buffer, says)
else:
    core(int(sys.argv[2]), int(sys.argv[3]), *(sys.argv[4:5]), *(int(rank) for rank in sys.argv[5:6]))
