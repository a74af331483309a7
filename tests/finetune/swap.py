"""Frozen layers that leave the GPU for online's cache and come back: HARLI's load (arXiv 2511.11729, Fig. 13).

    scripts/finetune swap [--seed N] [--json FILE]

An online program has 8 requests, then 42, then 24, two of which share a block of 2 MiB, beside a training whose
layers have two blocks each. At each of these loads so many layers have to be there as the policy's formula says of
what the agent's status says is free (``agent/policy/src/resident.rs``): they fall, then rise. Online gets each block
at once: it asks for the next when the agent has mapped the headroom anew, as the reserve's formula has it. The
adapter and the losses have to be those of a run that nothing is taken from, to the byte.

What never moves is of neither side: the page that stands where memory is taken, of each process, and the block that
a cache always has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]

import nemesis
import node
import tiny

LOADS = (8, 42, 24)
REQUESTS_OF_A_BLOCK = 2
LAYERS, LAYER_BLOCKS = 8, 2
#: With 8 requests all layers are there, with 42 two, with 24 all but one.
POOL_MIB, MEMORY_MIB = 108, 78
BLOCK = 2 << 20
STEPS = 14
#: Whole steps at each load, the first of which is still under way when it begins.
STEPS_AT_A_LOAD = 3
CONFIG = node.CONFIG.replace('"64MiB"', f'"{POOL_MIB}MiB"')
DEADLINE_S = 300.0


@dataclass
class Found:
    """What came of it."""

    #: By load: layers that are there at least, and as the formula says.
    resident: list[int] = field(default_factory=list)
    formula: list[int] = field(default_factory=list)
    demands: int = 0
    #: Demands that had to wait for memory.
    waits: int = 0
    same_bytes: bool = False
    same_losses: bool = False
    units_redone: int = 0

    def good(self) -> bool:
        falls, rises = self.resident[0] > self.resident[1], self.resident[1] < self.resident[2]
        as_said = self.resident == self.formula
        return falls and rises and as_said and self.waits == 0 and self.same_bytes and self.same_losses


class Service:
    """Online, whose load is set."""

    def __init__(self, stage: nemesis.Stage, found: Found) -> None:
        self._stage, self._found = stage, found
        self._held = 0

    def memory(self) -> dict:
        """The agent's books."""
        said = json.loads(self._stage.here.tidegate("status", "--output", "json").stdout)
        return {**said["gpus"][0]["memory"], "jobs": said["jobs"]}

    def settled(self) -> dict:
        """The books once the headroom is mapped and nothing moves."""
        end = time.monotonic() + DEADLINE_S
        while True:
            books = self.memory()
            [cache] = [cache for cache in books["caches"] if cache["reservation_bytes"]]
            mapped = cache["mapped_bytes"] == cache["reservation_bytes"]
            ahead = cache["mapped_bytes"] - cache["used_bytes"] >= books["headroom_bytes"]
            # Before the agent has heard that the load fell, all is as it was with the one before.
            heard = cache["used_bytes"] == self._held * BLOCK
            if mapped and ahead and heard and books["in_flight_bytes"] == 0:
                return {**books, "cache": cache}
            if time.monotonic() > end:
                raise RuntimeError(f"the headroom is not mapped after {DEADLINE_S} s: {books}")
            time.sleep(0.01)

    def given_back(self) -> dict:
        """The books once the trainer has all that online leaves, or all that it asked for."""
        end = time.monotonic() + DEADLINE_S
        while True:
            books = self.settled()
            if books["free_bytes"] < BLOCK or books["offline_bytes"] >= MEMORY_MIB << 20:
                return books
            if time.monotonic() > end:
                raise RuntimeError(f"memory is not given back after {DEADLINE_S} s: {books}")
            time.sleep(0.01)

    def load(self, requests: int) -> None:
        """So many requests."""
        online, wanted = self._stage.online, -(-requests // REQUESTS_OF_A_BLOCK)
        while self._held < wanted:
            self.settled()
            self._found.demands += 1
            online.ask("flight 1")
            granted = int(online.ask("reserve 1").split()[0])
            self._found.waits += granted == 0
            self._held += granted
            online.ask(f"use {self._held}")
            online.ask("flight 0")
        if self._held > wanted:
            online.ask(f"use {wanted}")
            online.ask(f"release {self._held - wanted}")
            self._held = wanted


def units(path: Path) -> list[tuple[int, int, int]]:
    """When, layers there and blocks of other held state, before each unit so far."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]


def fixed(books: dict) -> int:
    """Blocks of both sides that never move."""
    online = sum(owner["online_bytes"] + owner["headroom_bytes"] for owner in books["owners"])
    moves = sum(job["memory"]["stripes"] - job["memory"]["stripes_taken"] for job in books["jobs"])
    return (online - books["cache"]["mapped_bytes"] + books["offline_bytes"]) // BLOCK - moves


def formula(books: dict, other: int) -> int:
    """What the policy says."""
    cache = books["cache"]
    used = cache["used_bytes"] // BLOCK
    asks = {
        "free": books["pool_bytes"] // BLOCK - used - other - fixed(books),
        "reserve": cache["reservation_bytes"] // BLOCK - used,
        "layer": LAYER_BLOCKS,
        "layers": LAYERS,
    }
    command = [node.BUILT / "nemesis", "resident", *(f"--{name}={value}" for name, value in asks.items())]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def train(work: Path, found: Found | None) -> tuple[bytes, list[str]]:
    """A training; with ``found`` beside the load. Its adapter and losses."""
    name = "calm" if found is None else "swapped"
    stage = nemesis.Stage(work, CONFIG, busy=False)
    try:
        service = Service(stage, found or Found())
        if found is not None:
            service.load(LOADS[0])
            service.settled()
        log = work / f"{name}.units"
        asks = {"steps": STEPS, "memory": MEMORY_MIB, "save-every": STEPS, "fresh": False}
        training = nemesis.Training(stage, work / name, "", units=log, **asks)
        for at, load in enumerate(LOADS if found is not None else ()):
            if at:
                service.load(load)
            books = service.given_back()
            begun = time.monotonic_ns()
            if not training.until(training.step + STEPS_AT_A_LOAD):
                raise RuntimeError(f"the training ended at step {training.step}: {training.last_words()}")
            during = [row for row in units(log) if row[0] > begun]
            # What the trainer still had of the load before is gone once it has been through its layers.
            during = during[len(during) // STEPS_AT_A_LOAD :]
            found.resident.append(min(resident for _, resident, _ in during))
            found.formula.append(formula(books, max(other for *_, other in during)))
            print(
                f"{load:>2} requests: {found.resident[-1]} of {LAYERS} layers stay, by the formula {found.formula[-1]}"
                f" ({len(during)} units looked at)",
                flush=True,
            )
        if code := training.end():
            raise RuntimeError(f"the training failed ({code}): {training.last_words()}")
        if found is not None:
            found.units_redone = training.units_redone
        return (work / name / "adapter_model.safetensors").read_bytes(), training.losses
    finally:
        stage.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the samples' order")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = Found()
    with tempfile.TemporaryDirectory(prefix="tidegate-swap-") as folder:
        work = Path(folder)
        os.environ["HF_HOME"] = folder + "/home"
        tiny.model(work / "model", layers=LAYERS, hidden=256, inner=1088)
        lines = tiny.texts(24, args.seed)
        random.Random(args.seed).shuffle(lines)
        (work / "data.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        calm, calm_losses = train(work, None)
        swapped, swapped_losses = train(work, found)
    found.same_bytes, found.same_losses = calm == swapped, calm_losses == swapped_losses
    same = ["the same" if same else "OTHER" for same in (found.same_bytes, found.same_losses)]
    print(
        f"{found.demands} demands of online, {found.waits} of which waited; adapter {same[0]} bytes, {same[1]} losses,"
        f" {found.units_redone} units again"
    )
    if args.json:
        args.json.write_text(json.dumps({**asdict(found), "seed": args.seed, "good": found.good()}, indent=1) + "\n")
    if not found.good():
        print("FAILED")
    return 0 if found.good() else 1


if __name__ == "__main__":
    sys.exit(main())
