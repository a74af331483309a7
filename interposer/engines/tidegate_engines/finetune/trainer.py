"""A model that is about to be trained: in windows where that can be, in micro-batches where the framework's trainer
says what one is, else as it is; and one line says which.

``TIDEGATE_FINETUNE_MACHINE`` "plain": micro-batches also where windows could be
``TIDEGATE_FINETUNE_DEVICE``  where held state lies: "virtual", the virtual GPU; "cuda", the real one that the model is
                              on, in windows only (run on an H200). Unless it is asked for, a training on a real GPU is
                              gated like any program, and no memory of it is taken
``TIDEGATE_FINETUNE_MEMORY``  MiB of held state; as much as the weights and short samples take unless given
``TIDEGATE_FINETUNE_WINDOW``  tokens of a window
``TIDEGATE_FINETUNE_REPORT``  a file for what was done, as JSON, at the end of the process
"""

from __future__ import annotations

import atexit
import copy
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from .. import abi
from . import cuda, plain, virtual
from .arena import ArenaMemory
from .machine import WINDOW, Counts, Machine, Unit
from .owned import Ear, Owned, in_use
from .pieces import BLOCK, Pieces, Record
from .plain import Plain
from .said import Teller
from .seam import attach, seam_of
from .taken import TakenMemory
from .why_not import why_not
from .windows import Layers, every

Result = TypeVar("Result")

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
            level = logging.WARNING if _where() == "virtual" else logging.INFO
            log.log(level, "Tidegate does nothing with this training: %s", other)
            return None
        why = reason = why_not(model)
        if make is None:
            make, no_memory = _by_library()
            reason = why or no_memory
            if why is None and os.environ.get("TIDEGATE_FINETUNE_MACHINE") == "plain":
                why = "TIDEGATE_FINETUNE_MACHINE is plain"
            if why is not None and no_memory is None and (no_batches := _why_no_batches(model)) is not None:
                reason = f"{why}; in micro-batches: {no_batches}"
            elif why is not None and no_memory is None:
                log.warning("Tidegate runs this training in micro-batches, not in windows: %s", why)
                by_batches(model)
                _tell(model, None)
                return None
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


#: Models that are trained in micro-batches; None until the first one is run, and where nobody says what one is.
_whole: weakref.WeakKeyDictionary[Any, Plain | None] = weakref.WeakKeyDictionary()


def by_batches(model: Any, machine: Plain | None = None) -> None:
    """Has a model's micro-batches run by a machine, which is made with the first of them unless given."""
    if model not in _whole:
        _whole[model] = machine
    _watch_training_steps()


def is_whole(model: Any) -> bool:
    """Whether a model is trained in micro-batches."""
    return model in _whole


def whole_of(model: Any) -> Plain | None:
    """Who runs a model's micro-batches, once there was one."""
    return _whole.get(model)


def step(model: Any, work: Callable[[], Result]) -> Result:
    """Runs a micro-batch, ``work``: forward and backward of a model that was prepared.

    A script of transformers or TRL does not call it: their trainer says itself what a micro-batch is.
    """
    if model not in _whole:
        return work()
    machine = _whole[model]
    if machine is None:
        machine = _whole[model] = whole(model)
        if (told := teller(model)) is not None:
            told.runs(machine)
    return machine.step(work)


def _watch_training_steps() -> None:
    """Has the micro-batches of transformers' trainer, and of whatever is derived from it, run by :func:`step`."""
    module = sys.modules.get("transformers.trainer")
    if module is None or hasattr(module.Trainer.training_step, "__wrapped__"):
        return
    before = module.Trainer.training_step

    @wraps(before)
    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **words: Any) -> Any:
        # A micro-batch that is run again has the inputs it had: some take out of them what they use.
        return step(model, lambda: before(self, model, copy.copy(inputs), *args, **words))

    module.Trainer.training_step = training_step


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
    if _where() == "virtual":
        _virtual()
    elif not any(p.is_cuda for p in model.parameters()):
        return "it runs on no GPU"
    role = library.role(PATIENCE_S)
    if role == "offline":
        return None
    if role:
        return f"the agent's rules make it {role}"
    return "no agent's rule makes it offline; write one, or set TIDEGATE_ROLE=offline"


def _where() -> str:
    return os.environ.get("TIDEGATE_FINETUNE_DEVICE", "")


@cache
def _virtual() -> virtual.Device:
    return virtual.Device()


@cache
def ear(library: abi.Library) -> Ear:
    """Who hears what is lost of this process."""
    return Ear(abi.Offline(library))


