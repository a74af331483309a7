"""Adapters that are trained, in vLLM's front end: requests may name them as any other adapter.

The engine core writes a file with their names beside its socket, and the front end's list of adapters looks there for
names that it does not have.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import around

log = logging.getLogger("vllm.tidegate")

#: What vLLM's own processes are told: where the socket of their engine is.
VARIABLE = "TIDEGATE_TUNE_SOCKET"


def beside(socket: Path) -> Path:
    """The file with the names."""
    return folder(socket) / "served.json"


def folder(socket: Path) -> Path:
    """What an engine keeps of the adapters that it trains."""
    return socket.with_name(f"{socket.name}.adapters")


def write(file: Path, served: dict[str, Any]) -> None:
    """Has front ends know these."""
    aside = file.with_name(f".{file.name}.part")
    aside.write_text(json.dumps(served))
    os.replace(aside, file)


class Adapters(dict[str, Any]):
    """A front end's adapters by name, and those that are trained."""

    def __init__(self, own: dict[str, Any], file: Path) -> None:
        super().__init__(own)
        self._file, self._read = file, (0, 0)
        self._trained: dict[str, Any] = {}

    def _now(self) -> dict[str, Any]:
        try:
            found = os.stat(self._file)
            if (mark := (found.st_mtime_ns, found.st_ino)) != self._read:
                from vllm.lora.request import LoRARequest

                served = json.loads(self._file.read_text())
                self._trained = {name: LoRARequest(name, number, path) for name, (number, path) in served.items()}
                self._read = mark
        except FileNotFoundError:
            self._trained, self._read = {}, (0, 0)
        except (OSError, ValueError) as error:
            log.warning("Tidegate cannot read %s: %s", self._file, error)
        return self._trained

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._now()

    def __missing__(self, name: str) -> Any:
        return self._now()[name]

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, None) or self._now().get(name, default)

    def values(self) -> Any:
        return [*super().values(), *(one for name, one in self._now().items() if not super(Adapters, self).__contains__(name))]

    def __iter__(self) -> Iterator[str]:
        return iter([*super().__iter__(), *self._now()])


def register(socket: Path) -> None:
    """Has front ends that this process makes know the adapters that are trained."""
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.lora_requests = Adapters(self.lora_requests, beside(socket))

    around.of_class(OpenAIServingModels, "__init__", made)
