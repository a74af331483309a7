"""Runs a training script, unchanged, in one of the ways that ``scripts.py`` compares.

    stolen.py windows|robbed|plain|plain-robbed SCRIPT [ARGUMENT...]

``windows``       what a process has under the library: its layers are run in units, of a few tokens here
``robbed``        the same, and memory is taken at random instants (``robbed``)
``plain``         its micro-batches are units
``plain-robbed``  the same, and memory is taken

Prints, as the last line, what was done.
"""

from __future__ import annotations

import json
import random
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import robbed
import scripts
from tidegate_engines.finetune import boot, trainer
from tidegate_engines.finetune.held import PlainMemory
from tidegate_engines.finetune.machine import Machine
from tidegate_engines.finetune.plain import Plain
from tidegate_engines.finetune.windows import every

#: Operations of the framework between two thefts, on average: rarely enough for a layer to get through; and for a
#: micro-batch, which has some 1,500 to 2,000.
BETWEEN = {"robbed": 2000, "plain-robbed": 2000}


class Often(robbed.Thief):
    """Takes something again and again, for as long as the script runs."""

    def __init__(self, between: int) -> None:
        super().__init__(random.Random(5), set())
        self._between = between

    def operation(self) -> None:
        if not self._acting and self._rng.randrange(self._between) == 0:
            self._strikes.add(self.operations + 1)
        super().operation()


def main() -> None:
    way, script, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    thief = Often(BETWEEN[way]) if way in BETWEEN else None
    machines: list[Machine | Plain] = []

    def take(model: object) -> None:
        if way.startswith("plain"):
            if trainer.whole_of(model) is None:
                machines.append(Plain(model, thief))
                trainer.by_batches(model, machines[-1])
            return
        machine = trainer.take(model, lambda layers: Machine(layers, thief or PlainMemory(), every(scripts.WINDOW)))
        if machine is not None and machine not in machines:
            machines.append(machine)
            if thief is not None:
                machine.copy_weights()

    boot.listen(take)
    sys.argv = [script, *arguments]
    with robbed.Watching(thief) if thief else nullcontext():
        runpy.run_path(script, run_name="__main__")
    counts = machines[0].counts if len(machines) == 1 else None
    print(
        json.dumps(
            {
                "machines": len(machines),
                "units": counts.units if counts else 0,
                "units_redone": counts.units_redone if counts else 0,
                "reclaims": counts.reclaims if counts else 0,
            }
        )
    )


if __name__ == "__main__":
    main()