def _why_no_batches(model: Any) -> str | None:
    """Why a model's micro-batches cannot be units, in one line; None where they can."""
    if _where() != "virtual":
        # What autograd has saved of a weight is where that was.
        return "weights that were taken come back elsewhere on a real GPU, and a backward pass reads them where they were"
    return plain.why_not(model)


def _by_library() -> tuple[Callable[[Layers], Machine] | None, str | None]:
    """How a machine over the library's memory is made; or why none is."""
    device = _where()
    library = abi.library()
    if library is None:
        return None, "the library was not preloaded; start it with `tidegate run --offline -- ...`"
    if not device:
        return None, "it runs on a real GPU, where this is tried only if TIDEGATE_FINETUNE_DEVICE is cuda"
    if device not in ("virtual", "cuda"):
        return None, f"TIDEGATE_FINETUNE_DEVICE is {device!r}; it takes virtual or cuda"
    library.attach(0, 1)
    if in_use():
        return None, (
            "memory of another training in this process is still in use, and only one training's memory can be taken; "
            "delete that training's model and trainer first, or run each in a process of its own"
        )
    if not ear(library).alone:
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
    frozen = [sum(p.nbytes for p in layers.parameters(n, False)) for n in range(len(layers))]
    least = _blocks(frozen) + 3 * SHORT * (len(layers) + 1)
    if _where() == "cuda":
        memory, device = _arena(library, layers.device(), least)
    else:
        memory, device = _copied(library, least)
    window = number("TIDEGATE_FINETUNE_WINDOW", WINDOW)
    made = Machine(layers, memory, every(window), before_unit=lambda unit: _before(device, unit, window))
    made.copy_weights()
    if _where() == "cuda":
        cuda.trim()
    _reports(made, memory)
    return made


def whole(model: Any) -> Plain:
    """A machine of micro-batches, whose frozen weights the agent may take."""
    library = abi.library()
    if library is None:
        raise RuntimeError("the library was there when the model was prepared")
    frozen = [sum(p.nbytes for p in layer.parameters() if not p.requires_grad) for layer in plain.layers_of(model)]
    memory, device = _copied(library, _blocks(frozen))
    window = number("TIDEGATE_FINETUNE_WINDOW", WINDOW)
    made = Plain(model, memory, before_unit=lambda unit: _before(device, unit, window))
    _reports(made, memory)
    return made


def _blocks(sizes: list[int]) -> int:
    """What layers of so many bytes take, unless a user says how much memory there is."""
    return sum(-(-size // BLOCK) for size in sizes)


def _copied(library: abi.Library, least: int) -> tuple[TakenMemory, virtual.Device]:
    """Memory of the virtual GPU, which tensors of the host show."""
    device = _virtual()
    owned = Owned(library, ear(library), device, _wanted(least))
    memory = TakenMemory(device, ear(library), owned.base, owned.blocks)
    owned.belongs_to(memory)
    return memory, device


def _arena(library: abi.Library, where: Any, least: int) -> tuple[ArenaMemory, cuda.Device]:
    """Memory of a real GPU, in which tensors lie."""
    device = cuda.Device(where)
    # An arena's blocks come in twos.
    owned = Owned(library, ear(library), cuda.Device(where), _wanted(least + least % 2))
    # Addresses cost nothing, and pieces of several blocks leave gaps between them.
    places = abi.Arena(library, owned.kv, 2 * owned.blocks)
    device.owner = owned
    memory = ArenaMemory(device, places, ear(library), owned.blocks)
    owned.belongs_to(memory)
    return memory, device


def _wanted(least: int) -> int:
    """Blocks of held state."""
    return number("TIDEGATE_FINETUNE_MEMORY", least * BLOCK >> 20) * (1 << 20) // BLOCK


def _before(device: virtual.Device | cuda.Device, unit: Unit, window: int) -> None:
    for told in list(_tellers.values()):
        told.unit()
    device.unit(unit, window)


def _reports(machine: Machine | Plain, memory: Pieces) -> None:
    if report := os.environ.get("TIDEGATE_FINETUNE_REPORT"):
        atexit.register(_report, Path(report), machine.counts, memory.record)


def _report(path: Path, counts: Counts, record: Record) -> None:
    said = {**asdict(counts), "blocks_lost": record.blocks_lost, "resident_layers": record.resident}
    try:
        path.write_text(json.dumps(said) + "\n")
    except OSError as error:
        log.warning("TIDEGATE_FINETUNE_REPORT: %s", error)
