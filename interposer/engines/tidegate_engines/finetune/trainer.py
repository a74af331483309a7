"""A model that is about to be trained: by units where that can be, else as it is, and one line says which.

``TIDEGATE_FINETUNE_DEVICE``  where held state lies: "virtual", the virtual GPU. On a real one no memory is taken
                              yet: a training there is gated like any program
``TIDEGATE_FINETUNE_MEMORY``  MiB of held state; as much as the weights and short samples take unless given
``TIDEGATE_FINETUNE_WINDOW``  tokens of a window
``TIDEGATE_FINETUNE_REPORT``  a file for what was done, as JSON, at the end of the process
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from .. import abi
from ..job import Region
from .machine import WINDOW, Machine, Unit
from .said import Teller
from .seam import attach, seam_of
from .taken import BLOCK, TakenMemory
from .virtual import Device
from .why_not import why_not
from .windows import Layers, every

log = logging.getLogger("tidegate.finetune")

#: Seconds for which the role is asked of an agent that is not there yet, as the vLLM plugin does.
PATIENCE_S = 5.0
#: Blocks of an input, of keys and of values of one layer, where nobody says how much memory there is.
SHORT = 2


def take(model: Any, make: Callable[[Layers], Machine] | None = None) -> Machine | None:
    """Has a model's layers run by a machine, if they can be. It never fails: it would take the training along."""
    machine = None
    try:
        if make is None and (other := _whose(model)) is not None:
            virtual = os.environ.get("TIDEGATE_FINETUNE_DEVICE") == "virtual"
            log.log(logging.WARNING if virtual else logging.INFO, "Tidegate does nothing with this training: %s", other)
            return None
        reason = why_not(model)
        if reason is None and make is None:
            make, reason = _by_library()
        if reason is None and make is not None:
            known = seam_of(model)
            machine = known.machine if known is not None else attach(model, make)
    except (ImportError, AttributeError, KeyError, OSError, ValueError) as error:
        # What is looked for is elsewhere in this version, or the library refuses.
        reason = f"{type(error).__name__}: {error}"
    if machine is None:
        log.warning("Tidegate gates this training and takes no memory of it: %s", reason)
    _tell(model, machine)
    return machine


#: Who tells of each model.
_tellers: weakref.WeakKeyDictionary[Any, Teller] = weakref.WeakKeyDictionary()


def _tell(model: Any, machine: Machine | None) -> None:
    """Has the agent told of a training, also of one that is run as it is."""
    library = abi.library()
    if library is None or model in _tellers:
        return
    try:
        _tellers[model] = Teller(library, model, machine)
    except (ImportError, AttributeError, TypeError) as error:
        log.warning("status shows nothing of this training: %s: %s", type(error).__name__, error)


def teller(model: Any) -> Teller | None:
    """Who tells the agent of a model's training."""
    return _tellers.get(model)


def _whose(model: Any) -> str | None:
    """Why a training is not offline work, by the environment or the agent's rules; None where it is."""
    library, asked = abi.library(), os.environ.get("TIDEGATE_ROLE", "")
    if asked == "offline" or library is None:
        return None
    if asked:
        return f"TIDEGATE_ROLE is {asked!r}"
    # Before there is a context nobody is asked: the agent knows a process by what the driver made for it.
    if os.environ.get("TIDEGATE_FINETUNE_DEVICE") == "virtual":
        _device()
    elif not any(p.is_cuda for p in model.parameters()):
        return "it runs on no GPU"
    role = library.role(PATIENCE_S)
    if role == "offline":
        return None
    if role:
        return f"the agent's rules make it {role}"
    return "no agent's rule makes it offline; write one, or set TIDEGATE_ROLE=offline"


@cache
def _device() -> Device:
    return Device()


def _by_library() -> tuple[Callable[[Layers], Machine] | None, str | None]:
    """How a machine over the library's memory is made; or why none is."""
    device = os.environ.get("TIDEGATE_FINETUNE_DEVICE", "")
    library = abi.library()
    if library is None:
        return None, "the library was not preloaded; start it with `tidegate run --offline -- ...`"
    if device != "virtual":
        said = f"TIDEGATE_FINETUNE_DEVICE is {device!r}; it takes virtual" if device else "it runs on a real GPU"
        return None, f"{said}, and only a virtual one's is taken yet"
    library.attach(0, 1)
    if not abi.Offline(library).alone():
        job = os.environ.get("TIDEGATE_JOB", "")
        return None, f"another engine or training has job {job!r}; give each a TIDEGATE_JOB of its own"
    return lambda layers: machine(layers, library), None


def number(name: str, otherwise: int) -> int:
    """A variable that takes a number of 1 and more."""
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}; it takes a whole number from 1")
    return int(text)


def machine(layers: Layers, library: abi.Library) -> Machine:
    """A machine whose held state the agent may take."""
    device = _device()
    library.attach(0, 1)
    weights = sum(
        -(-sum(p.nbytes for p in layers.parameters(n, False)) // BLOCK) for n in range(len(layers))
    )
    least = weights + 3 * SHORT * (len(layers) + 1)
    blocks = number("TIDEGATE_FINETUNE_MEMORY", least * BLOCK >> 20) * (1 << 20) // BLOCK
    library.begin_scope(BLOCK, 0)
    try:
        base = device.allocate(blocks * BLOCK)
    finally:
        library.end_scope()
    library.register([Region(base, BLOCK, BLOCK, 0, blocks)], 0, 0)
    memory = TakenMemory(device, abi.Offline(library), base, blocks)
    window = number("TIDEGATE_FINETUNE_WINDOW", WINDOW)
    made = Machine(layers, memory, every(window), before_unit=lambda unit: _before(device, unit, window))
    made.copy_weights()
    if report := os.environ.get("TIDEGATE_FINETUNE_REPORT"):
        atexit.register(_report, Path(report), made, memory)
    return made


def _before(device: Device, unit: Unit, window: int) -> None:
    for told in list(_tellers.values()):
        told.unit()
    device.unit(unit, window)


def _report(path: Path, machine: Machine, memory: TakenMemory) -> None:
    said = {**asdict(machine.counts), "blocks_lost": memory.blocks_lost, "resident_layers": memory.resident()}
    try:
        path.write_text(json.dumps(said) + "\n")
    except OSError as error:
        log.warning("TIDEGATE_FINETUNE_REPORT: %s", error)
