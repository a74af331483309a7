"""Several trainings in one process, one after the other, as a sweep has them."""

from __future__ import annotations

import subprocess
import sys

import node
from test_virtual import status, until

#: Each line asks for a training: it says whether it is in units, and what it left, and is over.
SWEEP = """
import gc, hashlib, sys
from dataclasses import replace

import torch

torch.set_num_threads(1)
import cases
from tidegate_engines.finetune import trainer

case = replace(cases.draw("llama", 5, "float32"), layers=3, length=18, padding="none", batch=1)
kept = None
for number, line in enumerate(sys.stdin):
    model = cases.model(case)
    machine = trainer.take(model)
    steps = int(line.split()[0])
    for index in range(steps):
        model(**cases.batch(replace(case, seed=index))).loss.backward()
    grads = b"".join(p.grad.numpy().tobytes() for p in model.parameters() if p.grad is not None)
    lost = machine.memory.blocks_lost if machine else -1
    print(int(machine is not None), lost, hashlib.sha256(grads).hexdigest(), flush=True)
    sys.stdin.readline()
    if "keep" in line:
        kept = model, machine
    del model, machine
    # Nobody collects here: the next training does.
"""
#: MiB of each training.
MEMORY = 24


class Sweep:
    """Trainings in a process of a node."""

    def __init__(self, here: node.Node, job: str) -> None:
        environment = here.environment("offline", job)
        environment |= {"TIDEGATE_FINETUNE_DEVICE": "virtual", "TIDEGATE_FINETUNE_MEMORY": str(MEMORY)}
        environment["PYTHONPATH"] = ":".join([str(node.ROOT / "tests/finetune"), environment["PYTHONPATH"]])
        self.log = here.folder / f"{job}.log"
        with self.log.open("w") as log:
            command = [sys.executable, "-c", SWEEP]
            self._process = here._start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )

    def begin(self, what: str) -> list[str]:
        print(what, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        return line.split()

    def end(self) -> None:
        print(file=self._process.stdin, flush=True)


def memory(here: node.Node) -> dict:
    [job] = status(here)["jobs"]
    return job["memory"]


# P-TRAINER-8: each training of a process is shared like the first, and leaves nothing behind.
def test_each_training_of_a_sweep_is_shared_and_leaves_no_memory():
    with node.Node() as here:
        sweep = Sweep(here, "sweep")
        found = []
        for _ in range(4):
            found.append(sweep.begin("6"))
            until(lambda: memory(here)["stripes"] == MEMORY >> 1 and memory(here)["reclaimable"])
            sweep.end()
        assert {tuple(line) for line in found} == {("1", "0", found[0][2])}
        assert "Stale" not in sweep.log.read_text()


def test_a_training_beside_one_that_is_still_held_says_why_it_is_not_shared():
    with node.Node() as here:
        sweep = Sweep(here, "beside")
        first = sweep.begin("2 keep")
        sweep.end()
        second = sweep.begin("2")
        assert (first[0], second[0]) == ("1", "0")
        assert "memory of another training in this process is still in use" in sweep.log.read_text()
