"""The C functions of libtidegate.so (``interposer/include/tidegate.h``), by ctypes.

The library is preloaded, never loaded from here: where the process does not have it,
:func:`library` is None and a plugin does nothing.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, astuple
from functools import cache
from typing import ClassVar

from .job import Cut, Iteration, Region, Training

#: The version of the header that this module needs. Later libraries have all of it.
VERSION = 1

#: What ``tg_role`` of version 2 answers.
ROLES = {1: "online", 2: "offline"}

#: ``TG_EVERY_DEVICE``.
EVERY_DEVICE = (1 << 32) - 1

#: ``TG_KV_ELASTIC``: the cache begins without memory and grows with ``tg_reserve``.
ELASTIC = 1

#: Bytes of a handle of KV memory where ``TIDEGATE_KV_HANDLE`` does not say.
HANDLE = 2 << 20
#: The largest that may be asked for, and the largest that was moved on a GPU: 0.20 ms on an H100, 0.13 ms for 2 MiB (P7).
LARGEST = 64 << 20

_U32, _U64, _SIZE = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_IDS, _COUNT = ctypes.POINTER(_U32), ctypes.POINTER(_SIZE)


def handle_bytes(log: logging.Logger) -> int:
    """Bytes of a handle, in which KV memory is taken and given back: ``TIDEGATE_KV_HANDLE``, such as ``8MiB``."""
    text = os.environ.get("TIDEGATE_KV_HANDLE", "")
    number = re.fullmatch(r"(\d{1,3}) ?MiB", text)
    wanted = int(number[1]) << 20 if number else 0
    if 0 < wanted <= LARGEST and wanted % HANDLE == 0:
        return wanted
    if text:
        most = LARGEST >> 20
        log.warning("TIDEGATE_KV_HANDLE is %r, not an even number of MiB from 2MiB to %dMiB: it is 2MiB", text, most)
    return HANDLE


class _Region(ctypes.Structure):
    _fields_ = (
        ("base", _U64),
        ("block_stride", _U64),
        ("block_bytes", _U64),
        ("first_block", _U32),
        ("blocks", _U32),
    )


class _Training(ctypes.Structure):
    _fields_ = (
        *((name, _U64) for name in ("step", "steps", "begun", "tokens", "units", "units_redone", "reclaims")),
        ("layers", _U32),
        ("resident_layers", _U32),
        ("loss", ctypes.c_double),
        ("adapter", ctypes.c_char_p),
        ("served", ctypes.c_char_p),
    )


class _Iteration(ctypes.Structure):
    _fields_ = (
        *(
            (name, _U64)
            for name in (
                "begin_ns",
                "end_ns",
                "fingerprint",
                "cached",
                "prompt",
                "waiting_tokens",
                "free_blocks",
                "blocks",
            )
        ),
        ("batch", _U32),
        ("waiting", _U32),
    )


_FUNCTIONS = {
    "tg_attach": (ctypes.c_char_p, _U32, _U32),
    "tg_kv_scope_begin": (_U64, _U32),
    "tg_kv_scope_end": (),
    "tg_kv_register": (ctypes.POINTER(_Region), _SIZE, _U32, _U32, ctypes.POINTER(_U32)),
    "tg_kv_unregister": (_U32,),
    "tg_poll": (_U64, _IDS, _COUNT, _IDS, _COUNT, ctypes.POINTER(_U64)),
    "tg_ack_withheld": (_U64,),
    "tg_publish_request": (_U64, _U32, ctypes.c_void_p, _SIZE),
    "tg_forget_request": (_U64,),
    "tg_reserve": (_U32, _U32, ctypes.c_void_p, ctypes.POINTER(_U32)),
    "tg_release": (_U32, ctypes.c_void_p, _SIZE),
    "tg_usage": (_U32, _U32),
    "tg_requests_in_flight": (_U32,),
}

#: Of version 2.
_ARENA = {
    "tg_arena_open": (_U32, _U32, ctypes.POINTER(_U32)),
    "tg_arena_take": (_U32, _U64, ctypes.POINTER(_U64)),
    "tg_arena_give": (_U32, _U64),
    "tg_arena_blocks": (_U32, _U64, _IDS, _COUNT),
}


class TidegateError(OSError):
    """A call of the library that failed; ``errno`` says why."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(code, f"{function}: {os.strerror(code)}")


