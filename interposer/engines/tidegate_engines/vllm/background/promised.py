"""What ``TIDEGATE_BACKGROUND`` promises to users: ``tpot=+5%,ttft=+5%``, or ``tpot=20ms,ttft=500ms``.

Shares are of the mean times that requests take without background work. Times are kept for 99 of 100 requests.
"""

from __future__ import annotations

import re

from ...coserve_abi import SHARES, TIMES, Config

VARIABLE = "TIDEGATE_BACKGROUND"
KEYS = ("tpot", "ttft")

#: Of a thousand users so many may be late, with times.
LATE_PERMILLE = 10

_SHARE = re.compile(r"\+(\d{1,3}(?:\.\d{1,2})?)%")
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(us|ms|s)")
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def parse(text: str) -> Config:
    """The library's words for it. Raises ``ValueError``, which names the key and what it takes."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in KEYS or not equals:
            raise ValueError(f"{part.strip()!r} is not one of tpot=..., ttft=...")
        if key in given:
            raise ValueError(f"{key} is given twice")
        given[key] = value
    shares = {key: _share(value) for key, value in given.items()}
    times = {key: _time(value) for key, value in given.items()}
    for key, value in given.items():
        if shares[key] is None and times[key] is None:
            raise ValueError(f"{key}={value} is neither a share such as +5% nor a time such as 20ms")
    missing = [key for key in KEYS if key not in given]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if None not in shares.values():
        return Config(kind=SHARES, ttft_share=shares["ttft"], tpot_share=shares["tpot"])
    if None not in times.values():
        return Config(kind=TIMES, ttft_ns=times["ttft"], tpot_ns=times["tpot"], late_permille=LATE_PERMILLE)
    raise ValueError("tpot and ttft are to be two shares, or two times")


def _share(value: str) -> int | None:
    """In ten-thousandths."""
    found = _SHARE.fullmatch(value)
    return round(float(found[1]) * 100) if found else None


def _time(value: str) -> int | None:
    """In ns, above zero."""
    found = _TIME.fullmatch(value)
    return (round(float(found[1]) * _UNITS[found[2]]) or None) if found else None
