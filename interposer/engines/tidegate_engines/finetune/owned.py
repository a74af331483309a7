"""The memory of one training, for as long as the training lives.

A process may run several trainings, one after the other. Each registers memory of its own, and gives it back when its
model is gone. Losses are told by block number without a cache's, so only one training's memory can be registered at a
time, and all of them hear of losses in one row of steps.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence

from .. import abi
from ..job import Cut, OfflineJob, Region
from .driver import Driver
from .pieces import BLOCK, Pieces, Record

log = logging.getLogger("tidegate.finetune")


class Ear:
    """Hears of a process' losses, whichever training they are of."""

    def __init__(self, job: abi.Offline) -> None:
        self._job: OfflineJob = job
        self._step = 0
        #: Whether no other process of the job reads what is lost.
        self.alone = job.alone()

    def poll(self, _: int) -> Cut:
        """What is new. A step that was asked for once stays as it was answered, so no two trainings ask for the same."""
        self._step += 1
        return self._job.poll(self._step)

    def ack_withheld(self, seq: int) -> None:
        self._job.ack_withheld(seq)

    def publish(self, request: int, tokens: int, blocks: Sequence[int]) -> None:
        self._job.publish(request, tokens, blocks)

    def forget(self, request: int) -> None:
        self._job.forget(request)

    def wait(self, timeout_s: float) -> None:
        self._job.wait(timeout_s)

    def forget_all_before(self) -> None:
        """What was lost and came back so far is of memory that is gone."""
        self._job.ack_withheld(self.poll(0).seq)


#: Memory that is registered.
_registered: weakref.WeakSet[Owned] = weakref.WeakSet()


def in_use() -> bool:
    """Whether memory of a training is registered. A training that nobody holds any more is collected first."""
    if _registered:
        # A model and its trainer refer to each other.
        gc.collect()
    return bool(_registered)


class Owned:
    """Registered memory of ``blocks`` blocks, which is given back when nothing refers to it any more."""

    def __init__(self, library: abi.Library, ear: Ear, device: Driver, blocks: int) -> None:
        library.attach(0, 1)
        ear.forget_all_before()
        library.begin_scope(BLOCK, 0)
        try:
            self.base = device.allocate(blocks * BLOCK)
        finally:
            library.end_scope()
        self.blocks = blocks
        try:
            self.kv = library.register([Region(self.base, BLOCK, BLOCK, 0, blocks)], 0, 0)
        except OSError:
            device.free(self.base)
            raise
        self._given = weakref.finalize(self, _give_back, device, self.base)
        # A process that ends gives everything back, and the driver may be gone by then.
        self._given.atexit = False
        _registered.add(self)

    def belongs_to(self, memory: Pieces) -> None:
        """Lives for as long as the memory, and what that has published ends with it."""
        memory.owned = self
        weakref.finalize(memory, _forget, memory.job, memory.record).atexit = False


def _forget(job: OfflineJob, record: Record) -> None:
    for number in list(record.published):
        try:
            job.forget(number)
        except OSError as error:
            log.warning("status shows more than is there: %s", error)
    record.published.clear()
    record.resident = 0


def _give_back(device: Driver, base: int) -> None:
    try:
        device.free(base)  # and with it what was registered there
    except OSError as error:
        log.warning("memory of a training that is over was not given back: %s", error)