class Library:
    """The functions of a library that this process was started with."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._calls = {}
        for name, arguments in _FUNCTIONS.items():
            call = getattr(functions, name)
            call.argtypes = arguments
            call.restype = ctypes.c_int
            self._calls[name] = call
        self._role = getattr(functions, "tg_role", None)
        self._progress = getattr(functions, "tg_progress", None)
        self._trainer = getattr(functions, "tg_trainer", None)
        self._expect = getattr(functions, "tg_expect", None)
        self._whole = getattr(functions, "tg_kv_whole", None)
        self._beat = getattr(functions, "tg_beat", None)
        if self._beat is not None:
            self._beat.argtypes, self._beat.restype = (_U32, ctypes.POINTER(_Iteration), _SIZE), ctypes.c_int
        self._arena = {name: getattr(functions, name, None) for name in _ARENA}
        for name, arguments in _ARENA.items():
            if (call := self._arena[name]) is not None:
                call.argtypes, call.restype = arguments, ctypes.c_int

    def arena(self, name: str, *arguments: object, allowed: tuple[int, ...] = ()) -> int:
        """Calls a function of a trainer's arena: 0, or an errno that the caller allowed for."""
        call = self._arena[name]
        code = errno.ENOSYS if call is None else -call(*arguments)
        if code and code not in allowed:
            raise TidegateError(name, code)
        return code

    def role(self, wait_s: float) -> str:
        """What the agent takes this process for; "" where it is neither, or no agent says it in time.

        For a process that has a context, or that will never make one.
        """
        if self._role is None:
            return ""
        self._role.argtypes, self._role.restype = (_U32,), ctypes.c_int
        return ROLES.get(self._role(int(wait_s * 1000)), "")

    def progress(self, units: int) -> None:
        """So many more useful units of work were done. Nothing with a library that does not know of them."""
        if self._progress is not None:
            self._progress.argtypes, self._progress.restype = (_U64,), ctypes.c_int
            self._progress(units)

    def trainer(self, now: Training) -> None:
        """What a training has done. Nothing with a library that does not know of trainings."""
        if self._trainer is None:
            return
        self._trainer.argtypes, self._trainer.restype = (ctypes.POINTER(_Training), _SIZE), ctypes.c_int
        said = _Training(**{**asdict(now), "adapter": _text(now.adapter), "served": _text(now.served)})
        if code := -self._trainer(ctypes.byref(said), ctypes.sizeof(said)):
            raise TidegateError("tg_trainer", code)

    def expect(self, kv: int, blocks: int) -> None:
        """So many more blocks will be needed. Nothing with a library that does not know of it."""
        if self._expect is None:
            return
        self._expect.argtypes, self._expect.restype = (_U32, _U32), ctypes.c_int
        if code := -self._expect(kv, blocks):
            raise TidegateError("tg_expect", code)

    def listens(self) -> bool:
        """Whether an agent asks for iterations."""
        return self._beat is not None and self._beat(EVERY_DEVICE, None, 0) == 0

    def beat(self, done: Iteration) -> None:
        """An iteration has ended, on all devices of this process. Nothing where no agent asks for it any more."""
        if self._beat is None:
            return
        said = _Iteration(*astuple(done))
        code = -self._beat(EVERY_DEVICE, ctypes.byref(said), ctypes.sizeof(said))
        if code not in (0, errno.ENOTCONN):
            raise TidegateError("tg_beat", code)

    def call(self, name: str, *arguments: object, allowed: tuple[int, ...] = ()) -> int:
        """Calls a function; 0, or an errno that the caller allowed for."""
        code = -self._calls[name](*arguments)
        if code and code not in allowed:
            raise TidegateError(name, code)
        return code

    def attach(self, rank: int, world: int) -> None:
        """Joins the job of ``TIDEGATE_JOB``, once per process."""
        self.call("tg_attach", None, rank, world, allowed=(errno.EALREADY,))

    def begin_scope(self, handle_bytes: int, flags: int) -> None:
        """Memory that this thread allocates from here on can be taken and given back."""
        self.call("tg_kv_scope_begin", handle_bytes, flags)

    def end_scope(self) -> None:
        """The end of it."""
        self.call("tg_kv_scope_end")

    def register(self, regions: Sequence[Region], protected: int, flags: int) -> int:
        """Registers a KV cache; its number. Blocks below ``protected`` are never taken."""
        rows = (_Region * len(regions))(
            *(_Region(r.base, r.stride, r.block_bytes, r.first_block, r.blocks) for r in regions)
        )
        number = _U32()
        self.call("tg_kv_register", rows, len(rows), protected, flags, ctypes.byref(number))
        return number.value

    def back_unclaimed(self) -> None:
        """Backs what elastic scopes allocated and no cache claims. Where that fails the memory must not be used."""
        if code := errno.ENOSYS if self._whole is None else -self._whole():
            raise TidegateError("tg_kv_whole", code)


@cache
def library() -> Library | None:
    """The library of this process, if it was started with one that has what is needed."""
    functions = ctypes.CDLL(None)
    try:
        version = functions.tg_abi_version
    except AttributeError:
        return None
    version.restype = _U32
    return Library(functions) if version() >= VERSION else None


