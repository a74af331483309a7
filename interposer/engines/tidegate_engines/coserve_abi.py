"""``libtidegate_coserve.so``, as ``coserve/include/tidegate_coserve.h`` declares it.

The library decides how much background work a step of an engine carries. A plugin hands it numbers, and does what it
says. The structures here are compared with the library's by the test ``python_has_the_structures_of_the_library``
of ``coserve/tests/abi.rs``.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any

_U32, _U64, _I32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32

#: The interface that this file was written for: major times 65,536, and minor.
VERSION = 0x00020002

NAME = "libtidegate_coserve.so"

#: Where the library is, in this order: what the environment names, the wheel's, the package's.
VARIABLE = "TIDEGATE_COSERVE_LIBRARY"
PLACES = (Path(__file__).with_name(NAME), Path("/usr/lib/tidegate") / NAME)

#: The kinds of promises of ``Config``.
SHARES, TIMES = 1, 2

#: The kinds of ``Seen``.
ARRIVED, FIRST, ENDED, RETURNED = 1, 2, 3, 4

#: The kinds of units of training: rows of the loss; rows of a layer's backward pass; layers of an optimizer's step; a
#: publication.
HEAD, BACKWARD, OPTIMIZER, PUBLICATION = 1, 2, 3, 4

#: Jobs that share what there is, at most.
JOBS = 16

#: What a code below zero says.
CODES = {
    -1: "no handle",
    -2: "a number that makes no sense",
    -3: "a fault of the library's",
    -4: "no room for another job",
}


def _words(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _U32) for name in names)


def _longs(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _U64) for name in names)


class Config(ctypes.Structure):
    """What is promised to users."""

    _fields_ = (
        *_words("kind", "ttft_share", "tpot_share", "late_permille"),
        *_longs("ttft_ns", "tpot_ns"),
        *_words("margin_permille", "batch_tokens", "activations", "admit_every"),
    )


class Seen(ctypes.Structure):
    """What happened to a user's request."""

    _fields_ = (*_words("kind", "reserved"), *_longs("request", "a", "b"))


class Ask(ctypes.Structure):
    """What the next step holds, and what could ride in it."""

    _fields_ = (
        *_longs("now_ns", "users_cached", "background_cached"),
        *_words("users", "prompts", "background", "prompt", "under_way", "reserved"),
    )


class Rides(ctypes.Structure):
    """What rides."""

    _fields_ = _words("rows", "prompt")


class Step(ctypes.Structure):
    """A step that is over."""

    _fields_ = (
        *_longs("now_ns", "took_ns", "interval_ns", "users_cached", "background_cached"),
        *_words("users", "users_prompt", "rows", "prompt"),
    )


class Rules(ctypes.Structure):
    """How training is bounded."""

    _fields_ = _words("chunk", "activations", "strict", "reserved")


class Between(ctypes.Structure):
    """What the next step holds, and what could be trained before it."""

    _fields_ = (*_longs("now_ns", "users_cached"), *_words("users", "prompts", "held", "next", "kind", "left"))


class Granted(ctypes.Structure):
    """What is trained before the next step."""

    _fields_ = (*_longs("wait_ns"), *_words("begins", "rows"))


class Held(ctypes.Structure):
    """A sample whose keys and values are in blocks of the cache."""

    _fields_ = _words("before", "tokens")


class Ran(ctypes.Structure):
    """A unit that is over."""

    _fields_ = (*_longs("ns"), *_words("kind", "rows"))


#: By name in the header.
STRUCTURES = {
    "tg_coserve_config": Config,
    "tg_coserve_seen": Seen,
    "tg_coserve_ask": Ask,
    "tg_coserve_rides": Rides,
    "tg_coserve_step": Step,
    "tg_coserve_rules": Rules,
    "tg_coserve_between": Between,
    "tg_coserve_granted": Granted,
    "tg_coserve_held": Held,
    "tg_coserve_unit": Ran,
}


class CoserveError(OSError):
    """The library is missing or of another version, or a call of it failed."""


