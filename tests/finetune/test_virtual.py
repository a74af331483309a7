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
from tidegate_engines.finetune.taken import BLOCK
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