def _text(text: str) -> bytes | None:
    return text.encode() if text else None


def _words(blocks: Sequence[int]) -> array[int]:
    """Ids in a row. An array of ctypes would be of a type of its own for each length, which takes longer than the call."""
    return blocks if isinstance(blocks, array) else array("I", blocks)


class Offline:
    """An offline job, over the library. Of those that asked whether they are alone the last one reads what is lost."""

    _last: ClassVar[Offline | None] = None

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lost = (_U32 * 1024)()
        self._back = (_U32 * 1024)()
        #: It has asked whether it is alone.
        self._asked = False
        #: What was lost before anybody polled.
        self._before = Cut()

    def alone(self) -> bool:
        """Whether this process may read what is lost; else another engine of the same job does."""
        try:
            self._asked, Offline._last = True, self
            # What is lost by now. Step 0 has the library begin a reader anew.
            self._before = self._read(0)
        except TidegateError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def poll(self, step: int) -> Cut:
        if self._asked and Offline._last is not self:
            # The other's scheduler has been told of what this one would not hear.
            raise TidegateError("tg_poll", errno.ESTALE)
        before, cut = self._before, self._read(step)
        self._before = Cut()
        # As the library joins two steps: what was lost is told, also where it is back; what was lost after that is not.
        again = set(cut.lost)
        lost = [block for block in before.lost if block not in again] + cut.lost
        return Cut(lost, [block for block in before.back if block not in again] + cut.back, cut.seq)

    def _read(self, step: int) -> Cut:
        lost, back, seq = _SIZE(len(self._lost)), _SIZE(len(self._back)), _U64()
        while self._library.call(
            "tg_poll",
            step,
            self._lost,
            ctypes.byref(lost),
            self._back,
            ctypes.byref(back),
            ctypes.byref(seq),
            allowed=(errno.ENOSPC,),
        ):
            self._lost = (_U32 * max(lost.value, len(self._lost)))()
            self._back = (_U32 * max(back.value, len(self._back)))()
            lost, back = _SIZE(len(self._lost)), _SIZE(len(self._back))
        return Cut(self._lost[: lost.value], self._back[: back.value], seq.value)

    def ack_withheld(self, seq: int) -> None:
        self._library.call("tg_ack_withheld", seq)

    def publish(self, request: int, tokens: int, blocks: Sequence[int]) -> None:
        words = _words(blocks)
        at, count = words.buffer_info()
        self._library.call("tg_publish_request", request, tokens, at, count)

    def forget(self, request: int) -> None:
        self._library.call("tg_forget_request", request, allowed=(errno.ENOENT,))

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


class Online:
    """An online job's KV cache, over the library: in the process that holds its memory."""

    def __init__(self, library: Library, kv: int) -> None:
        self._library = library
        self._kv = kv

    def reserve(self, blocks: int) -> list[int]:
        ids, granted = array("I", bytes(4 * blocks)), _U32()
        self._library.call("tg_reserve", self._kv, blocks, ids.buffer_info()[0], ctypes.byref(granted))
        return ids[: granted.value].tolist()

    def release(self, blocks: Sequence[int]) -> None:
        words = _words(blocks)
        at, count = words.buffer_info()
        self._library.call("tg_release", self._kv, at, count)

    def expect(self, blocks: int) -> None:
        self._library.expect(self._kv, blocks)

    def usage(self, used: int, reserved: int) -> None:
        self._library.call("tg_usage", self._kv, used)

    def in_flight(self, requests: int) -> None:
        self._library.call("tg_requests_in_flight", requests)

    def scheduled(self, output: object) -> None:
        return None

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


class Arena:
    """Addresses in a row over any free blocks of a registered cache, whose blocks are 2 MiB each."""

    def __init__(self, library: Library, kv: int, second_blocks: int) -> None:
        """``second_blocks`` is how many blocks can be part of tensors of several blocks at a time."""
        self._library = library
        arena = _U32()
        library.arena("tg_arena_open", kv, second_blocks, ctypes.byref(arena))
        self._number = arena.value
        self._ids = (_U32 * 64)()

    def take(self, size: int) -> int | None:
        at = _U64()
        code = self._library.arena("tg_arena_take", self._number, size, ctypes.byref(at), allowed=(errno.ENOMEM,))
        return None if code else at.value

    def give(self, at: int) -> None:
        self._library.arena("tg_arena_give", self._number, at)

    def blocks(self, at: int) -> list[int]:
        count = _SIZE(len(self._ids))
        while self._library.arena(
            "tg_arena_blocks", self._number, at, self._ids, ctypes.byref(count), allowed=(errno.ENOSPC,)
        ):
            self._ids = (_U32 * count.value)()
        return self._ids[: count.value]
