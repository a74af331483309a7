"""What ``TIDEGATE_TUNE`` says: ``tpot=20ms,ttft=500ms`` and how training is bounded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...coserve_abi import Config, Rules
from ..background import promised

VARIABLE = "TIDEGATE_TUNE"

#: What is left unused of a promised time, in thousandths.
MARGIN = 50
#: Tokens of samples whose forward pass has begun and whose backward pass has not ended.
ACTIVATIONS = 8192
#: The longest window and the most activations, in tokens.
MOST = 1 << 24

_PERCENT = re.compile(r"(\d{1,2}(?:\.\d)?)%")
_COUNT = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Tune:
    """How an engine trains."""

    config: Config
    rules: Rules
    #: Where the service listens; None: in the runtime directory.
    socket: Path | None


def parse(text: str) -> Tune:
    """The library's words for it. Raises ``ValueError``, which names the key and what it takes."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in (*promised.KEYS, *_KEYS) or not equals:
            raise ValueError(f"{part.strip()!r} is not one of {', '.join(f'{k}=...' for k in (*promised.KEYS, *_KEYS))}")
        if key in given:
            raise ValueError(f"{key} is given twice")
        given[key] = value
    config = promised.parse(",".join(f"{key}={given[key]}" for key in promised.KEYS if key in given))
    read = {key: _KEYS[key](key, given[key]) for key in _KEYS if key in given}
    config.margin_permille = read.get("margin", MARGIN)
    activations = read.get("activations", ACTIVATIONS)
    rules = Rules(chunk=read.get("chunk", 0), activations=activations, strict=read.get("strict", 0))
    if rules.chunk > activations:
        raise ValueError(f"chunk={rules.chunk} is more than activations={activations}")
    return Tune(config, rules, read.get("socket"))


def _percent(key: str, value: str) -> int:
    """In thousandths."""
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{key}={value} is not a share such as 5%")
    return round(float(found[1]) * 10)


def _count(key: str, value: str) -> int:
    number = int(value) if _COUNT.fullmatch(value) else 0
    if not 1 <= number <= MOST:
        raise ValueError(f"{key}={value} is not a number of tokens from 1 to {MOST}")
    return number


def _word(key: str, value: str) -> int:
    if value not in ("yes", "no"):
        raise ValueError(f"{key}={value} is neither yes nor no")
    return int(value == "yes")


def _path(key: str, value: str) -> Path:
    if not value.startswith("/"):
        raise ValueError(f"{key}={value} is not an absolute path")
    if len(value.encode()) > 100:
        raise ValueError(f"{key}={value} is longer than the 100 bytes of a socket's path")
    return Path(value)


_KEYS = {"margin": _percent, "activations": _count, "chunk": _count, "strict": _word, "socket": _path}