def load() -> ctypes.CDLL:
    """The library of this machine. Raises ``CoserveError``."""
    named = os.environ.get(VARIABLE)
    places = (Path(named),) if named else PLACES
    place = next((place for place in places if place.exists()), None)
    if place is None:
        raise CoserveError(f"{NAME} is in none of {', '.join(map(str, places))} (set {VARIABLE} to its path)")
    try:
        found = ctypes.CDLL(str(place))
        found.tg_coserve_version.restype = _U32
        version = found.tg_coserve_version()
    except (OSError, AttributeError) as error:
        raise CoserveError(f"{place} cannot be loaded: {error}") from error
    if version >> 16 != VERSION >> 16 or version < VERSION:
        raise CoserveError(f"{place} has version {version >> 16}.{version & 0xFFFF}, not {VERSION >> 16}.{VERSION & 0xFFFF}")
    pointer = ctypes.c_void_p
    for name, arguments in {
        "tg_coserve_new": (ctypes.POINTER(Config), ctypes.POINTER(pointer)),
        "tg_coserve_free": (pointer,),
        "tg_coserve_see": (pointer, ctypes.POINTER(Seen), _U64),
        "tg_coserve_rides": (pointer, ctypes.POINTER(Ask), ctypes.POINTER(Rides)),
        "tg_coserve_rode": (pointer, ctypes.POINTER(Step)),
        "tg_coserve_trains": (pointer, ctypes.POINTER(Rules)),
        "tg_coserve_grant": (pointer, ctypes.POINTER(Between), ctypes.POINTER(Granted)),
        "tg_coserve_unit_ran": (pointer, ctypes.POINTER(Ran)),
        "tg_coserve_leaves": (pointer, ctypes.POINTER(Held), _U32, ctypes.POINTER(_U32)),
        "tg_coserve_job": (pointer, _U64, _U32),
        "tg_coserve_whose": (pointer, ctypes.POINTER(_U64), _U32, ctypes.POINTER(_U32)),
        "tg_coserve_took": (pointer, _U64, _U64),
    }.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, _I32
    return found


def _checked(name: str, code: int) -> None:
    if code:
        raise CoserveError(f"{name}: {CODES.get(code, f'code {code}')}")


class Coserve:
    """What the library knows of one engine. Used by one thread at a time."""

    def __init__(self, config: Config, library: ctypes.CDLL | None = None) -> None:
        self._library = library or load()
        handle = ctypes.c_void_p()
        _checked("tg_coserve_new", self._library.tg_coserve_new(ctypes.byref(config), ctypes.byref(handle)))
        self._handle = handle
        weakref.finalize(self, self._library.tg_coserve_free, handle)
        self._rides, self._seen = Rides(), Seen()
        self._granted, self._ran, self._place = Granted(), Ran(), _U32()

    def rides(self, ask: Ask) -> Rides:
        """What rides in the next step; good until the next call."""
        code = self._library.tg_coserve_rides(self._handle, ctypes.byref(ask), ctypes.byref(self._rides))
        _checked("tg_coserve_rides", code)
        return self._rides

    def rode(self, step: Step) -> None:
        """A step is over."""
        _checked("tg_coserve_rode", self._library.tg_coserve_rode(self._handle, ctypes.byref(step)))

    def see(self, kind: int, request: int, a: int, b: int, now_ns: int) -> None:
        """Something happened to a user's request."""
        seen = self._seen
        seen.kind, seen.request, seen.a, seen.b = kind, request, a, b
        _checked("tg_coserve_see", self._library.tg_coserve_see(self._handle, ctypes.byref(seen), now_ns))


    # Training.

    def trains(self, rules: Rules) -> None:
        """From now on samples ride, too."""
        _checked("tg_coserve_trains", self._library.tg_coserve_trains(self._handle, ctypes.byref(rules)))

    def grant(self, between: Between) -> Granted:
        """What may be trained before the next step; good until the next call."""
        code = self._library.tg_coserve_grant(self._handle, ctypes.byref(between), ctypes.byref(self._granted))
        _checked("tg_coserve_grant", code)
        return self._granted

    def unit(self, kind: int, rows: int, ns: int) -> None:
        """A unit of so many rows took so long."""
        ran = self._ran
        ran.kind, ran.rows, ran.ns = kind, rows, ns
        _checked("tg_coserve_unit_ran", self._library.tg_coserve_unit_ran(self._handle, ctypes.byref(ran)))

    def job(self, number: int, weight: int) -> None:
        """A job of this weight shares what there is; of weight 0, no more."""
        _checked("tg_coserve_job", self._library.tg_coserve_job(self._handle, number, weight))

    def whose(self, ready: list[int]) -> int | None:
        """Whose turn it is, of the jobs that are ready: its place among them."""
        jobs = (_U64 * len(ready))(*ready)
        code = self._library.tg_coserve_whose(self._handle, jobs, len(ready), ctypes.byref(self._place))
        _checked("tg_coserve_whose", code)
        return self._place.value if self._place.value < len(ready) else None

    def leaves(self, held: list[tuple[int, int]]) -> int | None:
        """Which sample gives its blocks to a user's request: its place among them. Of each, what is before it, and its
        own tokens."""
        samples = (Held * len(held))(*held)
        code = self._library.tg_coserve_leaves(self._handle, samples, len(held), ctypes.byref(self._place))
        _checked("tg_coserve_leaves", code)
        return self._place.value if self._place.value < len(held) else None

    def took(self, number: int, ns: int) -> None:
        """A unit of a job took so long."""
        _checked("tg_coserve_took", self._library.tg_coserve_took(self._handle, number, ns))


def layout() -> str:
    """Size of each structure, and its fields with their offsets, a line each."""
    lines = []
    for name, of in STRUCTURES.items():
        offsets = [f"{field[0]} {getattr(of, field[0]).offset}" for field in of._fields_]
        lines.append(" ".join((name, str(ctypes.sizeof(of)), *offsets)))
    return "\n".join(lines)
