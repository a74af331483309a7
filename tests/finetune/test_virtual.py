"""The virtual GPU as a trainer's device, under the real library and agent."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import node
import pytest

#: A trainer's process that does one thing again and again, and withholds what is taken.
TRAINER = """
import sys
from tidegate_engines import abi
from tidegate_engines.finetune.pieces import BLOCK
from tidegate_engines.finetune.virtual import Device
from tidegate_engines.job import Region

what, blocks = sys.argv[1], int(sys.argv[2])
library, device = abi.library(), Device()
library.attach(0, 1)
library.begin_scope(BLOCK, 0)
base = device.allocate(blocks * BLOCK)
library.end_scope()
library.register([Region(base, BLOCK, BLOCK, 0, blocks)], 0, 0)
job, page, step = abi.Offline(library), bytearray(BLOCK), 0
at = abi.ctypes.addressof(abi.ctypes.c_char.from_buffer(page))
print("ready", flush=True)
while True:
    if what == "computes":
        device.spin(50_000_000)
        device.wait()
    elif what == "reads":
        device.read(at, base + step % blocks * BLOCK, BLOCK)
    else:
        device.write(base + step % blocks * BLOCK, at, BLOCK)
    step += 1
    cut = job.poll(step)
    if cut.lost:
        job.ack_withheld(cut.seq)
"""
#: Blocks that it has, and that online wants of the 32 each time.
BLOCKS, WANTED = 12, 20
TIMES = 8
DEADLINE_S = 120.0


def status(here: node.Node) -> dict:
    return json.loads(here.tidegate("status", "--output", "json").stdout)


def until(holds):
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.005)


# P-TRAINER-8: whatever a trainer is at, nothing keeps its memory from online. A thread that waited inside a call which
# may hold the driver's locks would: its channels are disabled, and it gets out when they are enabled, which is not
# before online has given up.
@pytest.mark.parametrize("what", ["computes", "reads", "writes"])
def test_memory_can_be_taken_whatever_it_waits_for(what):
    with node.Node() as here:
        online = here.online(1)
        command = [sys.executable, "-c", TRAINER, what, str(BLOCKS)]
        environment = here.environment("offline", f"virtual-{what}")
        trainer = here._start(command, stdout=subprocess.PIPE, env=environment)
        assert trainer.stdout.readline() == "ready\n"
        for _ in range(TIMES):
            until(lambda: [job["memory"]["stripes_taken"] for job in status(here)["jobs"]] == [0])
            online.ask("flight 1")
            held = 0

            def filled():
                nonlocal held
                held += int(online.ask(f"reserve {WANTED - held}").split()[0])
                return held == WANTED

            until(filled)
            online.ask(f"use {held}")
            online.ask("flight 0")
            online.ask("use 0")
            online.ask(f"release {held}")
        said = status(here)
        [job] = said["jobs"]
        assert job["memory"]["reclaims"] >= TIMES
        # Requests that nobody works on any more, as they wait for memory.
        [doubted] = [counter["value"] for counter in said["counters"] if counter["name"] == "requests_doubted"]
        assert doubted == 0, (here.folder / "agent.log").read_text()[-3000:]


#: A training whose tensors lie in the device's memory themselves: what ``cuda`` does on a real GPU, with the host's
#: arithmetic on the virtual one's pages. The host is not stopped by a gate, so it computes only when it is told to.
LIES_THERE = """
import ctypes, hashlib, sys
from dataclasses import replace

import torch

torch.set_num_threads(1)
import cases
from test_arena import large
from tidegate_engines.finetune import trainer, virtual


class Device(virtual.Device):
    def __init__(self, where):
        super().__init__()

    def view(self, at, size):
        return torch.frombuffer((ctypes.c_ubyte * size).from_address(at), dtype=torch.uint8)

    def unit(self, unit, tokens):
        self.spin(10_000)
        self.wait()


trainer.cuda.Device = Device
case = large(1)
model = cases.model(case)
machine = trainer.take(model)
print("ready" if machine else "refused", flush=True)
for index, _ in enumerate(sys.stdin):
    model(**cases.batch(replace(case, seed=index))).loss.backward()
    grads = b"".join(p.grad.numpy().tobytes() for p in model.parameters() if p.grad is not None)
    counts = machine.counts
    print(counts.reclaims, counts.units_redone, machine.memory.blocks_lost, hashlib.sha256(grads).hexdigest(), flush=True)
"""


def lies_there(here, job, robbed):
    """What a training has after each of TIMES micro-batches; robbed, most of its blocks are taken before every second."""
    online = here.online(1) if robbed else None
    environment = here.environment("offline", job)
    environment |= {"TIDEGATE_FINETUNE_DEVICE": "cuda", "TIDEGATE_FINETUNE_MEMORY": str(2 * LYING)}
    environment["PYTHONPATH"] = ":".join([str(node.ROOT / "tests/finetune"), environment["PYTHONPATH"]])
    command = [sys.executable, "-c", LIES_THERE]
    trainer = here._start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert trainer.stdout.readline() == "ready\n"
    found = []

    def whole():
        memory = [known["memory"] for known in status(here)["jobs"] if known["name"] == job]
        return [(m["stripes"], m["stripes_taken"]) for m in memory if m] == [(LYING, 0)]

    until(whole)
    for turn in range(TIMES):
        held, wanted = 0, LACKING if online is not None and turn % 2 == 0 else 0
        if wanted:
            online.ask("flight 1")
            while held < wanted:
                held += int(online.ask(f"reserve {wanted - held}").split()[0])
            online.ask("flight 0")
        trainer.stdin.write("on\n")
        trainer.stdin.flush()
        found.append(trainer.stdout.readline().split())
        if wanted:
            online.ask(f"release {held}")
            until(whole)
    trainer.kill()
    return found


#: Blocks of such a training, of which it needs 7, and 3 for a layer; and those of 32 that online wants, beside a headroom
#: of 2.
LYING, LACKING = 10, 26


# P-TRAINER-8: the library's own addresses in a row, taken and given back by the agent, change no byte.
def test_what_tensors_lie_in_can_be_taken():
    with node.Node() as here:
        calm = lies_there(here, "calm", False)
        robbed = lies_there(here, "lies-there", True)
    assert [line[:3] for line in calm] == [["0", "0", "0"]] * TIMES
    assert [line[3] for line in robbed] == [line[3] for line in calm]
    reclaims, redone, lost, _ = robbed[-1]
    assert int(reclaims) >= TIMES // 2 and int(redone) > 0 and int(lost) >= TIMES // 2 * (LYING + LACKING - 30)
