"""What happens to a training and to the node it runs on: drawn, or read from a file.

A script has a fault a line, ``STEP AFTER_MS KIND [MS [BLOCKS]]``, and remarks behind ``#``::

    # step  after  what   for
    3       120    stop   400      # when step 3 is done, and 120 ms later: SIGSTOP for 400 ms
    8       0      kill
    8       40     burst  900 26   # online wants 26 blocks for 900 ms

After a kill the training goes on from a step before: a fault of a step that it does again waits until then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Kinds: what happens, and for how many milliseconds at least and at most where it lasts.
KINDS: dict[str, tuple[str, tuple[int, int]]] = {
    "stop": ("SIGSTOP of the trainer", (20, 900)),
    "kill": ("kill -9 of the trainer, which is started again", (0, 0)),
    "agent": ("kill -9 of the agent; the next comes so much later", (0, 1_500)),
    "restart": ("SIGTERM of the agent; the next comes at once", (0, 0)),
    "freeze": ("SIGSTOP of the agent", (20, 900)),
    "online": ("kill -9 of the online program; the next comes at once", (0, 0)),
    "pause": ("SIGSTOP of the online program", (20, 600)),
    "burst": ("online wants so many blocks of 2 MiB, and keeps them", (1, 1_200)),
}
#: Blocks of a burst.
BLOCKS = (12, 26)


class BadScript(ValueError):
    """A script that cannot be played."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    step: int
    after_ms: int
    kind: str
    ms: int = 0
    blocks: int = 0

    def __str__(self) -> str:
        return " ".join(map(str, (self.step, self.after_ms, self.kind, self.ms, self.blocks)))


def draw(rng: random.Random, steps: int) -> list[Fault]:
    """Some, at random steps, in order. One in eight kills comes while the adapter is being saved."""

    def one() -> Fault:
        kind = rng.choice(list(KINDS))
        step, after = rng.randint(1, steps - 1), rng.randint(0, 300)
        if kind == "kill" and rng.randrange(8) == 0:
            step, after = steps, rng.randint(0, 30)
        return Fault(step, after, kind, rng.randint(*KINDS[kind][1]), rng.randint(*BLOCKS) if kind == "burst" else 0)

    return sorted((one() for _ in range(rng.randint(1, 4))), key=lambda fault: fault.step)


def read(path: Path, steps: int) -> list[Fault]:
    """A script's faults, in its order. BadScript: file, line, field and what would fit."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadScript(f"{path}: cannot be read: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            found.append(_fault(words, lambda why, at=number: BadScript(f"{path}:{at}: {why}"), steps))
    if not found:
        raise BadScript(f"{path}: has no fault; a line is STEP AFTER_MS KIND [MS [BLOCKS]]")
    return found


def _fault(words: list[str], bad: Callable[[str], BadScript], steps: int) -> Fault:
    if not 3 <= len(words) <= 5:
        raise bad(f"has {len(words)} words; a line is STEP AFTER_MS KIND [MS [BLOCKS]]")
    kind = words[2]
    if kind not in KINDS:
        raise bad(f"KIND is '{kind}'; it is one of {', '.join(KINDS)}")
    names = ("STEP", "AFTER_MS", None, "MS", "BLOCKS")
    bounds = {"STEP": steps, "AFTER_MS": 60_000, "MS": 60_000, "BLOCKS": 32}
    numbers = [0, 0, 0, KINDS[kind][1][0], BLOCKS[1] if kind == "burst" else 0]
    for at, (name, word) in enumerate(zip(names, words, strict=False)):
        if name is None:
            continue
        if not (word.isascii() and word.isdigit() and int(word) <= bounds[name]):
            raise bad(f"{name} is '{word}'; it takes a whole number from 0 to {bounds[name]}")
        numbers[at] = int(word)
    return Fault(numbers[0], numbers[1], kind, numbers[3], numbers[4])
