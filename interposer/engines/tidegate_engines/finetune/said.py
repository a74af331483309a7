"""What a trainer says of itself: status, metrics and events have it from here.

Steps are those of any optimizer that steps what is trained; tokens are those that the model is given in training; the
loss is that of its last answer that has one. So a script of transformers, TRL or accelerate says nothing itself.
"""

from __future__ import annotations

import logging
import time
import weakref
from typing import Any, Protocol

from ..job import Training
from .machine import Machine
from .plain import Plain

log = logging.getLogger("tidegate.finetune")

#: Seconds between two words within a step, which may take long, and between two looks at a loss on a GPU, each of
#: which waits for it.
EVERY_S = 0.5


class Says(Protocol):
    """The library, as far as it is spoken to here."""

    def progress(self, units: int) -> None: ...
    def trainer(self, now: Training) -> None: ...


class Teller:
    """Of one model that is trained, by units or as it is."""

    def __init__(self, library: Says, model: Any, machine: Machine | None) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.now = Training()
        self._library = library
        self._machine: Machine | Plain | None = None
        #: Tokens of a micro-batch of which it is not known yet whether it stands.
        self._pending = 0
        self.runs(machine)
        self._loss: Any = None
        self._looked = self._told = 0.0
        self._said = 0
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._trained = {id(p) for p in model.parameters() if p.requires_grad}
        # The one hook is the process', and stays; the other is copied where a model is.
        here = weakref.ref(self)

        def stepped(optimizer: Any, *_: Any) -> None:
            if (teller := here()) is not None:
                teller.stepped(optimizer)

        def answered(asked: Any, given: Any, words: dict[str, Any], answer: Any) -> None:
            if (teller := here()) is not None and asked is watched():
                teller.answered(asked, given, words, answer)

        watched = weakref.ref(model)
        register_optimizer_step_post_hook(stepped)
        model.register_forward_hook(answered, with_kwargs=True)

    def runs(self, machine: Machine | Plain | None) -> None:
        """By whom it is run, if in units."""
        self._machine = machine
        self.now.layers = len(machine.layers) if machine is not None else 0
        if isinstance(machine, Plain):
            machine.ran = self._ran

    def _ran(self, stands: bool) -> None:
        self.now.tokens += self._pending if stands else 0
        self._pending = 0

    def goes_on(self, step: int, steps: int) -> None:
        """So many steps were done before this process, of so many."""
        self.now.begun = self.now.step = step
        self.now.steps = steps
        self.tell()

    def answered(self, model: Any, given: Any, words: dict[str, Any], answer: Any) -> None:
        """The model was called."""
        if not model.training:
            return
        ids = words.get("input_ids", given[0] if given else None)
        tokens = ids.numel() if hasattr(ids, "numel") else 0
        if isinstance(self._machine, Plain):
            self._pending += tokens
        else:
            self.now.tokens += tokens
        loss = getattr(answer, "loss", None)
        if loss is not None:
            self._loss = loss.detach()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step: perhaps that of this model."""
        if optimizer not in self._known:
            own = (id(p) in self._trained for group in optimizer.param_groups for p in group["params"])
            self._known[optimizer] = any(own)
        if self._known[optimizer]:
            self.now.step += 1
            self.tell()

    def unit(self) -> None:
        """A unit begins."""
        if time.monotonic() - self._told >= EVERY_S:
            self.tell()

    def finished(self, adapter: str, served: str = "") -> None:
        """The adapter is there, and perhaps somebody answers with it."""
        self.now.adapter, self.now.served = adapter, served
        self.tell()

    def tell(self) -> None:
        """Says how it stands."""
        if self._told == float("inf"):
            return
        now, self._told = self.now, time.monotonic()
        if self._machine is not None:
            counts, resident = self._machine.counts, getattr(self._machine.memory, "resident", None)
            now.units, now.units_redone, now.reclaims = counts.units, counts.units_redone, counts.reclaims
            now.resident_layers = resident() if resident is not None else now.layers
        if self._loss is not None and (not self._loss.is_cuda or self._told - self._looked >= EVERY_S):
            now.loss, self._loss, self._looked = float(self._loss), None, self._told
        try:
            self._library.progress(now.tokens - self._said)
            self._library.trainer(now)
        except OSError as error:
            # A training does not end for what nobody hears.
            log.warning("status shows nothing of this training from here on: %s", error)
            self._told = float("inf")
        self._said = now.tokens
